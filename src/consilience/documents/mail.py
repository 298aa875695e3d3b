"""E-mails (.eml) and web archives (.mht): headers, text and attachments."""

from __future__ import annotations

from email import policy
from email.message import EmailMessage, MIMEPart
from email.parser import BytesParser

from consilience.documents.converting import Converted, Unreadable, convert_here, remarks_of
from consilience.documents.markup import HtmlText
from consilience.documents.reading import decoded, read_data
from consilience.domain.errors import SourceError
from consilience.domain.messages import PLACE_LINE, place_line

MAX_ATTACHMENTS = 50
"""Max attachments of a message that are read."""

_HEADERS = ("From", "To", "Cc", "Date", "Subject")
_NAMES_LISTED = 8


def convert_mail(data: bytes) -> Converted:
    """Return the headers that people read and the text of a message, then each attachment after a line that names it, and in what
    they differ from the file.

    An attachment is read as a file of its name would be. One that cannot be read, such as a picture, is named, and so are the
    pictures and styles of a web archive.
    """
    message = BytesParser(policy=policy.default).parsebytes(data)
    assert isinstance(message, EmailMessage)
    headers = [f"{name}: {' '.join(str(message[name]).split())}" for name in _HEADERS if message[name]]
    body = message.get_body(("plain", "html"))
    if not headers:
        raise Unreadable(
            "it is no e-mail: it has no header that names sender, date or subject", "Save the message as .eml."
        )
    lines, remarks = ([], []) if body is None else _text(body)
    lines = [*headers, "", *lines]
    left_out: list[str] = []
    max_number = 0 if message.get_content_subtype() == "related" else MAX_ATTACHMENTS
    for number, part in enumerate(message.iter_attachments(), 1):
        name = _name(part)
        if number > max_number:
            left_out.append(name)
            continue
        try:
            attached, differences = _attachment(part, name, number)
        except SourceError as error:
            attached, differences = [], []
            left_out.append(name)
            name = f"{name}, left out: {error.reason}"
        lines += [place_line("attachment", number, name), *attached]
        remarks += differences
    return lines, remarks + _listed(left_out)


def _attachment(part: MIMEPart, name: str, number: int) -> tuple[list[str], list[str]]:
    """Return the lines of an attachment, whose places begin with its number, and in what they differ. Raises `SourceError`."""
    document = read_data(_content(part), "the file", name, convert_here)
    lines = document.text.removesuffix("\n").split("\n")
    lines = [f"[attachment {number}, {line[1:]}" if PLACE_LINE.fullmatch(line) else line for line in lines]
    return lines, [f"{name}: {remark}" for remark in document.remarks]


def _content(part: MIMEPart) -> bytes:
    if part.get_content_type() == "message/rfc822":
        return bytes(part.get_content())
    payload = part.get_payload(decode=True)
    return payload if isinstance(payload, bytes) else b""


def _text(body: MIMEPart) -> tuple[list[str], list[str]]:
    payload = body.get_payload(decode=True)
    text = decoded(payload if isinstance(payload, bytes) else b"", [body.get_content_charset() or "utf-8"])
    if body.get_content_subtype() != "html":
        return text.replace("\r\n", "\n").split("\n"), []
    page = HtmlText()
    page.feed(text)
    page.close()
    return page.lines, remarks_of(page.counts)


def _name(part: MIMEPart) -> str:
    """Return the name of an attachment; of a message, its subject with the ending by which it is read."""
    if part.get_content_type() == "message/rfc822":
        return " ".join(f"{part.get_content()['Subject'] or 'message'}.eml".split())
    return " ".join((part.get_filename() or part.get_content_type()).split())


def _listed(names: list[str]) -> list[str]:
    more = f" and {len(names) - _NAMES_LISTED:,} more" if len(names) > _NAMES_LISTED else ""
    return [f"attachments left out: {', '.join(names[:_NAMES_LISTED])}{more}"] if names else []
