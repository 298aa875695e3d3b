"""What a review reads, as source documents: files, directories, a text on standard input, and changes that Git records."""

from consilience.targets.target import Target, read_target

__all__ = ["Target", "read_target"]
