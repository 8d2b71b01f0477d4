"""The output of commands: data on standard output, everything else on standard error.

People get tables, `--json` gives what scripts can rely on: one JSON document for a listing, one
object a line for a stream of messages. Rich draws the tables of a terminal and is imported only
then; a pipe gets plain aligned text, which is not cut to any width.

This is the one door to the terminal: no other module of this folder writes to either stream (a test
ensures it), and what passes here is escaped. Texts come from outside (bodies, remarks, names of
properties), and a message must not be able to move somebody's cursor. JSON escapes such
characters itself, so the data stays exact.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final

from aerobee.printable import printable, printable_json

OK: Final = 0
REFUSED: Final = 1  # the broker said no, or there is no such thing
USAGE: Final = 2
CANNOT_CONNECT: Final = 3
CONFIGURATION: Final = 78

_NUMERIC: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?%?")


class CommandFailed(Exception):
    """Ends the command with a text on standard error and an exit code."""

    def __init__(self, text: str, code: int = REFUSED) -> None:
        super().__init__(text)
        self.code = code


def say(text: str) -> None:
    """One line for people, on standard error; one write, because the log is written there too."""
    sys.stderr.write(printable(text) + "\n")
    sys.stderr.flush()


def show(*lines: str, flush: bool = False) -> None:
    """Lines on standard output."""
    sys.stdout.write("".join(f"{printable(line)}\n" for line in lines))
    if flush:
        sys.stdout.flush()


def show_script(text: str) -> None:
    """A script of ours as it is: it holds nothing from outside, and its tabs mean something."""
    sys.stdout.write(text + "\n")


def begin_block(*, is_first: bool) -> None:
    """Begin what takes the place of what was shown before: on a cleared terminal, or in a pipe
    behind an empty line."""
    if sys.stdout.isatty():
        sys.stdout.write("\x1b[H\x1b[2J")
    elif not is_first:
        sys.stdout.write("\n")
    sys.stdout.flush()


def show_marked(mark: str, text: str, colour: str) -> None:
    """A line whose first word has a colour at a terminal that takes colours; `colour` is a number
    of SGR."""
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        sys.stdout.write(f"\x1b[{colour}m{printable(mark)}\x1b[0m{printable(text)}\n")
    else:
        show(mark + text)


def say_traceback(
    kind: type[BaseException], error: BaseException, frames: TracebackType | None
) -> None:
    """Print a bug's traceback, whose text may have what a peer sent, for `sys.excepthook`."""
    import traceback

    text = "".join(traceback.format_exception(kind, error, frames))
    sys.stderr.write(printable(text, keep="\n\t"))
    sys.stderr.flush()


def quieten_logs() -> None:
    """Turn our own log off: commands say themselves what went wrong. Lines of other loggers (of
    asyncio about a bug, for example) come out escaped."""
    import logging

    class Escaped(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return printable(super().format(record), keep="\n\t")

    if not logging.getLogger("aerobee").hasHandlers():
        logging.getLogger("aerobee").addHandler(logging.NullHandler())
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(Escaped())


def print_json(value: object, *, compact: bool = False) -> None:
    """A document, or with `compact` one line of a stream, which is flushed at once."""
    import json  # not for `--version`

    text = json.dumps(value, ensure_ascii=False, indent=None if compact else 2)
    # `show` does not fit: a document has lines of its own.
    sys.stdout.write(printable_json(text) + "\n")
    if compact:
        sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table for people; an empty one prints nothing at all."""
    texts = [[printable(_text(cell)) for cell in row] for row in rows]
    if not texts:
        return
    if sys.stdout.isatty():
        _print_rich(columns, texts)
    else:
        _print_plain(columns, texts)


def print_pairs(pairs: Mapping[str, object]) -> None:
    """Names and values, one a line."""
    texts = [(printable(name), _text(value)) for name, value in pairs.items()]
    width = max((len(name) for name, _ in texts), default=0)
    for name, text in texts:
        show(f"{name:<{width}}  {text}".rstrip())
    sys.stdout.flush()


def _text(cell: object) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return str(cell)


def _numeric_columns(rows: Sequence[Sequence[str]], count: int) -> list[bool]:
    """Columns of numbers only; they stand to the right."""
    return [
        all(_NUMERIC.fullmatch(row[index]) for row in rows if row[index]) for index in range(count)
    ]


def _print_plain(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    numeric = _numeric_columns(rows, len(columns))
    lines: list[Sequence[str]] = [[name.upper() for name in columns], *rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        show("  ".join(cells).rstrip())


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name, right in zip(columns, _numeric_columns(rows, len(columns)), strict=True):
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(no_color=bool(os.environ.get("NO_COLOR"))).print(table)


def body_fields(body: bytes) -> dict[str, Any]:
    """A message body in JSON: `body` is the text, or null beside `body_base64` for other bytes."""
    try:
        return {"body": body.decode("utf-8")}
    except UnicodeDecodeError:
        return bytes_fields(body)


def bytes_fields(body: bytes) -> dict[str, Any]:
    """A body in JSON that is no text."""
    import base64

    return {"body": None, "body_base64": base64.b64encode(body).decode("ascii")}


def body_text(body: bytes, limit: int) -> str:
    """A message body for people: text if it is text, else its size and first bytes."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return f"{len(body)} bytes 0x{body[: limit // 2].hex()}"
    return text if len(text) <= limit else f"{text[:limit]}… ({len(body)} bytes)"
