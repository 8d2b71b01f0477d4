"""Finds the containers that objects and modules keep: whatever may grow for as long as they live.

`found` reads the source of a module and names each container: `Class.attribute` for a member of an
object, a plain name for a container of the module, and `function()` for a function that remembers
its results. A value is a container if a display, a comprehension or a call of a container type
makes it, if its annotation is a container type, or if a method adds to it, wherever it comes from.
Constants (`Final`, or a name in capitals with members from the start) and the local values of
functions do not count. Compiled modules (.pyx) are read by their lines.

`tests/test_containers.py` holds that each has its line in `config/bounds/growth.py`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Types that grow, however they are imported.
TYPES = frozenset(
    (
        *("dict", "list", "set", "deque", "bytearray", "array", "Dict", "List", "Set"),
        *("Counter", "OrderedDict", "defaultdict", "ChainMap", "BytesIO", "StringIO"),
        *("Queue", "LifoQueue", "PriorityQueue", "SimpleQueue"),
        *("WeakSet", "WeakKeyDictionary", "WeakValueDictionary"),
        *("MutableMapping", "MutableSequence", "MutableSet"),
    )
)
_DISPLAYS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
#: Not `add` and `update`: much else has these, and sets are known by how they are made.
_ADDING = ("append", "appendleft", "extend", "setdefault", "insert")
_REMEMBERS = ("cache", "lru_cache")
_MEMBERS = re.compile(r"    cdef (?:public |readonly )?(?:dict|list|set|bytearray) (\w[\w, ]*)$")


def found(path: Path) -> set[str]:
    """The names of the containers of one module."""
    text = path.read_text()
    if path.suffix == ".pyx":
        return set(_of_lines(text))
    return set(_of_body(ast.parse(text).body, ""))


def _of_body(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for statement in body:
        match statement:
            case ast.ClassDef():
                yield from _of_body(statement.body, f"{prefix}{statement.name}.")
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if any(_name(one) in _REMEMBERS for one in statement.decorator_list):
                    yield f"{prefix}{statement.name}()"
                if prefix:
                    yield from (prefix + name for name in _of_self(statement))
                yield from _of_inner_classes(statement, prefix)
            case ast.If() | ast.Try() | ast.With():
                yield from _of_body(statement.body, prefix)
            case _:
                yield from (prefix + name for name in _assigned(statement, kept_by=None))


def _of_inner_classes(function: ast.AST, prefix: str) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.ClassDef):
            yield from _of_body(node.body, f"{prefix}{node.name}.")


def _of_self(method: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    arguments = [*method.args.posonlyargs, *method.args.args]
    if arguments:
        kept_by = arguments[0].arg
        for node in ast.walk(method):
            if isinstance(node, ast.stmt):
                yield from _assigned(node, kept_by)
            yield from filter(None, (_kept(one, kept_by) for one in _added_to(node)))


def _added_to(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.Assign(targets=targets):
            places = [one for one in targets if isinstance(one, ast.Subscript)]
            return [one.value for one in places if not isinstance(one.slice, ast.Slice)]
        case ast.Call(func=ast.Attribute(value=of, attr=name)) if name in _ADDING:
            return [of]
        case ast.Call(func=function, args=[of, *_]) if _name(function) == "heappush":
            return [of]
    return []


def _assigned(statement: ast.AST, kept_by: str | None) -> Iterator[str]:
    """Names of containers that a statement assigns: attributes of the object `kept_by`, or plain
    names."""
    match statement:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                    pairs = list(zip(target.elts, value.elts, strict=False))
                else:
                    pairs = [(target, value)]
                for one, of in pairs:
                    name = _kept(one, kept_by)
                    if name and _is_container(of) and not _is_constant(name, of, kept_by):
                        yield name
        case ast.AnnAssign(target=target, annotation=annotation, value=value):
            name = _kept(target, kept_by)
            is_one = _is_type(annotation) or (value is not None and _is_container(value))
            if (
                name
                and is_one
                and _name(annotation) != "Final"
                and not _is_constant(name, value, kept_by)
            ):
                yield name


def _kept(target: ast.expr, kept_by: str | None) -> str | None:
    if kept_by is None:
        return target.id if isinstance(target, ast.Name) else None
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        return target.attr if target.value.id == kept_by else None
    return None


def _is_constant(name: str, value: ast.expr | None, kept_by: str | None) -> bool:
    """A table written down, in capitals: nobody adds to it."""
    if kept_by is not None or not name.isupper() or value is None:
        return False
    is_empty = isinstance(value, ast.Dict) and not value.keys
    return not is_empty and not (isinstance(value, ast.List | ast.Set) and not value.elts)


def _is_container(value: ast.expr) -> bool:
    match value:
        case ast.IfExp():
            return _is_container(value.body) or _is_container(value.orelse)
        case ast.BoolOp():
            return any(map(_is_container, value.values))
        case ast.BinOp(left=left, op=ast.Mult()):
            return _is_container(left)
        case ast.Call(func=ast.Attribute(attr="fromkeys" | "copy", value=of)):
            return _name(of) in TYPES
        case ast.Call(func=ast.Name(id="field"), keywords=keywords):
            return any(
                one.arg == "default_factory" and _name(one.value) in TYPES for one in keywords
            )
        case ast.Call(func=function):
            return _name(function) in TYPES
    return isinstance(value, _DISPLAYS)


def _is_type(annotation: ast.expr) -> bool:
    """Whether one of its alternatives is a container."""
    match annotation:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _is_type(left) or _is_type(right)
        case ast.Constant(value=str() as text):
            return _is_type(ast.parse(text, mode="eval").body)
        case ast.Subscript(value=of):
            return _name(of) in TYPES
    return _name(annotation) in TYPES


def _name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=function) | ast.Subscript(value=function):
            return _name(function)
    return ""


def _of_lines(text: str) -> Iterator[str]:
    """Containers of a compiled module: declared members of its classes, and assigned attributes."""
    kept = ""
    for line in text.splitlines():
        if opened := re.match(r"cdef (?:\w+ )*?class (\w+)|class (\w+)", line):
            kept = opened[1] or opened[2]
        elif line and not line[0].isspace():
            kept = ""
        if not kept:
            continue
        if members := _MEMBERS.match(line):
            yield from (f"{kept}.{name.strip()}" for name in members[1].split(","))
        elif line.lstrip().startswith("self."):
            yield from (f"{kept}.{name}" for name in _given(line.strip()))


def _given(line: str) -> Iterator[str]:
    """Containers that a line gives to its object. A line that is no plain Python gives nothing."""
    with suppress(SyntaxError):
        yield from _assigned(ast.parse(line).body[0], "self")
