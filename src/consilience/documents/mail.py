"""E-mails (.eml) and web archives (.mht): headers and text; attachments are named."""

from __future__ import annotations

from email import policy
from email.message import EmailMessage, MIMEPart
from email.parser import BytesParser

from consilience.documents.converting import Converted, Unreadable, remarks_of
from consilience.documents.markup import HtmlText
from consilience.documents.reading import decoded

_HEADERS = ("From", "To", "Cc", "Date", "Subject")


def convert_mail(data: bytes) -> Converted:
    """Return the headers that people read and the text of a message, and in what they differ from the file."""
    message = BytesParser(policy=policy.default).parsebytes(data)
    assert isinstance(message, EmailMessage)
    headers = [f"{name}: {' '.join(str(message[name]).split())}" for name in _HEADERS if message[name]]
    body = message.get_body(("plain", "html"))
    if not headers:
        raise Unreadable(
            "it is no e-mail: it has no header that names sender, date or subject", "Save the message as .eml."
        )
    lines, remarks = ([], []) if body is None else _text(body)
    names = [_name(part) for part in message.iter_attachments()]
    remarks += [f"attachments left out: {', '.join(names)}"] if names else []
    return [*headers, "", *lines], remarks


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
    return " ".join((part.get_filename() or part.get_content_type()).split())
