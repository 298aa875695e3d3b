"""The outline of a file: which lines define what, and which lines import. Python by `ast`, other languages by tree-sitter."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from consilience.domain.document_shares import Lines
from consilience.engine.sources import Document

MAX_PARSED_CHARS = 1_000_000
_MAX_NODES = 400_000

LANGUAGES: Mapping[str, str] = {
    **dict.fromkeys(("c", "h"), "c"),
    **dict.fromkeys(("cc", "cpp", "cxx", "hh", "hpp", "hxx"), "cpp"),
    **dict.fromkeys(("js", "mjs", "cjs", "jsx"), "javascript"),
    **dict.fromkeys(("ts", "mts", "cts"), "typescript"),
    **dict.fromkeys(("sh", "bash"), "bash"),
    **dict.fromkeys(("kt", "kts"), "kotlin"),
    **{name: name for name in ("go", "java", "lua", "php", "scala", "swift", "tsx", "dart")},
    "cs": "csharp",
    "rb": "ruby",
    "rs": "rust",
}
"""tree-sitter's name of a language, by the ending of a file."""

_DEFINING = re.compile(
    r"(?:^|_)(?:function|method|class|struct|enum|interface|trait|type|impl|module|namespace|object|protocol|constructor|macro|mod"
    r"|message|service|rpc|union|record)_?(?:\w*_)?(?:declaration|definition|item|specifier|spec|alias|signature)$"
    r"|^(?:method|class|module|singleton_method|message|service|rpc|enum|const_spec|var_spec|variable_declarator|preproc_def"
    r"|preproc_function_def|const_item|static_item)$"
)
"""Kinds of tree-sitter's nodes that define a name."""
_IMPORTING = re.compile(r"(?:^|_)(?:import|include|use|using|require|package|extern)(?:_\w*)?$")
_FUNCTION = re.compile(r"function|method|constructor|macro|rpc|_def$")
"""Of these, the ones whose inner names are local."""
_TOP_LEVEL_ONLY = frozenset({"variable_declarator", "const_spec", "var_spec"})
"""Kinds that are local variables elsewhere."""

_KEYWORDS = (
    r"(?:def|class|function|func|fn|fun|sub|struct|interface|enum|trait|type|union|record|protocol|module|namespace|message|service|rpc"
    r"|macro_rules!|#define)"
)
_WRITTEN = re.compile(rf"(?<![\w.$]){_KEYWORDS}\s+(?:\([^)]*\)\s*)?(?:self\.)?([A-Za-z_$][\w$]*)")
_ASSIGNED = re.compile(r"^(?:(?:export|pub|static|const|let|var)\s+)*([A-Za-z_]\w*)\s*(?::[^=]+)?=(?!=)")


@dataclass(frozen=True)
class Definition:
    """A function, a class or another thing with a name."""

    name: str
    first: int
    last: int
    head: int
    """Last line of what precedes its body: the signature, in Python with the docstring."""
    depth: int = 0
    """Definitions around it."""
    owner: str = ""
    """The class around it; "" for none."""
    is_local: bool = False
    """Whether it is within a function, so that nobody outside can name it."""
    is_function: bool = False


@dataclass(frozen=True)
class FileOutline:
    """What a file defines and imports, by lines from 1. Both are empty for a language that cannot be read."""

    definitions: tuple[Definition, ...] = ()
    """The outer before the inner ones."""
    imports: tuple[Lines, ...] = ()
    texts: tuple[Lines, ...] = ()
    """Docstrings and comments."""

    def around(self, first: int, last: int) -> tuple[Definition, ...]:
        """Return the definitions that contain a range of lines or a part of it, the outermost first."""
        innermost, parents = self._nesting
        found: set[int] = set()
        for n in set(innermost[first : last + 1]):
            while n >= 0 and n not in found:
                found.add(n)
                n = parents[n]
        return tuple(self.definitions[n] for n in sorted(found))

    @cached_property
    def _nesting(self) -> tuple[list[int], list[int]]:
        """The innermost definition of each line, and the one around each definition, as indices; -1 for none."""
        innermost = [-1] * (max((d.last for d in self.definitions), default=0) + 1)
        parents: list[int] = []
        for n, definition in enumerate(self.definitions):
            parent = innermost[definition.first]
            while parent >= 0 and self.definitions[parent].depth >= definition.depth:
                parent = parents[parent]
            parents.append(parent)
            innermost[definition.first : definition.last + 1] = [n] * (definition.last - definition.first + 1)
        return innermost, parents


@lru_cache(maxsize=4)
def outlines_of(documents: tuple[Document, ...]) -> Mapping[str, FileOutline]:
    """Return the outlines of all documents that are code, by id. Each is parsed once."""
    return {d.id: outline_of(d.name, d.text) for d in documents if is_code(d.name)}


def outline_of(name: str, text: str) -> FileOutline:
    """Return the outline of a text by the ending of its name. Never raises for a text."""
    ending = name.rpartition(".")[2].lower()
    if len(text) > MAX_PARSED_CHARS:
        return FileOutline()
    if ending in ("py", "pyi"):
        return _python(text)
    return _other(LANGUAGES[ending], text) if ending in LANGUAGES else FileOutline()


def is_code(name: str) -> bool:
    ending = name.rpartition(".")[2].lower()
    return ending in ("py", "pyi") or ending in LANGUAGES


