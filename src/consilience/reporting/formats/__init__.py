"""Formats in which other programs read findings."""
