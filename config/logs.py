"""Logging: who writes, in which form, and why a slow terminal does not stop the broker.

Modules log through the standard library, one event a line: words that stay the same, then
`key=value` pairs. A record is formatted and put into a bounded queue by the thread that logs; one
writer thread takes it to standard error. When the reader of the log is too slow the queue is full,
and events are dropped and counted rather than waited for.

Repeated events are summed: after `_BURST` of one event (logger and message template) within
`_WINDOW_S` the following ones are counted only, and the next one let through says
`suppressed=412`. Events with a traceback, debugging, and those of which each one has to be known
(logged with `extra={"each": True}`, their number bounded by who logs them) are never held back.

What of a record came from outside cannot move a reader's cursor, turn a line round or forge a
second event: such characters are escapes in all three forms, those of tracebacks too.

Three forms: aligned text (coloured on a terminal), one JSON object a line, and text with the
priority prefix of journald, which adds the time itself.
"""

import json
import logging
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Container, Mapping, Sequence
from typing import Any, Final, Self, TextIO

from aerobee.printable import printable, printable_json

_BURST: Final = 20
_WINDOW_S: Final = 10.0
_EVENTS_TRACKED: Final = 1000

_NAME: Final = r"[a-z_][a-z0-9_]*="
# A value without quotes goes on up to the next name: reasons are sentences, and may begin with a
# quoted word. Single quotes around all of a value are those of %r. A value may be empty where the
# next name or the end follows.
_FIELD: Final = re.compile(
    rf"""(?:^|\s)({_NAME[:-1]})=("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'(?=\s+{_NAME}|\s*$)"""
    rf"""|\S+(?:\s+(?!{_NAME})\S+)*|(?=\s+{_NAME}|\s*$))"""
)
# The form in which Python writes integers. A number with leading zeros is a name; 18 digits fit
# what readers of JSON take for a whole number.
_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_FLOAT: Final = re.compile(
    r"-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,18}(?:e[+-][0-9]{2})?|e[+-][0-9]{2})"
)
_COLOURS: Final = {"DEBUG": "2", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}
# syslog priorities, as sd-daemon(3) has them
_PRIORITIES: Final = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}


class Logging:
    """Logging of this process while the `with` lasts; leaving it writes out what is queued."""

    def __init__(
        self,
        level: str = "INFO",
        form: str = "auto",
        stream: TextIO | None = None,
        *,
        queue_events: int = 10_000,
        environ: Mapping[str, str] | None = None,
        part: str = "",
    ) -> None:
        """`form` is a value of `log.format`; `stream` is standard error unless given. `part` stands
        in each line where several processes write one log."""
        self._stream = stream or sys.stderr
        environ = os.environ if environ is None else environ
        formatter = formatter_for(form, self._stream, environ, part)
        self._handler = _QueueHandler(formatter, queue_events, self._stream)
        self._level = level
        self._writer = threading.Thread(target=self._write_all, name="log-writer", daemon=True)

    @property
    def dropped(self) -> int:
        """Events lost because the reader of the log was too slow."""
        return self._handler.dropped

    def __enter__(self) -> Self:
        root = logging.getLogger()
        self._previous = (root.handlers[:], root.level)
        root.handlers[:] = [self._handler]
        root.setLevel(self._level)
        logging.captureWarnings(True)
        self._writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        root = logging.getLogger()
        handlers, level = self._previous
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.captureWarnings(False)
        if self._handler.is_inherited:
            return
        self._handler.finish()
        self._writer.join(timeout=5.0)

    def _write_all(self) -> None:
        """The writer thread: write what there is, flush when the queue is empty."""
        lines = self._handler.lines
        while (line := lines.get()) is not None:
            try:
                self._stream.write(line)
                if lines.empty():
                    self._stream.flush()
            except (OSError, ValueError):
                # Nobody reads the log any more; the broker goes on without.
                self._handler.dropped += 1


