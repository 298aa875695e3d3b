"""Files as people have them: text, places, and in what the text differs from the file.

The files in `fixtures/documents` were written by python-docx, LibreOffice, openpyxl, XlsxWriter, python-pptx, ebooklib, fpdf2 and
ReportLab, and packed anew without thumbnails and themes.
"""

from __future__ import annotations

import json
from email.message import EmailMessage
from pathlib import Path

import pytest

from consilience.documents import read_data, read_document
from consilience.domain.errors import SourceError
from consilience.engine.sources import find_quotations, number_documents

FILES = Path(__file__).parent.parent / "fixtures" / "documents"

REAL: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "columns.pdf": (
        [
            "[page 1]",
            "Left column begins here. The council met in",
            "column: the vote was seven to two.",
            "[page 2: no text: a picture, such as a scan]",
            "[page 3]",
            "The last page says: 3 March 2026.",
        ],
        ("pages without text, such as scans: 2",),
    ),
    "report.pdf": (["[page 1]", "Annual report", "2024 2025", "Sales 10 12", "[page 2]"], ()),
    "form.pdf": (["[page 1]", "Tenant:", "Alice Miller"], ("comments left out: 1",)),
    "contract.docx": (
        [
            "# Contract",
            "The notice period is six months.",
            "- First duty",
            "Room | Rent",
            "Kitchen and hall | 200",
            "[picture]",
            "[header] Draft of 3 May",
        ],
        ("tracked deletions left out: 1", "tracked insertions included: 1", "pictures left out: 1"),
    ),
    "report.docx": (
        ["# Harbour report 2025", "## Costs", "Fuel | 120,000 | 131,500", "- The night line lost money."],
        (),
    ),
    "costs.xlsx": (
        [
            "[sheet 1: Costs]",
            "2: Fuel | 2025 | 131500.5 | 2025-03-01",
            "3: Crew | 2025 | 322000 | 2025-04-02 13:30",
            "4: Sum |  | =SUM(C2:C3)",
            "6: A note over two lines",
            "[sheet 2: Secret, hidden, left out]",
            "[sheet 3: Prices]",
            "1: 0.1 | 0.1 | 0.333333333333333 | TRUE | 25%",
            "2: in a hidden row",
        ],
        ("hidden rows included: 1", "formulas without a value: 1", "hidden sheets left out: 1"),
    ),
    "census.xlsx": (
        ["[sheet 1: Données]", "2: Genève | 203951", "3:  | 203951", "4: 2026-01-02", "[comment A2] a cell comment"],
        ("formulas read as their last values: 1", "charts left out: 1"),
    ),
    "talk.pptx": (
        ["[slide 1]", "Where we stand", "Costs grew 20 %", "[notes]", "Say it slowly.", "[slide 2]", "Q1 | Q2"],
        ("pictures left out: 1", "hidden slides left out: 1"),
    ),
    "tides.epub": (
        ["[chapter 2: The moon]", "# The moon", "The tide follows the moon — twice a day.", "[picture: a cliff]"],
        ("pictures left out: 1",),
    ),
}


@pytest.mark.parametrize(("lines", "remarks"), REAL.values(), ids=REAL)
def test_real_file_gives_its_text_places_and_remarks(
    request: pytest.FixtureRequest, lines: list[str], remarks: tuple[str, ...]
) -> None:
    document = read_document(FILES / request.node.callspec.id, "the document")
    read = iter(document.text.split("\n"))
    assert [line for line in lines if line not in read] == [], f"in this order:\n{document.text}"
    assert document.remarks == remarks
    assert "hidden words" not in document.text
    assert "three" not in document.text, "a tracked deletion"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("scan.pdf", "the PDF has no text: its 2 pages are pictures, such as scans. .* ocrmypdf"),
        ("locked.pdf", "the PDF needs a password. .*locked.pdf. Save it without one"),
    ],
)
def test_pdf_without_readable_text_is_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(SourceError, match=reason):
        read_document(FILES / name, "the document")


def test_office_file_is_known_by_its_content_without_a_name() -> None:
    data = (FILES / "costs.xlsx").read_bytes()
    assert "2: Fuel | 2025" in read_data(data, "the text", "standard input").text


