"""Tables, JSON, and texts that come from outside."""

import ast
import io
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from aerobee.cli.printing import output
from aerobee.cli.printing.message_text import Printer, full_fields, json_fields, line
from aerobee.cli.printing.output import (
    CommandFailed,
    body_fields,
    body_text,
    print_json,
    print_pairs,
    print_table,
)
from aerobee.cli.printing.times import exact_time, is_offset, parse_time, time_text
from aerobee.client.message import ReceivedMessage, received
from aerobee.printable import printable
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.message.record import StoreMessage, decode_record, encode_record
from aerobee.protocol.message.record_layout import pack_host


def message(body: bytes = b"hello", **changes: object) -> ReceivedMessage:
    fields: dict[str, object] = {
        "topic": "orders",
        "body": body,
        "tags": "new",
        "keys": ("k1", "k2"),
        "properties": {"TAGS": "new", "KEYS": "k1 k2"},
        "msg_id": "ID",
        "queue": MessageQueue("orders", "broker-a", 3),
        "queue_offset": 15,
        "log_offset": 4096,
        "flag": 0,
        "sys_flag": 0,
        "compressed": False,
        "reconsume_times": 0,
        "born_timestamp_ms": 1_700_000_000_000,
        "born_host": ("::1", 1),
        "store_timestamp_ms": 1_700_000_000_123,
        "store_host": ("127.0.0.1", 10911),
        "size": 200,
    }
    return ReceivedMessage(**{**fields, **changes})  # type: ignore[arg-type]


