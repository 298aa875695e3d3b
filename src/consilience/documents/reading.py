"""Which reader a file needs, and the encodings of text."""

from __future__ import annotations

import codecs
import errno
import re
import shlex
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from consilience.documents.converting import DocumentText, Unreadable, convert
from consilience.domain.errors import EncodingError, SourceError, UnreadableDocument
from consilience.domain.paths import read_bounded, too_long

MAX_SOURCE_BYTES = 10_000_000
"""Max size of a file with a document, a task or an answer."""

MAX_OFFICE_BYTES = 100_000_000
"""Max size of a PDF, Word, Excel, PowerPoint or EPUB file, most of which are pictures."""

OFFICE_SUFFIXES = (".pdf", ".docx", ".docm", ".xlsx", ".xlsm", ".pptx", ".pptm", ".ppsx", ".epub")

UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""What a text in UTF-16 or UTF-32 begins with."""

_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    **dict.fromkeys(UTF16_MARKS, "utf-16"),
    codecs.BOM_UTF8: "utf-8-sig",
}
_ARCHIVE = b"PK\x03\x04"
_COMPOUND = b"\xd0\xcf\x11\xe0"
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")
"""The stream of a compound file that holds a Word, Excel or PowerPoint file with a password ([MS-OFFCRYPTO] 2.3.4.4)."""
_FORMATS = {
    b"%PDF": "a PDF",
    _ARCHIVE: "an archive, such as Word, Excel, EPUB or ZIP",
    _COMPOUND: "an old Word, Excel, PowerPoint or Outlook file",
    b"\x1f\x8b": "compressed",
    b"{\\rtf": "RTF",
}
_READ_AS_DOCUMENTS = (b"%PDF", _ARCHIVE)
_OR_GIVE = ", or give it as a document, with --source"
_KINDS = {
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    **dict.fromkeys((".eml", ".mht", ".mhtml"), "mail"),
    ".ipynb": "notebook",
}
_IS_HTML = re.compile(
    rb"\s*(?:<\?xml[^>]*>\s*)?(?:<!--.{0,1000}?-->\s*)*<(?:!doctype html|html)[\s>]", re.IGNORECASE | re.DOTALL
)
_STRING = r'"(?:[^"\\]|\\.)*+"'
_OUTPUT = re.compile(rf'("image/[\w.+-]+":\s*)\[(?:\s*{_STRING}\s*,?)*+\s*\]')
_EMBEDDED = re.compile(
    r'(\bdata:[\w.+/-]+;base64,|"(?:image/[\w.+-]+|application/pdf)":\s*")(?:[A-Za-z0-9+/=]|\\n){200,}'
)
_MAX_JSON_LINE = 10_000
_MAX_WESTERN_RUN = 2
_WESTERN_SHARE = 0.8
_SHORTEN = "Give the part that matters."


def read_text_file(path: Path, label: str) -> str:
    """Return the text of a file; `label` names it in errors. Raises `SourceError` if it is missing, too large or not UTF-8 text."""
    return decode_text(_read(path, label, MAX_SOURCE_BYTES), label, str(path))


def read_document(path: Path, label: str) -> DocumentText:
    """Return a file as lines of text, as `read_data` does."""
    return read_data(_read(path, label, MAX_OFFICE_BYTES), label, str(path))


def _read(path: Path, label: str, max_bytes: int) -> bytes:
    if is_address(str(path)):
        address = re.sub("^(https?):/+", r"\1://", str(path), flags=re.IGNORECASE)
        raise SourceError(
            f"{label} is an address, and nothing is fetched from the network",
            where=address,
            do=f"Save the page and give the file: curl -L -o page.html {shlex.quote(address)}",
        )
    try:
        return read_bounded(path, max_bytes)
    except FileNotFoundError:
        raise SourceError(f"{label} does not exist", where=str(path), do="Check the path.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        too_large = getattr(error, "errno", None) == errno.EFBIG
        do = _SHORTEN if too_large else "Check the path and your rights."
        raise UnreadableDocument(label, reason, where=str(path), do=do) from None


def is_address(path: str) -> bool:
    """Return whether a path is an address of the web, also one with the slashes that `pathlib` leaves."""
    return re.match(r"https?:/", path, re.IGNORECASE) is not None and not Path(path).exists()


def is_office(name: str) -> bool:
    """Return whether a file has the name of a PDF, Word, Excel, PowerPoint or EPUB file."""
    return name.lower().endswith(OFFICE_SUFFIXES)


def read_data(
    data: bytes, label: str, where: str, converter: Callable[[str, bytes], DocumentText] = convert
) -> DocumentText:
    """Return a document as lines of text, by its content and, if `where` is the path of a file, by the ending of that.

    Read are text, HTML, e-mails, notebooks, PDF, Word, Excel, PowerPoint and EPUB. Raises `SourceError` for what cannot be read.
    """
    suffix = Path(where).suffix.lower()
    kind = _kind(data, suffix) if data.strip() else ""
    if len(data) > MAX_SOURCE_BYTES and kind not in ("pdf", "archive"):
        raise UnreadableDocument(label, too_long(MAX_SOURCE_BYTES), where=where, do=_SHORTEN)
    if not kind:
        _check_format(data, label, where)
        return _text(data, label, where, is_table=suffix in (".csv", ".tsv"))
    try:
        return converter(kind, data)
    except Unreadable as error:
        raise UnreadableDocument(label, error.reason, where=where, do=error.do) from None


def _kind(data: bytes, suffix: str) -> str:
    """Return the converter that a document needs, empty for text."""
    if data.startswith(_ARCHIVE):
        return "archive"
    if b"%PDF-" in data[:1024]:
        return "pdf"
    if suffix == ".json" and max(map(len, data.split(b"\n"))) > _MAX_JSON_LINE:
        return "json"
    return _KINDS.get(suffix) or ("html" if _IS_HTML.match(data[:4096]) else "")


def _check_format(data: bytes, label: str, where: str) -> None:
    """Raise `SourceError` for a format that is not read, also one that is written in characters, such as RTF."""
    format = next((name for magic, name in _FORMATS.items() if data.startswith(magic)), "")
    if data.startswith(_COMPOUND) and _ENCRYPTED in data:
        raise UnreadableDocument(label, "it needs a password", where=where, do="Save it without one.")
    if format:
        do = "Save it as PDF, .docx, .xlsx, .pptx or text."
        raise UnreadableDocument(label, f"it is {format}", where=where, do=do)


def _text(data: bytes, label: str, where: str, *, is_table: bool) -> DocumentText:
    """Return a text. A table that is not UTF-8 and seems to be of a Western language is read as Windows-1252: Excel writes it."""
    try:
        text, pictures = without_pictures(decode_text(data, label, where))
        return DocumentText(text, (f"pictures left out: {pictures}",) if pictures else ())
    except SourceError:
        if not is_table or is_binary(data) or not _is_western(data):
            raise
    return DocumentText(
        data.decode("windows-1252").replace("\r\n", "\n"), ("its encoding is not declared; read as Windows-1252",)
    )


def _is_western(data: bytes) -> bool:
    """Return whether characters beyond ASCII are mostly letters that stand alone, and marks beside words, in Windows-1252.

    Texts of other scripts have runs of such letters, and those in code pages of DOS have marks inside of words.
    """
    try:
        text = data.decode("windows-1252")
    except UnicodeDecodeError:
        return False
    runs = list(re.finditer("[\x80-\uffff]+", text))
    western = sum(
        len(run[0]) <= _MAX_WESTERN_RUN
        and (
            run[0][0].isalpha()
            or run[0] == "’"
            or not (text[run.start() - 1].isalpha() and text[run.end() : run.end() + 1].isalpha())
        )
        for run in runs
    )
    return western > _WESTERN_SHARE * len(runs)


def without_pictures(text: str, name: str = "") -> tuple[str, int]:
    """Return text in which each embedded picture or font is replaced by a remark, and their number. Line numbers stay.

    Replaced are data URIs and strings of a JSON object by media type; in a notebook lists of strings, too.
    """
    text, count = _EMBEDDED.subn(r"\1[left out]", text)
    if name.endswith(".ipynb"):
        text, outputs = _OUTPUT.subn(lambda match: f'{match[1]}"[left out]"' + "\n" * match[0].count("\n"), text)
        count += outputs
    return text, count


def decoded(data: bytes, encodings: Iterable[str]) -> str:
    """Return text in the encoding of its mark, else in the first of `encodings` and UTF-8 that fits, else in Windows-1252."""
    marked = next((name for mark, name in _MARKS.items() if data.startswith(mark)), "")
    for name in (marked, *encodings, "utf-8"):
        with suppress(LookupError, ValueError):  # an unknown name, or bytes that it has not
            return data.decode(name)
    return data.decode("windows-1252", "replace")


def decode_text(data: bytes, label: str, where: str) -> str:
    """Return bytes as text with line ends as `\\n`: UTF-8, or UTF-16 and UTF-32 with a byte order mark.

    Raises `SourceError` for other data, which names what it seems to be and how to convert it.
    """
    encoding = next((name for mark, name in _MARKS.items() if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise EncodingError(label, where=where, do=_conversion(data, where))
    return text.replace("\r\n", "\n")


def is_binary(data: bytes) -> bool:
    """Return whether Git would take the data for binary: a NUL byte near the beginning."""
    return b"\0" in data[:8_000]


def _conversion(data: bytes, where: str) -> str:
    """Return how to make text of data that is not UTF-8."""
    kind = next((name for magic, name in _FORMATS.items() if data.startswith(magic)), "")
    if kind:
        return f"It is {kind}: convert it to text first{_OR_GIVE if data.startswith(_READ_AS_DOCUMENTS) else ''}."
    name = where if re.fullmatch(r"[\w./~-]+", where) else "FILE"
    without_mark = next((code for code, nul in (("UTF-16LE", 1), ("UTF-16BE", 0)) if not any(data[nul:400:2])), "")
    if without_mark or not is_binary(data):
        encoding = without_mark or "WINDOWS-1252"
        return f"It may be {encoding}: iconv -f {encoding} -t UTF-8 {name} > NEW"
    return "It is binary: give text."
