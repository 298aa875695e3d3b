"""Removes from a reply what its reader should not see: control characters, reasoning traces, template marks."""

from __future__ import annotations

import re

from consilience.models.json_objects import find_objects

MAX_PASSES = 8
"""Max passes over a text: behind one trace another may begin."""

_TAG = "(?:think|thinking|reasoning)"
_OPENED = re.compile(rf"\s*(?:<(?P<name>{_TAG}|thought|analysis)>|◁think▷)", re.IGNORECASE)
_PREAMBLE = re.compile(r"\s*[^\n]{0,80}\n\s*")
"""A line that a program may print before its model begins."""
_OPENED_LATER = re.compile(rf"^[ \t]*<{_TAG}>(?P<alone>[ \t]*$)?", re.IGNORECASE | re.MULTILINE)
_CLOSED = re.compile(rf"</{_TAG}>", re.IGNORECASE)
_CLOSED_RARE = re.compile(r"</(?:thought|analysis)>", re.IGNORECASE)
_CLOSED_TRIANGLE = re.compile("◁/think▷")
_COMMON = re.compile(_TAG, re.IGNORECASE)
_CLOSED_ALONE = re.compile(
    rf"""
    ^[ \t]* </{_TAG}>                                      # at the beginning of a line
    | (?<=[^\s'"`(*_“‘«]) </{_TAG}> (?!['").,;:!?”’»…]|`\b)   # right behind a word
    | (?<=\s) </{_TAG}> (?-i:(?=[ \t]+[A-ZÀ-ÞΑ-ΩА-Я\u4e00-\u9fff\d{{\[*\#]))   # before the beginning of a sentence
    | </{_TAG}> (?=[ \t]*$)                                # at the end of a line; elsewhere it is spoken of
    """,
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
_QUOTED = re.compile(
    rf"""
    ^[ \t]*(```|~~~)[^\n`]*\n (?:(?![ \t]*\1).*\n)* [ \t]*\1[ \t]*$   # a block of code
    | `[^`\n]+`
    | (?<=[^\n]) <{_TAG}>[^\n<]*</{_TAG}>                             # both tags in the middle of one line
    """,
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)

_TRACE_MARKS = (
    (r"\[THINK\]", r"\[/THINK\]"),
    ("<seed:think>", "</seed:think>"),
    (r"<\|START_THINKING\|>", r"<\|END_THINKING\|>"),
    (r"<\|begin_of_thought\|>", r"<\|end_of_thought\|>"),
    (r"<\|think\|>", r"<\|/think\|>"),
    (r"<\|inner_prefix\|>", r"<\|inner_suffix\|>"),
    (r"<\|channel>thought\b", r"<channel\|>"),
    ("<unused94>(?:thought\\b)?", "<unused95>"),
    ("Here is my thought process:", "Here is my response:"),
)
"""Opening and closing marks of traces, of each family of models that does not write `<think>`."""
_OPENINGS, _CLOSINGS = ("|".join(marks) for marks in zip(*_TRACE_MARKS, strict=True))
_TRACE_MARK = re.compile(f"(?P<opening>{_OPENINGS})|(?P<closing>{_CLOSINGS})")
_TRACE_OPENED = re.compile(rf"\s*(?:{_OPENINGS})")
_CHANNEL = re.compile(
    r"(?:<\|start\|>\s*\w*\s*)?<\|channel\|>\s*(?P<name>\w*)(?P<rest>[^<]*(?:<\|constrain\|>[^<]*)?)<\|message\|>"
    r"|<\|start\|>\s*\w*\s*<\|message\|>"
)
"""The header of a message in the format Harmony."""
_MESSAGE_END = re.compile(r"<\|(?:end|return|call|start|channel)\|>")
_STRIPPED_CHANNELS = re.compile(
    r"\s*(?:assistant)?analysis(?=[A-Z\"'])(?:.*(?P<final>assistantfinal(?:\s*json(?=\s*\{))?))?", re.DOTALL
)
"""Channels whose marks the server removed, with the names left."""
_FRAME = re.compile(
    r"\s*<(?P<name>answer|response|output|solution)>(?P<answer>.*?)(?:</(?P=name)>)?\s*", re.DOTALL | re.IGNORECASE
)
_END_NAMES = (
    "im_end|end|eot_id|eom_id|eot|endoftext|end_of_text|end_of_turn|return|call|END_RESPONSE|END_TEXT|END_OF_TURN_TOKEN"
    "|end_of_solution|assistant_end"
)
_END_MARK = rf"(?:<\|(?:{_END_NAMES})\|>|</s>|<end_of_turn>|<eos>|<turn\|>|<｜end▁of▁sentence｜>)"
_TURN = r"(?:<\|im_start\|>|<\|start_header_id\|>|<start_of_turn>|<\|user\|>|<\|start\|>|<｜User｜>)"
_TEMPLATE_BEGIN = re.compile(
    r"(?:\s*(?:<\|im_start\|>assistant\b|<\|start_header_id\|>assistant<\|end_header_id\|>|<start_of_turn>model\b|<\|assistant\|>"
    r"|<\|START_(?:RESPONSE|TEXT)\|>|<\|begin_of_solution\|>|<｜Assistant｜>))*"
)
_TEMPLATE_END = re.compile(rf"{_END_MARK}\Z")
_MAX_MARK_CHARS = 40
_NEXT_TURN = re.compile(rf"{_END_MARK}\s*{_TURN}")
_TEMPLATE_MARK = re.compile(rf"{_END_MARK}|{_TURN}|<\|assistant\|>|<\|START_|<\|begin_of_solution\|>|<｜Assistant｜>")
_ANY_MARK = re.compile(r"[<◁]|\[/?THINK\]|\A\s*(?:assistant)?analysis(?=[A-Z\"'])|Here is my response:")
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # OSC: titles, links
    r"|\x1b[PX^_][^\x1b]*\x1b\\"  # DCS, SOS, PM, APC
    r"|\x1b[()][0-9A-B]|\x1b[@-Z\\^_=>78c]"
)
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\u202a-\u202e\u2066-\u2069]")
"""Repaints a terminal, or reorders what is shown; tabs and line breaks are no such characters."""
_LINE_BREAK = re.compile("\r\n?")


