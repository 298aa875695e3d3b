"""Hostile files of each kind: bounded in time, memory and expansion, and named."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
import zlib
from email.message import EmailMessage
from io import BytesIO

import pytest

from consilience.documents import converting, read_data
from consilience.domain.errors import SourceError

MAIN = '<r><Relationship Id="1" Type="x/officeDocument" Target="{}"/></r>'
ENTITIES = '<!DOCTYPE d [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>'


def packed(**parts: str | bytes) -> bytes:
    with zipfile.ZipFile(file := BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            archive.writestr(name, text)
    return file.getvalue()


def word(document: str | bytes, **parts: str) -> bytes:
    return packed(**{"_rels/.rels": MAIN.format("d.xml"), "d.xml": document, **parts})


def sheet(cells: str) -> bytes:
    workbook = '<workbook xmlns:r="http://x/relationships"><sheets><sheet name="a" r:id="1"/></sheets></workbook>'
    relations = '<r><Relationship Id="1" Type="x/worksheet" Target="s.xml"/></r>'
    rows = f"<worksheet><sheetData><row>{cells}</row></sheetData></worksheet>"
    parts = {"_rels/.rels": MAIN.format("w.xml"), "w.xml": workbook, "_rels/w.xml.rels": relations, "s.xml": rows}
    return packed(**parts)


def pdf(kids: str, content: bytes = b"", *, count: int = 1) -> bytes:
    font = "/Resources<</Font<</F1<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>>>"
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        f"<</Type/Pages/Kids[{kids}]/Count {count}>>".encode(),
        f"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R{font}>>".encode(),
        f"<</Length {len(content)}/Filter/FlateDecode>>stream\n".encode() + content + b"\nendstream",
    ]
    numbered = b"".join(b"%d 0 obj%b\nendobj\n" % (n, body) for n, body in enumerate(objects, 1))
    return b"%PDF-1.4\n" + numbered + b"trailer<</Root 1 0 R>>\n%%EOF"


BODY = "<document><body><p><r><t>{}</t></r></p></body></document>"
HOSTILE: dict[str, tuple[bytes, str]] = {
    "bomb.docx": (word(BODY.format("0" * 210_000_000)), "it expands to more than 200 MB"),
    "entities.docx": (word(ENTITIES + BODY.format("&b;")), "its part 'd.xml' declares entities"),
    "utf-16.docx": (
        word(f'<?xml version="1.0" encoding="utf-16"?>{ENTITIES}{BODY.format("&b;")}'.encode("utf-16")),
        "its part 'd.xml' declares entities",
    ),
    "file.docx": (
        word('<!DOCTYPE d [<!ENTITY x SYSTEM "file:///etc/passwd">]>' + BODY.format("&x;")),
        "its part 'd.xml' declares entities",
    ),
    "nested.docx": (word("<document>" + "<p>" * 50_000 + "</p>" * 50_000 + "</document>"), "nested too deeply"),
    "cut.docx": (word(BODY.format("x"))[:-40], "the archive is damaged"),
    "other.zip": (packed(a="b"), "not a Word, Excel, PowerPoint .* or EPUB file"),
    "loop.docx": (word(BODY.format("x"), **{"_rels/d.xml.rels": MAIN.format("d.xml")}), ""),
    "column.xlsx": (sheet('<c r="ZZZZZZZZZZZZZZ1"><v>1</v></c>'), ""),
    "infinite.xlsx": (sheet('<c r="A1"><v>1e999</v></c>'), ""),
    "string.xlsx": (sheet('<c r="A1" t="s"><v>7</v></c>'), "its content is invalid"),
    "outside.epub": (
        packed(**{"META-INF/container.xml": '<c><rootfile full-path="../../etc/passwd"/></c>'}),
        "it has no part '../../etc/passwd'",
    ),
    "damaged.pdf": (b"%PDF-1.7\n1 0 obj<<", "the PDF is damaged"),
    "loop.pdf": (pdf("2 0 R 2 0 R", count=99_999_999), "the PDF"),
    "nested.html": (b"<html>" + b"<div>" * 100_000 + b"x", ""),
    "parts.eml": (
        b"Subject: x\n"
        + b"".join(b'Content-Type: multipart/mixed; boundary="%d"\n\n--%d\n' % (n, n) for n in range(3000)),
        "nested too deeply",
    ),
    "none.eml": (b"\xff" * 100, "it is no e-mail"),
    "nested.ipynb": (b'{"cells":' + b"[" * 100_000, "nested too deeply"),
    "other.ipynb": (b"[1]", "it is no notebook"),
    "nested.json": (b"[" * 20_000, "nested too deeply"),
}


@pytest.mark.parametrize(("data", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_file_is_read_or_refused_with_the_reason(
    request: pytest.FixtureRequest, data: bytes, reason: str
) -> None:
    name = request.node.callspec.id
    if not reason:
        assert len(read_data(data, "the document", name).text) < 100
        return
    with pytest.raises(SourceError, match=f"the document cannot be read: .*{reason}.* Where: {name}"):
        read_data(data, "the document", name)


def test_hostile_attachment_is_named_and_the_message_is_read() -> None:
    message = EmailMessage()
    message["Subject"] = "Files"
    message.set_content("See the files.")
    for name in ("bomb.docx", "nested.ipynb", "none.eml"):
        message.add_attachment(HOSTILE[name][0], maintype="application", subtype="x", filename=name)
    document = read_data(message.as_bytes(), "the document", "letter.eml")
    assert "See the files.\n" in document.text
    assert document.remarks == ("attachments left out: bomb.docx, nested.ipynb, none.eml",)


def test_number_of_attachments_that_are_read_and_named_is_bounded() -> None:
    part = b"\n--q\nContent-Type: text/plain\nContent-Disposition: attachment\n\nword\n"
    head = b'Subject: x\nContent-Type: multipart/mixed; boundary="q"\n'
    document = read_data(head + part * 3000, "the document", "letter.eml")
    assert document.text.count("\nword\n") == 50
    assert document.text.count("[attachment ") == 50
    assert [len(remark) < 200 and remark.endswith(" and 2,942 more") for remark in document.remarks] == [True]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.docx", word(BODY.format("x") + " " * 150_000_000)),
        ("a.pdf", pdf("3 0 R", zlib.compress(b"BT /F1 9 Tf (a) Tj ET " * 1_000_000))),
    ],
)
def test_file_that_takes_too_much_memory_is_refused(name: str, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converting, "MAX_MEMORY_BYTES", 200_000_000)
    with pytest.raises(SourceError, match=r"needs more than 0\.2 GB of memory"):
        read_data(data, "the document", name)


def test_file_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converting, "MAX_SECONDS", 1)
    with pytest.raises(SourceError, match=r"(takes longer than|memory or) 1 second"):
        read_data(b"<html>" + b"<!--" * 2_000_000, "the document", "slow.html")


def test_text_that_is_too_long_is_refused() -> None:
    cells = "<c><v>1</v></c>" * 20 + "".join(
        f'<c t="inlineStr"><is><t>{"x" * 1000}</t></is></c>' for _ in range(11_000)
    )
    with pytest.raises(SourceError, match="more than 10 million characters"):
        read_data(sheet(cells), "the document", "long.xlsx")


@pytest.mark.parametrize(
    ("act", "event"),
    [
        ("import socket; socket.create_connection(('127.0.0.1', 9))", "socket."),
        ("import socket; socket.getaddrinfo('example.org', 80)", "socket.getaddrinfo"),
        ("import subprocess; subprocess.run(['true'])", "subprocess.Popen"),
        ("import os; os.system('true')", "os.system"),
        ("import os; os.fork()", "os.fork"),
        ("open('/tmp/never-written', 'w')", "open"),
    ],
)
def test_converter_cannot_use_network_programs_or_files(act: str, event: str) -> None:
    program = f"""
import sys, types
from consilience.documents import converting
module = types.ModuleType("consilience.documents.hostile")
def convert(data):
    exec({act!r})
    return [], []
module.convert = convert
sys.modules[module.__name__] = module
converting.CONVERTERS = {{"hostile": "hostile:convert"}}
converting.main("hostile", 60, 10**9)
"""
    done = subprocess.run([sys.executable, "-c", program], input=b"", capture_output=True, check=True)
    assert f"a converter may not use {event}" in json.loads(done.stdout)["reason"]


def test_converter_gets_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, str]] = []
    run = subprocess.run

    def watched(*args: object, env: dict[str, str], **named: object) -> object:
        started.append(env)
        return run(*args, env=env, **named)  # type: ignore[call-overload]

    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setattr(subprocess, "run", watched)
    assert read_data(b"<html>x", "the document", "a.html").text == "x\n"
    assert "OPENAI_API_KEY" not in started[0]