def announce(lines: Sequence[str], logger: str, event: str, *fields: object) -> None:
    """Say to people what begins now: `lines`, at once and together on standard error. Where the log
    there is JSON each of its lines must be, so the event with its fields is a line of it instead,
    whatever the log's level."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _QueueHandler) and isinstance(handler.formatter, JsonFormatter):
            handler.handle(logging.LogRecord(logger, logging.INFO, "", 0, event, fields, None))
            return
    # One write: the log's own thread writes there too, and would come between the lines.
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()


class Repeats:
    """Counts events by (logger, template) and lets a burst of each through per window.

    Called by every logging thread, under the handler's lock. Bounded: when more than
    `_EVENTS_TRACKED` different events are known the counts start again.
    """

    def __init__(self, burst: int = _BURST, window_s: float = _WINDOW_S) -> None:
        self._burst = burst
        self._window_s = window_s
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def admit(self, record: logging.LogRecord, now: float) -> int:
        """How many like it were held back before this one; -1 when this one is held back too."""
        if record.exc_info or record.levelno <= logging.DEBUG or hasattr(record, "each"):
            return 0
        key = (record.name, str(record.msg))
        started, count = self._seen.get(key, (now, 0))
        held_back = 0
        if now - started >= self._window_s:
            held_back = max(0, count - self._burst)
            started, count = now, 0
        if len(self._seen) >= _EVENTS_TRACKED and key not in self._seen:
            self._seen.clear()
        self._seen[key] = (started, count + 1)
        return held_back if count < self._burst else -1


class _QueueHandler(logging.Handler):
    """Formats on the logging thread, so that arguments may change afterwards; never waits.

    In a child by fork() there is no writer: there each event is written at once, as it comes.
    """

    def __init__(self, formatter: logging.Formatter, queue_events: int, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._process = os.getpid()
        self.setFormatter(formatter)
        self.lines: queue.Queue[str | None] = queue.Queue(queue_events)
        self.dropped = 0
        self._reported = 0
        self._repeats = Repeats()

    def emit(self, record: logging.LogRecord) -> None:
        suppressed = self._repeats.admit(record, time.monotonic())
        if suppressed < 0:
            return
        if suppressed:
            record.suppressed = suppressed
        try:
            line = self.format(record) + "\n"
        except (TypeError, ValueError):
            self.handleError(record)
            return
        if self.is_inherited:
            self._stream.write(line)
            self._stream.flush()
        else:
            self._put(line)

    @property
    def is_inherited(self) -> bool:
        """Whether the writer is in another process, of which this one is a child."""
        return os.getpid() != self._process

    def _put(self, line: str) -> None:
        """Only the handler's lock holder puts and the writer only takes: room stays room."""
        if self.lines.full():
            self.dropped += 1
            return
        if self.dropped > self._reported:
            line = self._loss_line(self.dropped - self._reported) + line
        self.lines.put_nowait(line)

    def _loss_line(self, lost: int) -> str:
        self._reported += lost
        text = "log events dropped count=%d"
        record = logging.LogRecord("aerobee.log", logging.WARNING, "", 0, text, (lost,), None)
        return self.format(record) + "\n"

    def finish(self) -> None:
        """Let the writer end after what is queued; waits a little for room if the queue is full."""
        try:
            self.lines.put(None, timeout=5.0)
        except queue.Full:
            return


class TextFormatter(logging.Formatter):
    """`03:17:09.512 info  broker    ready in=0.31`, coloured if asked."""

    default_msec_format = "%s.%03d"

    def __init__(self, colour: bool, part: str = "") -> None:
        super().__init__()
        self._colour = colour
        self._part = part

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = f"{record.levelname.lower():<8}"
        if self._colour:
            level = f"\x1b[{_COLOURS.get(record.levelname, '0')}m{level}\x1b[0m"
        name = _name(record, self._part)
        return f"{moment}.{int(record.msecs):03d} {level} {name:<12} {message_of(record, self)}"


class JournalFormatter(logging.Formatter):
    """journald takes time and unit itself; each line gets the priority in front."""

    def __init__(self, part: str = "") -> None:
        super().__init__()
        self._part = part

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"<{_PRIORITIES.get(record.levelname, 6)}>"
        name = _name(record, self._part)
        lines = f"{name}: {message_of(record, self)}".split("\n")
        return "\n".join(prefix + line for line in lines)


class JsonFormatter(logging.Formatter):
    """One object a line: ts, level, event, logger, then the event's `key=value` pairs.

    What is plainly a number, True or False has that type; in quotes it is a text. A pair whose key
    is one of ours, or stands twice, is not lost: it gets a `_` behind its key, and further ones a
    number as well.
    """

    def __init__(self, part: str = "") -> None:
        super().__init__()
        self._part = {"part": part} if part else {}

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        fields: dict[str, Any] = {
            "ts": f"{_utc(record.created)}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": _FIELD.sub("", text).strip() or text,
            "logger": record.name,
            **self._part,
        }
        if hasattr(record, "suppressed"):
            fields["suppressed"] = record.suppressed
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        # A peer's text may hold thousands of pairs with one key: the last number of each is known.
        numbers: dict[str, int] = {}
        for key, value in _FIELD.findall(text):
            fields[_free_key(key, fields, numbers)] = _json_value(value)
        return printable_json(json.dumps(fields, ensure_ascii=False))


def _free_key(key: str, taken: Container[str], numbers: dict[str, int]) -> str:
    if key not in taken:
        return key
    free = f"{key}_"
    while free in taken:
        numbers[key] = numbers.get(key, 1) + 1
        free = f"{key}_{numbers[key]}"
    return free


def _name(record: logging.LogRecord, part: str) -> str:
    name = record.name.removeprefix("aerobee.")
    return f"{part} {name}" if part else name


def formatter_for(
    form: str, stream: TextIO, environ: Mapping[str, str], part: str = ""
) -> logging.Formatter:
    """The formatter of a `log.format` value; "auto" looks at the stream and the environment."""
    terminal = stream.isatty()
    if form == "auto":
        form = "text" if terminal else "journal" if _is_journal(stream, environ) else "json"
    if form == "text":
        return TextFormatter(terminal and not environ.get("NO_COLOR"), part)
    return JournalFormatter(part) if form == "journal" else JsonFormatter(part)


def message_of(record: logging.LogRecord, formatter: logging.Formatter) -> str:
    """The event's text with control characters escaped (tabs stay), then suppression and traceback.

    Names and remarks come from outside: a line break in one must not forge a second event.
    """
    text = printable(record.getMessage(), keep="\t")
    if hasattr(record, "suppressed"):
        text = f"{text} suppressed={record.suppressed}"
    if record.exc_info:
        traceback = printable(formatter.formatException(record.exc_info), keep="\n\t")
        text = f"{text}\n{traceback}"
    return text


def _json_value(text: str) -> str | int | float | bool:
    """A field's value as JSON has it; quotes around it are not part of it."""
    if text in ("True", "False"):
        return text == "True"
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    return text


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def _is_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """systemd names device and inode of the stream it connected to the journal."""
    device, _, inode = environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return (device, inode) == (str(status.st_dev), str(status.st_ino))
