"""A browser without script: it opens pages, fills in their forms and sends what a browser would send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urlsplit

from httpx import Client, Response

VOID = {"input", "meta", "link", "br", "hr", "img"}


@dataclass
class Field:
    name: str
    value: str
    kind: str
    """The type of an input, or `textarea`, `select`."""
    is_on: bool = True
    """Of a checkbox or radio button, whether it is sent."""
    options: list[str] = field(default_factory=list)
    attributes: dict[str, str | None] = field(default_factory=dict)


@dataclass
class WebForm:
    action: str
    method: str
    is_multipart: bool
    fields: list[Field] = field(default_factory=list)
    buttons: list[tuple[str, str]] = field(default_factory=list)

    def named(self, name: str) -> list[Field]:
        return [one for one in self.fields if one.name == name]

    def fill(self, **values: str | Sequence[str]) -> None:
        """Fill in fields. Dots and colons in names are written `__`, as in `debate__children`."""
        for name, value in values.items():
            chosen = [value] if isinstance(value, str) else list(value)
            found = [one for one in self.fields if one.name.replace(".", "__").replace(":", "__") == name]
            assert found, f"the form has no field {name}"
            for one in found:
                if one.kind in ("checkbox", "radio"):
                    one.is_on = one.value in chosen
                else:
                    if one.kind == "select":
                        assert chosen[0] in one.options, (chosen[0], one.options)
                    one.value = chosen[0]


class Page(HTMLParser):
    """What a page has: text, forms, headings, ids, labels, links."""

    def __init__(self, answer: Response) -> None:
        super().__init__()
        self.answer, self.status = answer, answer.status_code
        self.source = answer.text
        self.text = ""
        self.tags: list[str] = []
        self.forms: list[WebForm] = []
        self.ids: list[str] = []
        self.labelled: set[str] = set()
        self.links: list[str] = []
        self.alerts = ""
        self.problems: dict[str, str] = {}
        self._form: WebForm | None = None
        self._open: Field | None = None
        self._label_depth = 0
        self._stack: list[tuple[str, dict[str, str | None]]] = []
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        if id := given.get("id"):
            self.ids.append(id)
        if tag not in VOID:
            self._stack.append((tag, given))
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        if tag == "label" and given.get("for"):
            self.labelled.add(str(given["for"]))
        if tag == "form":
            multipart = given.get("enctype") == "multipart/form-data"
            self._form = WebForm(str(given.get("action") or ""), str(given.get("method") or "get"), multipart)
            self.forms.append(self._form)
        if self._form is None:
            return
        name = str(given.get("name") or "")
        if tag == "input":
            kind = str(given.get("type") or "text")
            one = Field(name, str(given.get("value") or ""), kind, kind not in ("checkbox", "radio"), [], given)
            one.is_on = one.is_on or "checked" in given
            self._form.fields.append(one)
            if any(open == "label" for open, _ in self._stack):
                self.labelled.add(f"{name}={one.value}")
        elif tag in ("textarea", "select"):
            self._open = Field(name, "", tag, True, [], given)
            self._form.fields.append(self._open)
        elif tag == "option" and self._open is not None:
            value = given.get("value")
            self._open.options.append("\0" if value is None else value)
            if "selected" in given or len(self._open.options) == 1:
                self._open.value = self._open.options[-1]
        elif tag == "button":
            self._form.buttons.append((name, str(given.get("value") or "")))

    def handle_data(self, data: str) -> None:
        self.text += data
        for _, given in self._stack:
            if given.get("role") == "alert":
                self.alerts += data
            if given.get("class") == "problem" and given.get("id"):
                name = str(given["id"]).removesuffix("-wrong")
                self.problems[name] = self.problems.get(name, "") + data
        if self._open is None:
            return
        if self._open.kind == "textarea":
            self._open.value += data
        elif self._open.options and self._open.options[-1] == "\0":
            is_chosen = self._open.value == "\0"
            self._open.options[-1] = data.strip()
            if is_chosen:
                self._open.value = data.strip()

    def handle_endtag(self, tag: str) -> None:
        if tag == "option" and self._open is not None and self._open.options[-1] == "\0":
            self._open.value = "" if self._open.value == "\0" else self._open.value
            self._open.options[-1] = ""
        if tag in ("textarea", "select") and self._open is not None:
            if tag == "textarea":
                self._open.value = self._open.value.removeprefix("\n")
            self._open = None
        if tag == "form":
            self._form = None
        while self._stack:
            if self._stack.pop()[0] == tag:
                break

    def form(self, ending: str) -> WebForm:
        """Return the form that is posted to a path with this ending."""
        return next(form for form in self.forms if urlsplit(form.action).path.endswith(ending))

    @property
    def unlabelled(self) -> list[str]:
        """Fields without a label."""
        return [
            one.name
            for form in self.forms
            for one in form.fields
            if one.kind != "hidden"
            and one.attributes.get("id") not in self.labelled
            and f"{one.name}={one.value}" not in self.labelled
        ]


SCRIPT = ("do", "check")
"""What the script of a page sends in place of a button, while an answer is typed."""


class Browser:
    """It keeps cookies and follows redirects, as a browser does."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.path = ""

    def open(self, path: str, status: int = 200) -> Page:
        self.path = path
        return self._shown(self._client.get(path, headers={"accept": "text/html"}), status)

    def send(
        self,
        form: WebForm,
        button: str = "",
        *,
        status: int = 200,
        files: Mapping[str, bytes] | None = None,
        drop: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
    ) -> Page:
        """Send a form by one of its buttons, with files for its only file input. `drop`: fields that are left out."""
        pairs = [(one.name, one.value) for one in form.fields if one.is_on and one.kind != "file" and one.name]
        if button:
            pairs.append(next(pair for pair in (*form.buttons, SCRIPT) if pair[1] == button))
        data: dict[str, list[str]] = {}
        for name, value in pairs:
            if name not in drop:
                data.setdefault(name, []).append(value.replace("\n", "\r\n"))
        target = form.action or self.path
        sent = {"accept": "text/html", **(headers or {})}
        if form.method == "get":
            return self._shown(self._client.get(target, params=data, headers=sent), status)
        self.path = urlsplit(target).path
        chosen = [("sources", (name, content)) for name, content in (files or {}).items()]
        empty = [("sources", ("", b""))] if form.is_multipart and not chosen else []
        answer = self._client.post(target, data=data, files=[*chosen, *empty] or None, headers=sent)
        return self._shown(answer, status)

    def _shown(self, answer: Response, status: int) -> Page:
        while answer.status_code == 303 != status:
            self.path = answer.headers["location"]
            answer = self._client.get(self.path, headers={"accept": "text/html"})
        assert answer.status_code == status, (answer.status_code, answer.text[:2000])
        return Page(answer)