def test_pdf_without_the_extra_names_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pypdfium2.py").write_text("raise ModuleNotFoundError")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SourceError, match=r"needs the extra documents.*pip install 'consilience\[documents\]'"):
        read_document(FILES / "report.pdf", "the document")


# --- text of other forms

PAGE = """<!DOCTYPE html><html><head><title>Ferry</title><style>p {}</style><script>alert(1)</script></head><body>
<h1>The  ferry</h1><p>It runs at <b>nine</b>&nbsp;o&rsquo;clock.<br>Daily.</p><ul><li>Two boats<li>One crew</ul>
<table><tr><th>Year</th><th>Sum</th></tr><tr><td><p>2025</p></td><td>7&nbsp;%</td></tr></table>
<pre>a
  b</pre><img src="x.png" alt="A boat"><!-- not shown --></body></html>"""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "windows-1252", "koi8-r"])
def test_html_is_read_in_its_declared_encoding(encoding: str) -> None:
    word = "Привет" if encoding == "koi8-r" else "Grüße"
    page = PAGE.replace("<head>", f"<head><meta charset={encoding}>").replace("One crew", word)
    document = read_data(page.encode(encoding), "the document", "page.html")
    assert document.text.split("\n") == [
        "# The ferry",
        "",
        "It runs at nine o’clock.",
        "Daily.",
        "",
        "- Two boats",
        f"- {word}",
        "",
        "Year | Sum",
        "2025 | 7 %",
        "",
        "a",
        "  b",
        "[picture: A boat]",
        "",
    ]
    assert document.remarks == ("pictures left out: 1",)


def letter(subtype: str) -> EmailMessage:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "Ann Öst <ann@example.org>", "bob@example.org", "Fähre"
    message["Date"] = "Mon, 05 Jan 2026 10:00:00 +0100"
    text = "Die Fähre fährt um neun." if subtype == "plain" else "<p>Die Fähre<br>fährt um neun.</p>"
    message.set_content(text, subtype=subtype, charset="iso-8859-15", cte="quoted-printable")
    message.add_attachment(b"%PDF-1.4", maintype="application", subtype="pdf", filename="Angebot für Sie.pdf")
    return message


@pytest.mark.parametrize(
    ("subtype", "body"), [("plain", ["Die Fähre fährt um neun."]), ("html", ["Die Fähre", "fährt um neun."])]
)
def test_mail_gives_headers_text_and_names_of_attachments(subtype: str, body: list[str]) -> None:
    document = read_data(letter(subtype).as_bytes(), "the document", "letter.eml")
    assert document.text.rstrip("\n").split("\n") == [
        "From: Ann Öst <ann@example.org>",
        "To: bob@example.org",
        "Date: Mon, 05 Jan 2026 10:00:00 +0100",
        "Subject: Fähre",
        "",
        *body,
        *([""] if subtype == "plain" else []),
        "[attachment 1: Angebot für Sie.pdf, left out: cannot be read: the PDF is damaged]",
    ]
    assert document.remarks == ("attachments left out: Angebot für Sie.pdf",)


def test_attachments_are_read_as_files_of_their_names_with_places_of_their_own() -> None:
    message = letter("plain")
    message.clear_content()
    message.set_content("See the files.")
    for name in ("contract.docx", "report.pdf", "locked.pdf"):
        message.add_attachment((FILES / name).read_bytes(), maintype="application", subtype="x", filename=name)
    message.add_attachment("Ort;Maß\r\nÖd;7\r\n".encode("cp1252"), maintype="text", subtype="csv", filename="maße.csv")
    message.add_attachment(b"\x89PNG\x00", maintype="image", subtype="png", filename="logo.png")
    inner = letter("plain")
    inner.clear_content()
    inner.replace_header("Subject", "The older letter")
    inner.set_content("It ran at ten.")
    message.add_attachment(inner)
    document = read_data(message.as_bytes(), "the document", "letter.eml")
    lines = document.text.split("\n")
    expected = [
        "See the files.",
        "[attachment 1: contract.docx]",
        "[attachment 2: report.pdf]",
        "[attachment 2, page 1]",
        "[attachment 3: locked.pdf, left out: cannot be read: the PDF needs a password]",
        "[attachment 4: maße.csv]",
        "Öd;7",
        "[attachment 5: logo.png, left out: not UTF-8 text]",
        "[attachment 6: The older letter.eml]",
        "Subject: The older letter",
        "It ran at ten.",
    ]
    assert [line for line in lines if line in expected] == expected
    assert document.remarks[-1] == "attachments left out: locked.pdf, logo.png"
    assert "contract.docx: tracked deletions left out: 1" in document.remarks
    assert "maße.csv: its encoding is not declared; read as Windows-1252" in document.remarks
    place = find_quotations(
        f'"It ran at ten" [S1:{1 + lines.index("It ran at ten.")}]',
        number_documents([document.source("letter.eml")]),
        "A",
    )[0].place
    assert place == "attachment 6"


