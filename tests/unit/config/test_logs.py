"""Log forms, the queue, and summing of repeated events."""

import io
import json
import logging
import os
import re
import signal
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from aerobee.config import logs
from aerobee.config.logs import (
    JournalFormatter,
    JsonFormatter,
    Logging,
    Repeats,
    TextFormatter,
    formatter_for,
)

LOG = logging.getLogger("aerobee.test")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Stuck(io.StringIO):
    """A reader that takes nothing until told to."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.go = threading.Event()

    def write(self, text: str) -> int:
        self.reached.set()
        self.go.wait(10)
        return super().write(text)


def record(text: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("aerobee.store", logging.WARNING, "", 0, text, arguments, None)


def test_json_lines_hold_event_and_fields() -> None:
    line = JsonFormatter().format(record('store damaged offset=%d path="a b" n=1', 7))
    fields = json.loads(line)
    assert fields["event"] == "store damaged"
    assert (fields["offset"], fields["path"], fields["n"]) == (7, "a b", 1)
    assert (fields["level"], fields["logger"]) == ("warning", "aerobee.store")
    assert fields["ts"].endswith("Z")


@pytest.mark.parametrize(
    ("form", "expected"),
    [("text", "shard-1 store"), ("json", '"part": "shard-1"'), ("journal", "<4>shard-1 store:")],
)
def test_each_line_says_its_part_where_several_write_one_log(form: str, expected: str) -> None:
    line = formatter_for(form, io.StringIO(), {}, "shard-1").format(record("torn tail cut"))
    assert expected in line
    assert "shard-1" not in formatter_for(form, io.StringIO(), {}).format(record("torn tail cut"))


def test_a_reason_of_several_words_stays_one_field() -> None:
    text = "torn tail cut at=%d reason=%s bytes=%d"
    fields = json.loads(JsonFormatter().format(record(text, 7, "bad body CRC", 3)))
    assert fields["event"] == "torn tail cut"
    assert (fields["at"], fields["reason"], fields["bytes"]) == (7, "bad body CRC", 3)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ("", ""),
        ("-1", -1),
        ("0.31", 0.31),
        ("1e-05", 1e-05),
        ("True", True),
        ("False", False),
        ('"4"', "4"),
        ("'4'", "4"),
        ("007", "007"),
        ("1.2.3.4", "1.2.3.4"),
        ("12e5", "12e5"),
        ("true", "true"),
        ("9" * 19, "9" * 19),
        ("4 of 5", "4 of 5"),
        ("'a b'", "a b"),
        ("'a' is not b", "'a' is not b"),
        ("it's", "it's"),
        ("'", "'"),
    ],
)
def test_values_have_the_type_they_plainly_are(text: str, value: object) -> None:
    for after in ("", " next=1"):
        fields = json.loads(JsonFormatter().format(record(f"x value={text}{after}")))
        assert (fields["value"], type(fields["value"]), fields["event"]) == (
            value,
            type(value),
            "x",
        )
        assert fields.get("next", 1) == 1


def test_fields_of_an_event_neither_replace_ours_nor_get_lost() -> None:
    text = "x ts=1 level=debug event=y logger=z part=p twice=1 twice=2 level_=3"
    fields = json.loads(JsonFormatter("shard-0").format(record(text)))
    ours = {name: fields.pop(name) for name in ("ts", "level", "event", "logger", "part")}
    assert (ours["level"], ours["event"], ours["part"]) == ("warning", "x", "shard-0")
    assert fields == {
        "ts_": 1, "level_": "debug", "event_": "y", "logger_": "z", "part_": "p",
        "twice": 1, "twice_": 2, "level__": 3,
    }  # fmt: skip


def test_a_field_that_a_peer_repeats_makes_no_line_that_is_much_longer() -> None:
    """Each got one `_` more than the one before: 4,000 of them were a line of 8 MB, after 8 s in
    which nobody was served."""
    text = f"registration refused why={'n=1 ' * 4_000}n_=2 n_2=3"
    line = JsonFormatter().format(record(text))
    fields = json.loads(line)
    assert (fields["n"], fields["n_"], fields["n_2"], fields["n_3998"]) == (1, 1, 1, 1)
    assert (fields["n__"], fields["n_2_"]) == (2, 3)
    assert len(line) < 4 * len(text)


def test_no_event_of_ours_has_a_field_that_every_line_has() -> None:
    """Such a field would have another name in JSON than in text."""
    ours = re.compile(r"\b(ts|level|event|logger|part|suppressed|traceback)=%")
    root = Path(logs.__file__).resolve().parent.parent
    wrong = []
    folders = ["access", "broker", "client", "config", "nameserver", "remoting", "shards", "store"]
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            wrong += [f"{path.name}: {found[0]}" for found in ours.finditer(path.read_text())]
    assert wrong == []


@pytest.mark.parametrize("evil", ["\x9b2J", "\u202e", "\u2066", "\u061c", "\x7f", "\ud800"])
def test_what_a_terminal_obeys_is_escaped_in_events_and_tracebacks(evil: str) -> None:
    try:
        raise RuntimeError(f"boom {evil}")
    except RuntimeError:
        event = record("name=%s", f"a{evil}b")
        event.exc_info = sys.exc_info()
    for formatter in (TextFormatter(colour=False), JournalFormatter(), JsonFormatter()):
        line = formatter.format(event)
        assert evil[0] not in line
        assert "boom" in line


def test_a_child_by_fork_writes_its_events_itself() -> None:
    """Its copy of the queue has no writer, and may be locked for ever."""
    with tempfile.TemporaryFile("w+") as stream:
        with Logging("INFO", "text", stream) as running:
            running._handler.lines.mutex.acquire()
            child = os.fork()
            if not child:
                signal.alarm(5)
                logging.getLogger("aerobee.x").warning("of the child")
                running.__exit__()
                os._exit(0)
            _, status = os.waitpid(child, 0)
            running._handler.lines.mutex.release()
        assert status == 0
        stream.seek(0)
        assert "of the child" in stream.read()


def test_a_line_break_from_outside_cannot_forge_an_event() -> None:
    for formatter in (TextFormatter(colour=False), JournalFormatter(), JsonFormatter()):
        assert "\n" not in formatter.format(record("name=%s", "a\n<0>forged\x1b[2J"))
        assert "\x1b" not in formatter.format(record("name=%s", "a\n<0>forged\x1b[2J"))


def test_journal_lines_start_with_their_priority() -> None:
    assert JournalFormatter().format(record("full")) == "<4>store: full"


def test_every_line_of_a_traceback_has_the_priority() -> None:
    try:
        raise RuntimeError("boom")
    except RuntimeError as error:
        event = record("failed")
        event.exc_info = (RuntimeError, error, error.__traceback__)
    lines = JournalFormatter().format(event).split("\n")
    assert len(lines) > 2
    assert all(line.startswith("<4>") for line in lines)


def test_auto_is_colour_on_a_terminal_and_json_otherwise() -> None:
    coloured = formatter_for("auto", Terminal(), {})
    plain = formatter_for("auto", Terminal(), {"NO_COLOR": "1"})
    assert "\x1b[" in coloured.format(record("x"))
    assert "\x1b[" not in plain.format(record("x"))
    assert isinstance(formatter_for("auto", io.StringIO(), {}), JsonFormatter)


def test_events_arrive_in_order_and_the_end_writes_out_everything() -> None:
    stream = io.StringIO()
    with Logging("INFO", "text", stream):
        for number in range(5):
            LOG.info("event n=%d", number)
        LOG.debug("not this one")
    lines = stream.getvalue().splitlines()
    assert [line.rpartition("n=")[2] for line in lines] == ["0", "1", "2", "3", "4"]


def test_a_slow_reader_loses_events_but_holds_nobody_up() -> None:
    stream = Stuck()
    with Logging("INFO", "text", stream, queue_events=100) as logging_now:
        LOG.info("first")
        assert stream.reached.wait(10)
        for number in range(200):
            LOG.info(f"other {number}")
        dropped = logging_now.dropped
        stream.go.set()
    assert dropped == 100
    assert "other 99" in stream.getvalue()


def test_repeated_events_are_counted_not_written() -> None:
    repeats = Repeats(burst=2, window_s=10.0)
    event = record("refused peer=%s", "a")
    assert [repeats.admit(event, now) for now in (0.0, 1.0, 2.0, 3.0)] == [0, 0, -1, -1]
    assert repeats.admit(event, 11.0) == 2
    assert repeats.admit(record("another"), 11.0) == 0


def test_tracebacks_are_never_held_back() -> None:
    repeats = Repeats(burst=0)
    event = record("failed")
    event.exc_info = (RuntimeError, RuntimeError("x"), None)
    assert repeats.admit(event, 0.0) == 0


def test_events_that_must_each_be_known_are_never_held_back() -> None:
    stream = io.StringIO()
    with Logging("INFO", "text", stream):
        for number in range(100):
            LOG.error("damaged at=%d", number, extra={"each": True})
    assert all(f"at={number}" in stream.getvalue() for number in range(100))


def test_handlers_of_before_come_back() -> None:
    root = logging.getLogger()
    before = root.handlers[:]
    with Logging("INFO", "json", io.StringIO()):
        assert root.handlers != before
    assert root.handlers == before
