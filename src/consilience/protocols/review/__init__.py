"""Red and blue review of code and documents: few findings, each with a verified quotation and a way to check it."""