def test_styles_of_a_web_archive_are_not_read() -> None:
    page = EmailMessage()
    page["Subject"] = "Ferry"
    page.set_content("<p>It runs at nine.</p>", subtype="html")
    page.add_related("p {color: red}", subtype="css", filename="style.css")
    document = read_data(page.as_bytes(), "the document", "page.mht")
    assert document.text == "Subject: Ferry\n\nIt runs at nine.\n"
    assert document.remarks == ("attachments left out: style.css",)


def test_notebook_gives_cells_and_printed_outputs() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "Words"]},
        {
            "cell_type": "code",
            "source": "print(6 * 7)",
            "outputs": [
                {"output_type": "stream", "text": ["42\n"]},
                {"output_type": "display_data", "data": {"image/png": "iVBOR", "text/plain": ["<Figure>"]}},
                {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": ["\x1b[31mno\x1b[0m"]},
            ],
        },
    ]
    document = read_data(json.dumps({"cells": cells}).encode(), "the document", "a.ipynb")
    assert document.text.split("\n") == [
        *("[cell 1: markdown]", "# Title", "Words"),
        *("[cell 2: code]", "print(6 * 7)"),
        *("[output of cell 2]", "42", "[output of cell 2]", "<Figure>", "[output of cell 2]", "no", ""),
    ]
    assert document.remarks == ("pictures left out: 1",)


def test_picture_inside_a_text_is_left_out_and_counted() -> None:
    text = f"# Boats\n![one](data:image/png;base64,{'iVBOR' * 100})\nTwo.\n"
    document = read_data(text.encode(), "the document", "notes.md")
    assert document.text == "# Boats\n![one](data:image/png;base64,[left out])\nTwo.\n"
    assert document.remarks == ("pictures left out: 1",)


def test_json_on_one_line_is_indented_and_other_json_is_not() -> None:
    rows = [{"name": f"Ä{n}", "value": n} for n in range(1000)]
    document = read_data(json.dumps(rows, ensure_ascii=False).encode(), "the document", "a.json")
    assert '    "name": "Ä7",\n    "value": 7' in document.text
    assert read_data(b'{"a":\n1}', "the document", "a.json").text == '{"a":\n1}'


@pytest.mark.parametrize(
    ("data", "remarks"),
    [
        ("Größe;Preis €\n1,5;„neun“\n".encode(), ()),
        ("Größe;Preis €\r\n1,5;„neun“\r\n".encode("utf-16"), ()),
        (
            "Größe;Preis €\r\n1,5;„neun“\r\n".encode("windows-1252"),
            ("its encoding is not declared; read as Windows-1252",),
        ),
    ],
)
def test_table_keeps_its_lines_and_separators_in_each_encoding(data: bytes, remarks: tuple[str, ...]) -> None:
    document = read_data(data, "the document", "a.csv")
    assert document.text == "Größe;Preis €\n1,5;„neun“\n"
    assert document.remarks == remarks


@pytest.mark.parametrize("encoding", ["windows-1251", "shift_jis", "gb18030", "cp850"])
def test_table_in_an_encoding_that_cannot_be_told_is_refused(encoding: str) -> None:
    words = {"windows-1251": "Город;Цена", "shift_jis": "都市;価格", "gb18030": "城市;价格", "cp850": "März;Böen"}[
        encoding
    ]
    with pytest.raises(SourceError, match="is not UTF-8 text"):
        read_data(f"{words}\n".encode(encoding) * 20, "the document", "a.csv")
