"""PDF: the text of each page, as laid out, by pdfium."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby

import pypdfium2 as pdfium

from consilience.documents.converting import Converted, Unreadable, remarks_of
from consilience.domain.messages import place_line

_SAVE = "Save it once more, or as text."
_SCAN = "no text: a picture, such as a scan"
_BROKEN = "cannot be read"


def convert_pdf(data: bytes) -> Converted:
    """Return the lines of a PDF, with a line before each page, and in what they differ from the file."""
    try:
        document = pdfium.PdfDocument(data)
        document.init_forms()
    except pdfium.PdfiumError as error:
        if "password" in str(error).lower():
            raise Unreadable("the PDF needs a password", "Save it without one.") from None
        raise Unreadable("the PDF is damaged", _SAVE) from None
    lines: list[str] = []
    pages: dict[str, list[int]] = {"": [], "empty": [], _SCAN: [], _BROKEN: []}
    counts = Counter({"attached files left out": document.count_attachments()})
    for number in range(1, len(document) + 1):
        text, problem = _read_page(document, number - 1, counts)
        pages[problem].append(number)
        lines += [place_line("page", number, problem), text]
    if not pages[""]:
        what = "are pictures, such as scans" if pages[_SCAN] else "cannot be read" if pages[_BROKEN] else "are empty"
        do = "Recognise its text first: ocrmypdf IN.pdf OUT.pdf" if pages[_SCAN] else _SAVE
        raise Unreadable(f"the PDF has no text: its {len(document)} pages {what}", do)
    problems = {"pages without text, such as scans": pages[_SCAN], "pages that cannot be read": pages[_BROKEN]}
    remarks = [f"{words}: {_ranges(numbers)}" for words, numbers in problems.items() if numbers]
    return lines, [*remarks, *remarks_of(counts)]


def _read_page(document: pdfium.PdfDocument, index: int, counts: Counter[str]) -> tuple[str, str]:
    """Return the text of a page and why it has none, empty if it has; count what is left out."""
    try:
        page = document[index]
        subtypes = list(_annotations(page))
        if pdfium.raw.FPDF_ANNOT_WIDGET in subtypes:  # what is filled in a form becomes part of the page
            pdfium.raw.FPDFPage_Flatten(page, pdfium.raw.FLAT_NORMALDISPLAY)
            page.close()
            page = document[index]
        kinds = [item.type for item in page.get_objects(max_depth=3)]
        text = page.get_textpage().get_text_bounded().replace("\r\n", "\n").replace("\ufffe", "-").strip("\n")
        page.close()
    except pdfium.PdfiumError:
        return "", _BROKEN
    counts["comments left out"] += sum(subtype not in _NO_COMMENTS for subtype in subtypes)
    if text.strip():
        counts["pictures left out"] += kinds.count(pdfium.raw.FPDF_PAGEOBJ_IMAGE)
        return text, ""
    return "", _SCAN if kinds else "empty"


_NO_COMMENTS = (pdfium.raw.FPDF_ANNOT_LINK, pdfium.raw.FPDF_ANNOT_WIDGET, pdfium.raw.FPDF_ANNOT_POPUP)


def _annotations(page: pdfium.PdfPage) -> Iterator[int]:
    """Yield the subtypes of a page's annotations."""
    for index in range(pdfium.raw.FPDFPage_GetAnnotCount(page)):
        annotation = pdfium.raw.FPDFPage_GetAnnot(page, index)
        yield pdfium.raw.FPDFAnnot_GetSubtype(annotation)
        pdfium.raw.FPDFPage_CloseAnnot(annotation)


def _ranges(numbers: Iterable[int]) -> str:
    """Return ascending numbers as `1-3, 7`."""
    groups = [[n for _, n in group] for _, group in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{group[0]}-{group[-1]}" if len(group) > 1 else f"{group[0]}" for group in groups)
