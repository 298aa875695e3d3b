"""Templates of users: rendered within bounds of size and time, whatever they contain.

Operators, filters and calls estimate what they would make before they make it. Loops, outputs, comparisons and keys pass through
filters that `_bounded` puts around them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import wraps
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateRuntimeError, nodes, pass_context
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import SandboxedEnvironment

MAX_TEMPLATE_CHARS = 20_000_000
"""Max characters and list entries that the operations of one rendering make in total."""
MAX_TEMPLATE_SECONDS = 2.0
"""Max CPU time of one rendering."""
MAX_ENTRIES = 200_000
"""Max entries of one value, nested ones counted."""
MAX_ARGUMENT = 1_000_000
"""Max integer that a filter or a call is given."""
MAX_BITS = 10_000
"""Max size of a product or power of integers."""

_WIDENING = frozenset(
    {"center", "ljust", "rjust", "zfill", "indent", "format", "format_map", "expandtabs", "tojson", "batch", "slice"}
)
"""Filters and methods whose result grows with an integer that they are given."""
_SLOW = frozenset({"pprint", "striptags", "title", "wordwrap"})
"""Filters that may take quadratic time, on at most `MAX_SLOW_CHARS`."""
MAX_SLOW_CHARS = 20_000
_REMOVED_FILTERS = ("random", "urlize")
"""A random prompt cannot be replayed; links are found in quadratic time."""
_INTERNAL = ("_bounded", "_counted", "_written", "_concatenated")
_DIGITS = re.compile(r"\d+")


class _Budget:
    """What one rendering may still make."""

    def __init__(self) -> None:
        self._chars = MAX_TEMPLATE_CHARS
        self._end = time.thread_time() + MAX_TEMPLATE_SECONDS

    def check(self, chars: int) -> None:
        """Raise `TemplateRuntimeError` if an operation would make more than is left, or if the time is over."""
        if chars > self._chars:
            raise TemplateRuntimeError(f"it would make more than {MAX_TEMPLATE_CHARS:,} characters")
        if time.thread_time() > self._end:
            raise TemplateRuntimeError(f"it takes longer than {MAX_TEMPLATE_SECONDS:.0f} seconds")

    def spend(self, result: object) -> None:
        """Count what an operation has made."""
        chars = len(result) if isinstance(result, str | list | tuple) else 1
        self.check(chars)
        self._chars -= chars


_budget: ContextVar[_Budget] = ContextVar("_budget")


def render_bounded(template: Template, values: Mapping[str, object]) -> str:
    """Render a template of a `BoundedEnvironment`. Raises `TemplateRuntimeError` at a bound."""
    token = _budget.set(_Budget())
    try:
        return template.render(**values)
    except RecursionError:
        raise TemplateRuntimeError("its macros, loops or values are nested too deeply") from None
    finally:
        _budget.reset(token)


def _size(value: object) -> int:
    """Return the characters and entries in a value, all nested ones counted. Raises `TemplateRuntimeError` above the bound."""
    total, entries, inner = 0, 0, [value]
    while inner:
        item = inner.pop()
        total += 1
        entries += 1
        if isinstance(item, str | bytes | range):
            total += len(item)
        elif isinstance(item, list | tuple | set | frozenset):
            inner.extend(item)
        elif isinstance(item, dict):
            inner.extend((*item.keys(), *item.values()))
        elif isinstance(item, Collection):
            total += len(item)
        if entries + len(inner) > MAX_ENTRIES:
            raise TemplateRuntimeError(f"it makes a value of more than {MAX_ENTRIES:,} entries")
    return total


def _integers(value: object) -> Iterator[int]:
    if isinstance(value, int):
        yield abs(value)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _integers(item)
    elif isinstance(value, dict):
        yield from _integers(list(value.values()))


def _check_operation(name: str, first: object, more: Iterable[object]) -> None:
    """Raise `TemplateRuntimeError` if an operation on `first` with further operands would make too much."""
    budget, more = _budget.get(), list(more)
    largest = max((_size(item) for item in more), default=1)
    integers = max(_integers(more), default=0)
    if integers > MAX_ARGUMENT:
        raise TemplateRuntimeError(f"{name} is given {integers:,}; at most {MAX_ARGUMENT:,} is allowed")
    if name in _SLOW and _size(first) > MAX_SLOW_CHARS + 1:
        raise TemplateRuntimeError(f"{name} is given more than {MAX_SLOW_CHARS:,} characters")
    if name in _WIDENING:
        widths = [int(digits[-12:]) for digits in _DIGITS.findall(first)] if isinstance(first, str) else []
        largest = max(largest, integers, *widths, 1) if "format" in name else max(largest, integers)
    budget.check(_size(first) * largest if more else _size(first))


def _checked_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    passed = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def checked(*args: Any, **named: Any) -> Any:
        first, *more = args[passed:] or [None]
        _check_operation(name, first, [*more, *named.values()])
        return _made(function(*args, **named))

    return checked


def _made(result: Any) -> Any:
    """Count a result. A generator becomes a list, which has a size."""
    if isinstance(result, Iterator) and not isinstance(result, LoopContext):
        return list(_counting(result))
    _budget.get().spend(result)
    return result


def _counting(items: Iterable[Any]) -> Iterator[Any]:
    budget = _budget.get()
    for item in items:
        budget.spend(None)
        yield item


@pass_context  # so that nothing is computed when the template is compiled
def _counted(context: Context, items: Iterable[Any]) -> Iterator[Any]:
    return _counting(items)


@pass_context
def _sized(context: Context, value: Any) -> Any:
    _budget.get().check(_size(value))
    return value


@pass_context
def _written(context: Context, value: Any) -> str:
    _size(value)
    text = value if isinstance(value, str) else str(value)
    _budget.get().spend(text)
    return text


@pass_context
def _concatenated(context: Context, values: list[Any]) -> str:
    _budget.get().check(_size(values))
    text = "".join(map(str, values))
    _budget.get().spend(text)
    return text


def _passed(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _bounded(node: nodes.Node) -> None:
    """Pass what a template iterates over, writes, concatenates, compares and uses as a key through the filters of these names."""
    for child in node.iter_child_nodes():
        _bounded(child)
    for name, value in list(node.iter_fields()):
        if isinstance(value, nodes.Concat):
            setattr(node, name, _passed(nodes.List(value.nodes, lineno=value.lineno), "_concatenated"))
        elif isinstance(value, list):
            value[:] = [
                _passed(nodes.List(item.nodes, lineno=item.lineno), "_concatenated")
                if isinstance(item, nodes.Concat)
                else item
                for item in value
            ]
    if isinstance(node, nodes.For):
        node.iter = _passed(node.iter, "_counted")
    elif isinstance(node, nodes.Output):
        node.nodes = [_passed(_constant(item), "_written") for item in node.nodes]
    elif isinstance(node, nodes.Compare | nodes.Operand):
        node.expr = _passed(node.expr, "_bounded")
    elif isinstance(node, nodes.Pair):
        node.key = _passed(node.key, "_bounded")
    elif isinstance(node, nodes.Getitem) and not isinstance(node.arg, nodes.Slice):
        node.arg = _passed(node.arg, "_bounded")


def _constant(item: nodes.Expr) -> nodes.Expr:
    return nodes.Const(item.data, lineno=item.lineno) if isinstance(item, nodes.TemplateData) else item


class BoundedEnvironment(SandboxedEnvironment):
    """Renders as `SandboxedEnvironment` does, with bounds: render its templates with `render_bounded`."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self) -> None:
        super().__init__(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        del self.globals["lipsum"]
        for name in _REMOVED_FILTERS:
            del self.filters[name]
        filters: Mapping[str, Any] = self.filters
        tests: Mapping[str, Any] = self.tests
        self.filters = {name: _checked_filter(name, function) for name, function in filters.items()}
        self.tests = {name: _checked_filter(name, function) for name, function in tests.items()}
        self.filters |= dict(zip(_INTERNAL, (_sized, _counted, _written, _concatenated), strict=True))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        _bounded(template)
        return template

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = _budget.get()
        if operator == "%" and isinstance(left, str):
            widths = [int(digits[-12:]) for digits in _DIGITS.findall(left)]
            widest = max([_size(right), *_integers((right,)), *widths])
            budget.check(len(left) + (left.count("%") + 1) * widest)
        elif isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > MAX_BITS and operator != "%":
                raise TemplateRuntimeError(f"it calculates with numbers of more than {MAX_BITS:,} bits")
        elif operator == "*" and (isinstance(left, int) or isinstance(right, int)):
            number, other = (left, right) if isinstance(left, int) else (right, left)
            budget.check(max(number, 0) * (_size(other) if hasattr(other, "__len__") else 1))
        elif operator == "+":
            budget.check(_size(left) + _size(right))
        return _made(super().call_binop(context, operator, left, right))

    def call(self, context: Context, function: Any, /, *args: Any, **named: Any) -> Any:
        owner = getattr(getattr(function, "__wrapped__", function), "__self__", None)  # `str.format` comes wrapped
        if not isinstance(function, Macro | LoopContext | type):
            first, *more = args or (None,) if owner is None else (owner, *args)
            _check_operation(getattr(function, "__name__", "a call"), first, [*more, *named.values()])
        return _made(super().call(context, function, *args, **named))