def visible_text(text: str) -> str:
    """Return `text` without what its reader should not see, stripped if it had any of it; a text that is only a trace is empty.

    - Escape sequences of a terminal (CSI, OSC), other control characters, and characters that change the direction of text.
    - Reasoning traces. One is `<think>…</think>`, `<thinking>`, `<reasoning>`, or between other marks of `_TRACE_MARKS`, at the
      beginning of the text or of a line; at the beginning of the text also `<thought>`, `<analysis>` and `◁think▷`. The opening
      mark may be missing (then everything before the closing one is trace). The closing mark may be missing after at most one
      short line (then everything that follows is trace). Of channels, only the final one is no trace.
    - Marks of a chat template around the text, and what a model wrote behind them in another's name.

    Marks inside code or a JSON object are text.
    """
    text = without_controls(text)
    if not _ANY_MARK.search(text):
        return text
    marked = _with_common_marks(_final_channel(text))
    visible = marked
    for _ in range(MAX_PASSES):
        shorter = _without_traces(visible)
        if shorter is None:
            break
        visible = shorter
    if visible != marked:
        visible = _without_frame(visible)
    return _without_template_marks(text if visible == marked == _with_common_marks(text) else visible)


def without_controls(text: str) -> str:
    """Return `text` without escape sequences of a terminal, control characters except tabs, and marks that change the direction
    of text. Every line ends in a line feed."""
    return _CONTROL.sub("", _LINE_BREAK.sub("\n", without_sequences(text)))


def without_sequences(text: str) -> str:
    """Return `text` without escape sequences of a terminal."""
    return _SEQUENCE.sub("", text) if "\x1b" in text or "\x9b" in text else text


def _with_common_marks(text: str) -> str:
    """Return `text` with the marks of every family replaced by `<think>` and `</think>`."""
    if not _TRACE_MARK.search(text):
        return text
    begin = 0
    while (opening := _TRACE_OPENED.match(text, begin)) is not None:  # whatever is quoted inside
        closing = next((mark for mark in _TRACE_MARK.finditer(text, opening.end()) if mark["closing"]), None)
        begin = closing.end() if closing else len(text)
    is_quoted = _quoted(text, begin)

    def common(mark: re.Match[str]) -> str:
        is_words = mark.start() >= begin and mark[0][0] not in "<["  # elsewhere it is a sentence
        if is_quoted[mark.start()] or is_words:
            return mark[0]
        return "</think>" if mark["closing"] else "<think>"

    return _TRACE_MARK.sub(common, text)