def test_plain_tables_align_numbers_right_and_cut_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(("topic", "queues"), [("a" * 200, 4), ("b", 1024)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "a" * 200 + "       4"
    assert lines[2].endswith(" 1024")


def test_an_empty_table_is_no_output(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("topic",), [])
    assert capsys.readouterr().out == ""


def test_tables_of_a_terminal_obey_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    texts = []
    monkeypatch.setenv("TERM", "xterm-256color")
    for value in ("", "1"):
        monkeypatch.setenv("NO_COLOR", value)
        terminal = Terminal()
        monkeypatch.setattr(output.sys, "stdout", terminal)
        print_table(("topic", "queues"), [("[red]orders", 4)])
        texts.append(terminal.getvalue())
    assert "[red]orders" in texts[1]
    assert "\x1b[3" not in texts[1]


def test_control_characters_do_not_reach_a_terminal() -> None:
    assert printable("a\x1b[2J\nb\u202e") == "a\\x1b[2J\\x0ab\\u202e"
    assert "\x1b" not in line(message(b"\x1b[2J"))


DANGEROUS = (
    "\x00\x07\x1b[2J\x7f\x9b31m\u061c\u200e\u200f\u2028\u202e\u2066\u2069\ufeff\ud800\U000e0041"
    "\xad\u180e\u200b\U0001d173"
)
_OBEYED = re.compile(f"[{DANGEROUS.replace('[2J', '').replace('31m', '')}]")


def test_characters_that_join_others_are_left_alone() -> None:
    """Words of Persian and of Hindi need them, and so do faces made of several."""
    joined = "\u0645\u06cc\u200c\u062e \u0915\u094d\u200d\u0937 \U0001f469\u200d\U0001f680"
    assert printable(joined) == joined


def test_nothing_that_a_terminal_obeys_passes_the_door(capsys: pytest.CaptureFixture[str]) -> None:
    """Names and values, whatever the form."""
    evil = message(
        DANGEROUS.encode("utf-8", "surrogatepass"),
        properties={f"name{DANGEROUS}": DANGEROUS},
        tags=DANGEROUS,
        msg_id=DANGEROUS,
        queue=MessageQueue(DANGEROUS, DANGEROUS, 0),
    )
    for shape in ({"json": False, "full": False}, {"json": False, "full": True}):
        Printer(**shape).print(evil)
    Printer(json=True, full=False).print(evil)
    print_table(("topic",), [(DANGEROUS,)])
    print_pairs({DANGEROUS: DANGEROUS})
    print_json({DANGEROUS: [DANGEROUS]})
    output.show(DANGEROUS, "plain")
    output.say(DANGEROUS)
    error = ValueError(DANGEROUS)
    output.say_traceback(ValueError, error, None)
    written = capsys.readouterr()
    for text in (written.out, written.err):
        assert _OBEYED.findall(text.replace("\n", "")) == []
    assert "plain\n" in written.out


def test_json_says_exactly_what_it_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    given = {DANGEROUS: ["two\nlines", "\u00e9\u4e2d\U0001f600"]}
    print_json(given)
    text = capsys.readouterr().out
    assert json.loads(text) == given
    assert "\u00e9\u4e2d\U0001f600" in text


def test_no_other_module_of_the_commands_writes_to_the_terminal() -> None:
    """The reports of a worker of `aerobee bench` to the process that started it are excepted."""
    found = []
    root = Path(output.__file__).parent
    for path in sorted(root.rglob("*.py")):
        if path.name == "output.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called == "print" or called in _WRITES:
                    found.append(f"{path.relative_to(root)}:{node.lineno} {called}")
    assert [one for one in found if not one.startswith("bench/worker.py")] == []


_WRITES = {
    f"sys.{stream}.{way}"
    for stream in ("stdout", "stderr")
    for way in ("write", "writelines", "buffer.write")
}


def test_a_line_shows_time_place_tag_keys_and_body() -> None:
    text = line(message())
    assert text.endswith(".123  broker-a/3@15  [new]  (k1 k2)  hello")


def test_long_bodies_are_shortened_and_binary_ones_named() -> None:
    assert body_text("ä".encode() * 300, 200).endswith("… (600 bytes)")
    assert body_text(b"\xff\x00", 200) == "2 bytes 0xff00"


def test_json_bodies_are_text_or_base64() -> None:
    assert body_fields(b"hi") == {"body": "hi"}
    assert body_fields(b"\xff") == {"body": None, "body_base64": "/w=="}


def test_json_of_a_message_is_complete() -> None:
    fields = json.loads(json.dumps(json_fields(message())))
    assert fields["born_host"] == "[::1]:1"
    assert (fields["broker"], fields["queue"], fields["offset"]) == ("broker-a", 3, 15)


def test_times_are_iso_or_milliseconds() -> None:
    assert parse_time("1700000000123") == 1_700_000_000_123
    assert parse_time("2023-11-14T22:13:20+00:00") == 1_700_000_000_000
    assert parse_time("2023-11-14T22:13:20Z") == 1_700_000_000_000
    assert parse_time("946684800000") == 946_684_800_000
    with pytest.raises(CommandFailed) as caught:
        parse_time("yesterday")
    assert caught.value.code == 2


@pytest.mark.parametrize("text", ["0", "5", "2025", "20250301", "1700000000", "946684799999"])
def test_a_number_too_small_for_a_time_is_none(text: str) -> None:
    """An offset, a year, a date without hyphens, seconds."""
    assert is_offset(text)
    with pytest.raises(CommandFailed, match="before the year 2000") as caught:
        parse_time(text, "earliest, latest")
    assert caught.value.code == 2
    assert "(give earliest, latest, a time such as 2025-03-01T12:30, or milli" in str(caught.value)


def test_no_time_is_no_text() -> None:
    assert time_text(0) == time_text(-1) == ""
    assert time_text(1 << 62) == exact_time(1 << 62) == str(1 << 62)


def test_exit_codes_tell_who_is_at_fault() -> None:
    from aerobee.cli.cluster.command_session import exit_code
    from aerobee.client import errors

    refused = errors.RequestRefused("no", address="a:1", code=1, remark=None)
    assert exit_code(errors.ConnectFailed("x")) == 3
    assert exit_code(errors.CallTimeout("x")) == 3
    assert exit_code(errors.SendFailed("x", (("b", errors.ConnectionLost("y")),))) == 3
    assert exit_code(errors.SendFailed("x", (("b", refused),))) == 1
    assert exit_code(errors.NoRoute("x")) == exit_code(refused) == 1
    assert exit_code(errors.CallerError("x")) == 2


def test_name_servers_come_from_flag_environment_or_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from aerobee.cli.cluster.command_session import name_servers

    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    assert name_servers(SimpleNamespace(name_servers=None)) == "127.0.0.1:9876"  # type: ignore[arg-type]
    monkeypatch.setenv("NAMESRV_ADDR", "env:1")
    assert name_servers(SimpleNamespace(name_servers=None)) == "env:1"  # type: ignore[arg-type]
    assert name_servers(SimpleNamespace(name_servers="flag:1")) == "flag:1"  # type: ignore[arg-type]


def test_a_body_that_cannot_be_read_says_so_in_its_place() -> None:
    host = pack_host("127.0.0.1", 10911)
    stored = StoreMessage("T", 0, 0, 1, 1, host, host, 0, 0, b"no zlib", b"")
    record = encode_record(stored, 0, 0, 2)
    unreadable = received(decode_record(record), "a")
    assert "CANNOT BE READ, 7 bytes: message " in line(unreadable)
    assert "CANNOT BE READ" in str(full_fields(unreadable)["body"])
    fields = json_fields(unreadable)
    assert (fields["body"], fields["body_base64"], fields["compressed"]) == (
        None, "bm8gemxpYg==", True,
    )  # fmt: skip
    assert "zlib is damaged" in fields["unreadable"]
