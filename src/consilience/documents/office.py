"""Word, Excel and PowerPoint: the text that a reader of the file sees, in reading order."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from xml.etree.ElementTree import Element

from consilience.documents.archive import Archive
from consilience.documents.converting import Converted, Unreadable, remarks_of
from consilience.documents.ebook import convert_ebook
from consilience.domain.messages import place_line

MAX_GAP = 20
"""Empty cells shown in a row; beyond a longer gap the next cell is named."""

_BREAKS = {"br": "\n", "cr": "\n", "tab": "\t", "noBreakHyphen": "-"}
_GRAPHICS = frozenset({"drawing", "pict", "object", "pic", "graphicFrame"})
_SILENT = frozenset(
    {"instrText", "delInstrText", "Fallback", "rPr", "pPr", "tblPr", "sectPr", "fld", "del", "moveFrom"}
)
"""What a reader does not see: codes of fields, numbers of slides, copies for old programs, properties, deleted text."""
_DATE_FORMATS = frozenset({*range(14, 23), *range(27, 37), *range(45, 48), *range(50, 59)})
_PERCENT_FORMATS = frozenset({9, 10})
_LITERAL = re.compile(r'"[^"]*"|\\.|\[[^\]]*\]|_.|\*.')


class _OfficeText:
    """Reads paragraphs and tables, which Word and PowerPoint write alike, and counts what it leaves out."""

    def __init__(self, prefixes: Mapping[str, str] | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self._prefixes = prefixes or {}
        """What begins the lines of paragraphs of a style."""

    def lines(self, *elements: Element) -> list[str]:
        return "".join(piece for element in elements for piece in self._pieces(element)).strip("\n").split("\n")

    def _pieces(self, element: Element) -> Iterator[str]:
        for child in element:
            tag = child.tag
            if tag == "t":
                yield child.text or ""
            elif tag in _BREAKS:
                yield _BREAKS[tag]
            elif tag in ("footnoteReference", "endnoteReference", "commentReference"):
                yield f"[{tag.removesuffix('Reference')} {child.get('id')}]"
            elif tag == "p":
                yield from (self._prefix(child), *self._pieces(child), "\n")
            elif tag == "tbl":
                yield from (f"{self._row(row)}\n" for row in _outermost(child, "tr"))
            elif tag == "txbxContent":
                yield from ("\n", *self._pieces(child))
            elif tag in _GRAPHICS and child.find(".//t") is None:
                yield self._graphic(child)
            elif not self._is_left_out(child):
                yield from self._pieces(child)

    def _prefix(self, paragraph: Element) -> str:
        style = paragraph.find("pPr/pStyle")
        by_style = self._prefixes.get(style.get("val", ""), "") if style is not None else ""
        return by_style or ("- " if paragraph.find("pPr/numPr") is not None else "")

    def _row(self, row: Element) -> str:
        return " | ".join(" ".join("".join(self._pieces(cell)).split()) for cell in _outermost(row, "tc"))

    def _graphic(self, element: Element) -> str:
        kind = "chart" if element.tag == "graphicFrame" or any(element.iter("chart")) else "picture"
        self.counts[f"{kind}s left out"] += 1
        properties = [*element.iter("docPr"), *element.iter("cNvPr")]
        description = " ".join(properties[0].get("descr", "").split()) if properties else ""
        return f"[{kind}: {description}]" if description else f"[{kind}]"

    def _is_left_out(self, element: Element) -> bool:
        """Return whether a reader sees nothing of an element; tracked changes and hidden text are counted."""
        if element.tag in ("del", "moveFrom"):
            self.counts["tracked deletions left out"] += element.find(".//delText") is not None
        elif element.tag in ("ins", "moveTo"):
            self.counts["tracked insertions included"] += element.find(".//t") is not None
        elif element.tag == "r" and (hidden := element.find("rPr/vanish")) is not None:
            is_hidden = hidden.get("val", "1") not in ("0", "false")
            self.counts["passages of hidden text left out"] += is_hidden and element.find("t") is not None
            return is_hidden
        return element.tag in _SILENT


def _outermost(element: Element, tag: str) -> Iterator[Element]:
    for child in element:
        if child.tag == tag:
            yield child
        else:
            yield from _outermost(child, tag)


def convert_archive(data: bytes) -> Converted:
    """Return the lines of a Word, Excel, PowerPoint or EPUB file, and in what they differ from the file."""
    archive = Archive(data)
    if "META-INF/container.xml" in archive.names:
        return convert_ebook(archive)
    main = next(iter(archive.related("", "officeDocument")), "")
    if main.endswith(".xml"):
        root = archive.xml(main)
        converters = {
            "document": convert_text,
            "workbook": convert_workbook,
            "presentation": convert_slides,
        }
        if root.tag in converters:
            return converters[root.tag](archive, main, root)
    raise Unreadable(
        "it is an archive, but not a Word, Excel, PowerPoint (.docx, .xlsx, .pptx) or EPUB file",
        "Save it in one of these formats, or unpack it and name its directory.",
    )


def convert_text(archive: Archive, main: str, root: Element) -> Converted:
    """Return the lines of a Word file and in what they differ from the file: body, notes, comments, headers and footers."""
    text = _OfficeText(dict(pair for part in archive.related(main, "styles") for pair in _prefixes(archive.xml(part))))
    lines = text.lines(root)
    for kind in ("footnote", "endnote", "comment"):
        for part in archive.related(main, f"{kind}s"):
            for note in archive.xml(part):
                author = f", {note.get('author')}" if note.get("author") else ""
                words = " ".join(" ".join(text.lines(note)).split())
                lines += [f"[{kind} {note.get('id')}{author}] {words}"] if words else []
    for kind in ("header", "footer"):
        parts = [" ".join(" ".join(text.lines(archive.xml(part))).split()) for part in archive.related(main, kind)]
        lines += [f"[{kind}] {words}" for words in dict.fromkeys(parts) if words]
    return lines, remarks_of(text.counts)


def _prefixes(styles: Element) -> Iterator[tuple[str, str]]:
    """Yield what begins the lines of headings and lists, by style. Names of styles are English in every language, ids are not."""
    for style in styles.iter("style"):
        name = style.find("name")
        words = name.get("val", "").casefold() if name is not None else ""
        if match := re.fullmatch(r"heading ([1-6])|title|(list (?:bullet|number|paragraph).*)", words):
            yield style.get("styleId", ""), "- " if match[2] else "\n" + "#" * int(match[1] or 1) + " "


def convert_slides(archive: Archive, main: str, root: Element) -> Converted:
    """Return the lines of a presentation, with a line before each slide, and in what they differ from the file."""
    text, relations = _OfficeText(), archive.relations(main)
    lines: list[str] = []
    for number, item in enumerate(root.iter("sldId"), 1):
        path = relations[item.get("rid", "")].path
        slide = archive.xml(path)
        if slide.get("show") in ("0", "false"):
            text.counts["hidden slides left out"] += 1
            lines.append(place_line("slide", number, "hidden, left out"))
            continue
        lines += [place_line("slide", number), *text.lines(slide)]
        for part in archive.related(path, "notesSlide"):
            notes = [line for line in text.lines(*_bodies(archive.xml(part))) if line.strip()]
            lines += ["[notes]", *notes] if notes else []
    return lines, remarks_of(text.counts)


def _bodies(notes: Element) -> list[Element]:
    """Return the shapes with what the speaker wrote, without the picture of the slide and its number."""
    return [s for s in notes.iter("sp") if any(p.get("type") == "body" for p in s.iter("ph"))]


def convert_workbook(archive: Archive, main: str, root: Element) -> Converted:
    """Return the lines of a workbook, a row each, with a line before each sheet, and in what they differ from the file."""
    sheets = _Sheets(archive, main, root)
    relations = archive.relations(main)
    lines: list[str] = []
    for number, item in enumerate(root.iter("sheet"), 1):
        name, relation = item.get("name", ""), relations[item.get("rid", "")]
        if item.get("state", "visible") != "visible":
            sheets.counts["hidden sheets left out"] += 1
            lines.append(place_line("sheet", number, f"{name}, hidden, left out"))
        elif relation.kind != "worksheet":
            sheets.counts["charts left out"] += 1
            lines.append(place_line("sheet", number, f"{name}, a chart"))
        else:
            lines += [place_line("sheet", number, name), *sheets.lines(relation.path)]
    return lines, remarks_of(sheets.counts)


class _Sheets:
    """Reads the sheets of a workbook."""

    def __init__(self, archive: Archive, main: str, root: Element) -> None:
        self.counts: Counter[str] = Counter()
        self._archive = archive
        self._texts = [
            "".join(_visible_text(item))
            for part in archive.related(main, "sharedStrings")
            for tag, item in archive.events(part)
            if tag == "si"
        ]
        self._formats = [f for part in archive.related(main, "styles") for f in _formats(archive.xml(part))]
        properties = root.find("workbookPr")
        is_1904 = properties is not None and properties.get("date1904") in ("1", "true")
        self._first_day = datetime(1904, 1, 1) if is_1904 else datetime(1899, 12, 30)

    def lines(self, path: str) -> Iterator[str]:
        for tag, element in self._archive.events(path):
            if tag == "row":
                if cells := self._row(element):
                    yield f"{element.get('r', '')}: {cells}"
                self.counts["hidden rows included"] += element.get("hidden") in ("1", "true") and bool(cells)
                element.clear()
        for part in self._archive.related(path, "drawing"):
            drawing = self._archive.xml(part)
            self.counts["pictures left out"] += sum(1 for _ in drawing.iter("pic"))
            self.counts["charts left out"] += sum(1 for _ in drawing.iter("graphicFrame"))
        for part in self._archive.related(path, "comments"):
            for comment in self._archive.xml(part).iter("comment"):
                yield f"[comment {comment.get('ref')}] {' '.join(''.join(_visible_text(comment)).split())}"

    def _row(self, row: Element) -> str:
        cells: list[str] = []
        for cell in row.iter("c"):
            value = " ".join(self._value(cell).split())
            letters = cell.get("r", "").rstrip("0123456789")
            gap = _column(letters) - len(cells) if letters else 0
            if value:
                cells += [*[""] * gap, value] if gap <= MAX_GAP else [f"{letters}: {value}"]
        return " | ".join(cells)

    def _value(self, cell: Element) -> str:
        kind, value, formula = cell.get("t", "n"), cell.findtext("v") or "", cell.find("f")
        if formula is not None and not value:
            self.counts["formulas without a value"] += 1
            return f"={formula.text or ''}"
        self.counts["formulas read as their last values"] += formula is not None
        if kind == "inlineStr":
            return "".join(_visible_text(cell))
        if kind == "s":
            return self._texts[int(value)] if value else ""
        if kind == "b":
            return "TRUE" if value == "1" else "FALSE"
        return self._number(value, int(cell.get("s", 0))) if kind == "n" and value else value

    def _number(self, value: str, style: int) -> str:
        """Return a number as its cell shows it, but with all its digits: dates as ISO 8601, shares in percent."""
        format = self._formats[style] if style < len(self._formats) else ""
        number = float(value)
        if format == "date" and 0 <= number < 2_958_466:
            moment = self._first_day + timedelta(seconds=round(number * 86_400))
            text = moment.isoformat(" ").removesuffix(":00")
            return text.removesuffix(" 00:00") if number >= 1 else text.partition(" ")[2]
        return f"{number * 100:.13g}%" if format == "percent" else f"{number:.15g}"


def _formats(styles: Element) -> Iterator[str]:
    """Yield how the number of a cell with each style is shown: as `date`, as `percent` or, empty, plainly."""
    codes = {int(f.get("numFmtId", 0)): _LITERAL.sub("", f.get("formatCode", "")) for f in styles.iter("numFmt")}
    for style in styles.iterfind("cellXfs/xf"):
        id = int(style.get("numFmtId", 0))
        code = codes.get(id, "").casefold().partition(";")[0]
        if id in _DATE_FORMATS or re.search("[dmyhs]", code.replace("general", "")):
            yield "date"
        else:
            yield "percent" if id in _PERCENT_FORMATS or "%" in code else ""


def _visible_text(item: Element) -> Iterator[str]:
    """Yield the text of a cell or a comment without the pronunciation of its characters."""
    for child in item:
        if child.tag == "t":
            yield child.text or ""
        elif child.tag != "rPh":
            yield from _visible_text(child)


def _column(letters: str) -> int:
    """Return the index of a column from 0: 27 for AB."""
    number = 0
    for letter in letters:
        number = number * 26 + ord(letter) - ord("A") + 1
    return number - 1
