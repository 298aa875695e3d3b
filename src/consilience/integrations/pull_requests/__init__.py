"""Reviews of pull requests, push after push: what stands in their threads, and what is to be posted."""
