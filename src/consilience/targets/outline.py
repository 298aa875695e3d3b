"""The outline of a file: which lines define what, and which lines import. Python by `ast`, other languages by tree-sitter."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from consilience.domain.document_shares import Lines

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


@dataclass(frozen=True)
class FileOutline:
    """What a file defines and imports, by lines from 1. Both are empty for a language that cannot be read."""

    definitions: tuple[Definition, ...] = ()
    imports: tuple[Lines, ...] = ()

    def around(self, first: int, last: int) -> tuple[Definition, ...]:
        """Return the definitions that contain a range of lines or a part of it, the outermost first."""
        return tuple(d for d in self.definitions if d.first <= last and first <= d.last)


@lru_cache(maxsize=256)
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
    """Return an extended regular expression of Git for lines that define one of these names."""
    keywords = "def|class|function|func|fn|fun|struct|interface|enum|trait|type|union|record|protocol|message|service"
    return (
        rf"(^|[^A-Za-z0-9_.])({keywords})[ \t]+(\([^)]*\)[ \t]*)?({'|'.join(map(re.escape, names))})([^A-Za-z0-9_]|$)"
    )


# --- Python


def _python(text: str) -> FileOutline:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return FileOutline()
    return FileOutline(
        tuple(_python_definitions(tree.body, 0)),
        tuple((n.lineno, n.end_lineno or n.lineno) for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)),
    )


def _python_definitions(body: list[ast.stmt], depth: int, names: bool = True) -> Iterator[Definition]:
    """Yield what statements define; with `names`, what they assign, too, which in a function is local."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            documented = ast.get_docstring(node, clean=False) is not None
            inside = node.body[documented:] or node.body
            head = max(inside[0].lineno - 1, node.lineno) if inside else node.end_lineno or node.lineno
            yield Definition(node.name, first, node.end_lineno or node.lineno, head, depth)
            yield from _python_definitions(node.body, depth + 1, isinstance(node, ast.ClassDef))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and names:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    last = node.end_lineno or node.lineno
                    yield Definition(target.id, node.lineno, last, last, depth)
        else:
            for field in ("body", "orelse", "finalbody"):
                if isinstance(inner := getattr(node, field, None), list) and depth < 1:
                    yield from _python_definitions(inner, depth, names)


# --- other languages


def _other(language: str, text: str) -> FileOutline:
    parser = _parser(language)
    if parser is None:
        return FileOutline()
    tree = parser.parse(text.encode("utf-8", "replace"))
    definitions: list[Definition] = []
    imports: list[Lines] = []
    waiting = [(child, 0) for child in reversed(tree.root_node.children)]
    for _ in range(_MAX_NODES):
        if not waiting:
            break
        node, depth = waiting.pop()
        first, last = node.start_point[0] + 1, node.end_point[0] + (node.end_point[1] > 0)
        if _IMPORTING.search(node.type) and node.is_named:
            imports.append((first, max(first, last)))
            continue
        inner = depth
        if _DEFINING.search(node.type) and (name := _name_of(node)) and (not depth or node.type not in _TOP_LEVEL_ONLY):
            body = node.child_by_field_name("body")
            head = body.start_point[0] + 1 if body is not None else last
            definitions.append(Definition(name, first, max(first, last), min(head, max(first, last)), depth))
            inner = depth + 1
        waiting += [(child, inner) for child in reversed(node.children) if child.is_named]
    return FileOutline(tuple(definitions), tuple(imports))


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
