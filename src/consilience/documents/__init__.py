"""Files as people have them, read as lines of text. Formats that are not text are converted in a bounded child process."""

from consilience.documents.converting import DocumentText
from consilience.documents.reading import (
    MAX_OFFICE_BYTES,
    MAX_SOURCE_BYTES,
    UTF16_MARKS,
    decode_text,
    is_address,
    is_binary,
    is_office,
    read_data,
    read_document,
    read_text_file,
    without_pictures,
)

__all__ = [
    "MAX_OFFICE_BYTES",
    "MAX_SOURCE_BYTES",
    "UTF16_MARKS",
    "DocumentText",
    "decode_text",
    "is_address",
    "is_binary",
    "is_office",
    "read_data",
    "read_document",
    "read_text_file",
    "without_pictures",
]