def written_names(line: str) -> tuple[str, ...]:
    """Return the names that a line defines, in whatever language: after a keyword, or assigned at its beginning."""
    names = [match[1] for match in _WRITTEN.finditer(line)]
    assigned = _ASSIGNED.match(line)
    return (*names, *([assigned[1]] if assigned else []))


def definition_pattern(names: list[str]) -> str:
    """Return an extended regular expression of Git for lines that define one of these names, which are words."""
    keywords = "def|class|function|func|fn|fun|struct|interface|enum|trait|type|union|record|protocol|message|service"
    blank = "[[:blank:]]"
    return rf"(^|[^A-Za-z0-9_.])({keywords}){blank}+(\([^)]*\){blank}*)?({'|'.join(names)})([^A-Za-z0-9_]|$)"


# --- Python


def _python(text: str) -> FileOutline:
    try:
        with warnings.catch_warnings():  # such as of an escape sequence in the text: not about this program
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return FileOutline()
    return FileOutline(
        tuple(_python_definitions(tree.body)),
        tuple(_python_imports(tree.body)),
        tuple(_docstrings(tree)),
    )


def _python_imports(body: list[ast.stmt]) -> Iterator[Lines]:
    """Yield the imports of a module, also those on a condition."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node.lineno, node.end_lineno or node.lineno
        elif isinstance(node, ast.If | ast.Try):
            yield from _python_imports([*node.body, *node.orelse])


def _docstrings(tree: ast.Module) -> Iterator[Lines]:
    waiting: list[ast.Module | ast.stmt] = [tree]
    while waiting:
        body = getattr(waiting.pop(), "body", [])
        for node in body if isinstance(body, list) else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                waiting.append(node)
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                yield node.lineno, node.end_lineno or node.lineno


def _python_definitions(
    body: list[ast.stmt], depth: int = 0, owner: str = "", is_local: bool = False
) -> Iterator[Definition]:
    """Yield what statements define, and what they assign outside of functions."""
    for node in body:
        last = node.end_lineno or node.lineno
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            documented = ast.get_docstring(node, clean=False) is not None
            inside = node.body[documented:] or node.body
            head = max(inside[0].lineno - 1, node.lineno) if inside else last
            is_class = isinstance(node, ast.ClassDef)
            yield Definition(node.name, first, last, head, depth, owner, is_local, not is_class)
            yield from _python_definitions(
                node.body, depth + 1, node.name if is_class else "", is_local or not is_class
            )
        elif isinstance(node, ast.Assign | ast.AnnAssign) and not is_local:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    yield Definition(target.id, node.lineno, last, last, depth, owner)
        else:
            for field in ("body", "orelse", "finalbody"):
                if isinstance(inner := getattr(node, field, None), list) and depth < 1:
                    yield from _python_definitions(inner, depth, owner, is_local)


# --- other languages


def _other(language: str, text: str) -> FileOutline:
    parser = _parser(language)
    if parser is None:
        return FileOutline()
    tree = parser.parse(text.encode("utf-8", "replace"))
    definitions: list[Definition] = []
    imports: list[Lines] = []
    comments: list[Lines] = []
    waiting = [(child, 0, "", False) for child in reversed(tree.root_node.children)]
    for _ in range(_MAX_NODES):
        if not waiting:
            break
        node, depth, owner, is_local = waiting.pop()
        first, last = node.start_point[0] + 1, node.end_point[0] + (node.end_point[1] > 0)
        if _IMPORTING.search(node.type) and node.is_named:
            imports.append((first, max(first, last)))
            continue
        if "comment" in node.type:
            comments.append((first, max(first, last)))
        inner = depth, owner, is_local
        if _DEFINING.search(node.type) and (name := _name_of(node)) and (not depth or node.type not in _TOP_LEVEL_ONLY):
            body = node.child_by_field_name("body")
            head = min(body.start_point[0] + 1 if body is not None else last, max(first, last))
            is_function = _FUNCTION.search(node.type) is not None
            of = owner or _receiver(node)
            definitions.append(Definition(name, first, max(first, last), head, depth, of, is_local, is_function))
            inner = depth + 1, "" if is_function else name, is_local or is_function
        waiting += [(child, *inner) for child in reversed(node.children) if child.is_named]
    return FileOutline(tuple(definitions), tuple(imports), tuple(comments))


@lru_cache
def _parser(language: str) -> Any | None:
    """Return the parser of a language; None without the extra `code`."""
    try:
        from tree_sitter_language_pack import get_parser
    except ImportError:
        return None
    try:
        return get_parser(language)  # type: ignore[arg-type]
    except (LookupError, ImportError, OSError, ValueError):
        return None


def _receiver(node: Any) -> str:
    """Return the type in the receiver of a method of Go; "" for others."""
    receiver = node.child_by_field_name("receiver")
    words = re.findall(r"\w+", receiver.text.decode("utf-8", "replace")) if receiver is not None else []
    return words[-1] if words else ""


def _name_of(node: Any) -> str:
    """Return the name that a node defines; in C, it is in a declarator within declarators. `impl` has the name of its type."""
    found = node.child_by_field_name("name") or node.child_by_field_name(
        "type" if "impl" in node.type else "declarator"
    )
    found = found or next((child for child in node.children if child.type.endswith("identifier")), None)
    for _ in range(8):
        if found is None:
            return ""
        within = found.child_by_field_name("declarator") or found.child_by_field_name("name")
        if within is None:
            break
        found = within
    words = found.text.decode("utf-8", "replace") if found is not None and found.text else ""
    return re.split(r"\W", words.rpartition("::")[2].strip("&*~ "), maxsplit=1)[0][:100]
