"""The YAML nodes of a file of accounts, whole or one account at a time.

A node takes two hundred bytes for a text of ten, and the collector of garbage looks at all of them:
those of 40,000 accounts were 400 MB, and stopped the process for half a second. So the items of a
list at the first level are composed singly, and each is gone before the next. The parser keeps
nodes that an alias may repeat until the end.

The nodes are read, never objects made of them, so that a file can name no class and each right
knows its line. Nothing of a file is quoted in an error: it may be a secret.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import yaml

from aerobee.access.errors import AccountFileError

# A file of accounts has six levels.
_MAX_DEPTH: Final = 32
# Finds the quotes of a parser: a secret that begins with * or ! is an alias or a tag to it.
_QUOTED: Final = re.compile(r"""(['"]).{2,}\1""")


class NoYaml(AccountFileError):
    """A file that is no YAML: nothing that was read of it counts."""


class _TooDeep(yaml.YAMLError):
    problem = "it is nested too deeply"

    def __init__(self, mark: object) -> None:
        super().__init__(self.problem)
        self.problem_mark = mark


class _Shallow(yaml.composer.Composer):
    """Composes nodes, which may not be nested deeply: each level is one of Python's stack."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[attr-defined]
            raise _TooDeep(mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _Loader(_Shallow, yaml.SafeLoader):
    """The loader where PyYAML has no libyaml."""


def _loader() -> Any:
    """The class that reads a file; with libyaml, where it is installed, several times as quick."""
    if not yaml.__with_libyaml__:
        return _Loader

    class Quick(_Shallow, yaml.CSafeLoader):
        def __init__(self, stream: bytes) -> None:
            yaml.CSafeLoader.__init__(self, stream)
            _Shallow.__init__(self)

    return Quick


_LOADER: Final = _loader()
# The words of libyaml for the same.
_LIBYAML: Final = {"exceeded maximum nesting depth": _TooDeep.problem}


def compose(path: str, content: bytes) -> yaml.Node | None:
    """All nodes of a file, None for an empty one. Raises AccountFileError for what is no YAML."""
    with _no_yaml(path, content):
        node: yaml.Node | None = yaml.compose(content, Loader=_LOADER)
    return node


class ListNode:
    """A list at the first level; its items are there once, in order."""

    def __init__(self, items: Iterator[yaml.Node], start_mark: Any) -> None:
        self.items = items
        self.start_mark = start_mark


#: A member of a file: its name, and what it is.
Member: TypeAlias = tuple[yaml.Node, yaml.Node | ListNode]


def members_of(path: str, content: bytes, listed: str) -> Iterator[Member] | yaml.Node | None:
    """The members of a file that is a plain map, of which the one named `listed` may be a ListNode,
    whose items are taken before the next member; any other root as `compose` has it. Raises as
    `compose`, at any item."""
    with _no_yaml(path, content):
        loader = _LOADER(content)
        loader.get_event()  # where the stream begins
        if loader.check_event(yaml.StreamEndEvent):
            return None
        document = loader.get_event()
        if not _is_plain(loader, yaml.MappingStartEvent):
            return compose(path, content)
        loader.get_event()
        return _members(path, content, listed, loader, document)


def _members(
    path: str, content: bytes, listed: str, loader: Any, document: Any
) -> Iterator[Member]:
    loader.depth += 1
    while True:
        value: yaml.Node | ListNode
        with _no_yaml(path, content):
            if loader.check_event(yaml.MappingEndEvent):
                break
            key = loader.compose_node(None, None)
            if key.value == listed and _is_plain(loader, yaml.SequenceStartEvent):
                value = ListNode(_items(path, content, loader), loader.get_event().start_mark)
            else:
                value = loader.compose_node(None, None)
        yield key, value
        if isinstance(value, ListNode):
            for _ in value.items:
                pass
    with _no_yaml(path, content):
        loader.get_event()
        loader.get_event()  # where the document ends
        if not loader.check_event(yaml.StreamEndEvent):
            raise yaml.composer.ComposerError(
                "expected a single document in the stream",
                document.start_mark,
                "but found another document",
                loader.get_event().start_mark,
            )


def _items(path: str, content: bytes, loader: Any) -> Iterator[yaml.Node]:
    loader.depth += 1
    while True:
        with _no_yaml(path, content):
            if loader.check_event(yaml.SequenceEndEvent):
                break
            node = loader.compose_node(None, None)
        yield node
    loader.get_event()
    loader.depth -= 1


def _is_plain(loader: Any, kind: type[yaml.Event]) -> bool:
    """Whether that comes next, without a name for aliases and without a tag."""
    if not loader.check_event(kind):
        return False
    event = loader.peek_event()
    return event.anchor is None and event.tag is None


@contextmanager
def _no_yaml(path: str, content: bytes) -> Iterator[None]:
    try:
        yield
    except yaml.YAMLError as error:
        # The text of the error shows lines of the file, and those may hold secrets.
        mark = getattr(error, "problem_mark", None)
        if mark is None:
            raise NoYaml(f"{path}{_where_no_text(content)}") from None
        line = f":{mark.line + 1}"
        problem = getattr(error, "problem", None) or "it cannot be read"
        problem = _QUOTED.sub("...", _LIBYAML.get(problem, problem))
        raise NoYaml(f"{path}{line}: no YAML: {problem}") from None
    except (ValueError, OverflowError) as error:
        # Escapes and versions whose numbers mean nothing.
        raise NoYaml(f"{path}: no YAML: {type(error).__name__}") from None


def _where_no_text(content: bytes) -> str:
    """Says where a file that is no text goes wrong: the line and the place of the first wrong
    byte, which is not shown, as it may belong to a secret."""
    said = "the file must be UTF-8 text"
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return f": no YAML: it begins as UTF-16 and is damaged; {said}"
    what, at = "no UTF-8", len(content)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        at = error.start
        text = content[:at].decode()
    if (found := _Loader.NON_PRINTABLE.search(text)) is not None:
        what = "NUL" if found.group() == "\0" else "no printable character"
        at = len(text[: found.start()].encode())
    if at == len(content):
        return f": no YAML: it cannot be read; {said}"
    line_start = content.rfind(b"\n", 0, at) + 1
    line = content.count(b"\n", 0, at) + 1
    return f":{line}: no YAML: byte {at - line_start + 1} of this line is {what}; {said}"