def _final_channel(text: str) -> str:
    """Return the reply of a text of channels (Harmony): the final one, else a call, else what follows a trace without a header."""
    if stripped := _STRIPPED_CHANNELS.match(text):
        return text[stripped.end() :] if stripped["final"] else ""
    if "<|message|>" not in text and "<|channel|>" not in text:
        return text
    is_quoted = _quoted(text, 0)
    headers = [header for header in _CHANNEL.finditer(text) if not is_quoted[header.start()]]
    if not headers:
        return text
    bodies = {}
    for header in headers:
        name = (header["name"] or "final").lower()
        if name == "final" or "to=" in (header["rest"] or ""):
            bodies["final" if name == "final" else "call"] = _MESSAGE_END.split(text[header.end() :], maxsplit=1)[0]
    if bodies:
        return bodies.get("final") or bodies.get("call") or ""
    _, end, bare = text[headers[-1].end() :].rpartition("<|end|>")
    return bare if end else ""


def _without_frame(text: str) -> str:
    """Return an answer without the tags that some models set around it behind a trace."""
    framed = _FRAME.fullmatch(text)
    return framed["answer"].strip() if framed else text


def _without_template_marks(text: str) -> str:
    """Return `text` without the marks of a chat template around it, up to the first turn of another."""
    if not _TEMPLATE_MARK.search(text):
        return text
    is_quoted = _quoted(text, 0)
    is_html = "<s>" in text
    beginning = _TEMPLATE_BEGIN.match(text)
    begin = beginning.end() if beginning else 0
    turn = next((turn for turn in _NEXT_TURN.finditer(text, begin) if not is_quoted[turn.start()]), None)
    whole = stop = turn.start() if turn else _end_of_words(text, len(text))
    while (end := _TEMPLATE_END.search(text, max(begin, stop - _MAX_MARK_CHARS), stop)) and not is_quoted[end.start()]:
        if end[0] == "</s>" and is_html:
            break
        stop = _end_of_words(text, end.start())
    return text[begin:stop].strip() if begin or turn or stop < whole else text


def _end_of_words(text: str, stop: int) -> int:
    """Return the position behind the last character before `stop` that is no white space."""
    while stop and text[stop - 1].isspace():
        stop -= 1
    return stop


def _without_traces(text: str) -> str | None:
    """One pass: return the text without its visible traces; None if there is none."""
    begin = 0
    while opening_tag := _OPENED.match(text, begin):
        closing_tag = _end_of(opening_tag["name"]).search(text, opening_tag.end())
        begin = closing_tag.end() if closing_tag else len(text)
    ends = [match.end() for match in _CLOSED_ALONE.finditer(text, begin)]
    starts = list(_OPENED_LATER.finditer(text, begin))
    if ends or starts:
        is_quoted = _quoted(text, begin)
        ends = [end for end in ends if not is_quoted[end - 1]]
        starts = [opening_tag for opening_tag in starts if not is_quoted[opening_tag.start()]]
    pieces, place = [], begin
    for opening_tag in starts:
        start = opening_tag.start()
        if start < place or (opening_tag["alone"] is None and not any(end > start for end in ends)):
            continue
        closing_tag = _CLOSED.search(text, start)
        if closing_tag is None and not _PREAMBLE.fullmatch(text, begin, start):
            continue
        stop = closing_tag.end() if closing_tag else len(text)
        ends = [end for end in ends if not start < end <= stop]
        pieces.append((place, start))
        place = stop
    pieces.append((place, len(text)))
    if begin == 0 and len(pieces) == 1 and not ends:
        return None
    headless = max(ends, default=0)
    return "".join(text[max(a, headless) : b] for a, b in pieces if b > headless).strip()


def _end_of(name: str | None) -> re.Pattern[str]:
    """Return the pattern that closes a trace at the beginning."""
    if name is None:
        return _CLOSED_TRIANGLE
    return _CLOSED if _COMMON.fullmatch(name) else _CLOSED_RARE


def _quoted(text: str, begin: int) -> bytearray:
    """Return a flag per character: whether it is in code, in a JSON object, or in a mention of tags."""
    flags = bytearray(len(text))
    for a, b in (*(code.span() for code in _QUOTED.finditer(text, begin)), *find_objects(text, begin).spans):
        flags[a:b] = b"\1" * (b - a)
    return flags
