"""The files of audit events: what a crash, a full disk and their bound leave of them."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from aerobee.access.audit import audit_file
from aerobee.access.audit.audit_file import AuditFile
from aerobee.access.audit.journal import Journal
from aerobee.access.audit.sink import Place
from aerobee.protocol.bodies.audit import DONE, LINE_BYTES, UNKNOWN, AuditEvent, parse_event
from aerobee.protocol.errors import BadRequest

MOST = 64 * 1024


def event(number: int, **fields: str) -> AuditEvent:
    return AuditEvent(
        id=f"s.{number}", timestamp_ms=1_000 * number, request="topic_update", **fields
    )


def line(number: int, **fields: str) -> bytes:
    return event(number, outcome=DONE, **fields).encode()


def events_of(file: AuditFile, since_ms: int = 0) -> list[AuditEvent]:
    """All pages."""
    found, place, more = [], Place(), True
    while more:
        page = file.page(place, since_ms)
        found += [one for each in page.lines.splitlines() if (one := parse_event(each))]
        place, more = page.next, page.more
    return found


def numbers(file: AuditFile, since_ms: int = 0) -> list[int]:
    return [one.timestamp_ms // 1_000 for one in events_of(file, since_ms)]


def newest(folder: Path) -> Path:
    return max(folder.glob("events-*.jsonl"))


def test_an_event_is_read_as_it_was_written() -> None:
    full = AuditEvent(
        id="a.1", timestamp_ms=7, request="topic_delete", object='T "quoted" \u202e\n\x1b[2J',
        account="key", address="10.0.0.1", client="JAVA V4_9_8", before="absent", after="read=1",
        outcome="refused", why="no", times=3,
    )  # fmt: skip
    encoded = full.encode()
    assert parse_event(encoded) == full
    assert encoded.isascii()
    assert encoded.count(b"\n") == 1
    assert b"\x1b" not in encoded


@pytest.mark.parametrize("text", ["x", "\x00", '"', "\u0416", "\U0001f41d", "\ud800"])
def test_no_line_is_longer_than_its_bound(text: str) -> None:
    long = dict.fromkeys(("object", "account", "address", "client", "before", "after"), text * 9999)
    encoded = event(2**40, outcome="unknown", why=text * 9999, **long).encode()
    assert len(encoded) <= LINE_BYTES
    found = parse_event(encoded)
    assert found is not None
    assert found.object.endswith("...")


def test_pages_lead_through_all_files_from_a_time_on(tmp_path: Path) -> None:
    file = AuditFile(tmp_path / "audit", MOST)
    for number in range(1, 61):
        file.write([line(number, why="w" * 500)])
    assert len(list((tmp_path / "audit").glob("events-*"))) == 2
    assert numbers(file) == list(range(numbers(file)[0], 61))
    assert numbers(file, since_ms=50_500) == list(range(51, 61))
    end = file.page(Place(), 10**9).next
    while (page := file.page(end, 0)).more:
        end = page.next
    file.write([line(61)])
    assert [parse_event(one).id for one in file.page(page.next, 0).lines.splitlines()] == ["s.61"]  # type: ignore[union-attr]


def test_the_older_file_goes_when_the_newer_is_full(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    file = AuditFile(folder, MOST)
    for number in range(1, 400):
        file.write([line(number, why="w" * 700)])
        assert sum(path.stat().st_size for path in folder.iterdir()) <= MOST
    assert numbers(file)[-1] == 399
    # A place in a file that has gone leads to the oldest that is there.
    assert file.page(Place(1, 5000), 0).lines.startswith(b'{"id":"s.')


def test_a_torn_last_line_is_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    first = AuditFile(folder, MOST)
    first.write([line(1)])
    first.close()
    with newest(folder).open("ab") as torn:
        torn.write(line(2)[:20])
    again = AuditFile(folder, MOST)
    assert numbers(again) == [1]
    again.write([line(3)])
    assert numbers(again) == [1, 3]
    assert again.page(Place(), 0).damaged == 1


def test_a_change_that_was_cut_off_becomes_an_event_of_unknown_outcome(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    first = AuditFile(folder, MOST)
    first.begin([event(1, object="ended").encode(), event(2, object="lost").encode()], 0)
    first.write([line(1, object="ended")])
    again = AuditFile(folder, MOST)
    found = {one.object: one.outcome for one in events_of(again)}
    assert found == {"ended": DONE, "lost": UNKNOWN}
    # Only once, however often it starts.
    assert numbers(AuditFile(folder, MOST)) == [1, 2]


def test_notes_of_changes_that_have_ended_do_not_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_file, "_BEGUN_BYTES", 2_000)
    file, begun = AuditFile(tmp_path, MOST), tmp_path / "begun.jsonl"
    file.begin([event(0, object="stays").encode()], 0)
    for number in range(1, 60):
        file.begin([event(number).encode()], 1)
        file.write([line(number)])
        assert begun.stat().st_size < 3_000
    assert b"stays" in begun.read_bytes()
    file.begin([event(99).encode()], 0)
    assert begun.read_bytes() == event(99).encode()


def test_a_write_that_fails_leaves_nothing_of_itself(tmp_path: Path) -> None:
    fails = True

    def sync(fd: int) -> None:
        if fails:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fdatasync(fd)

    file = AuditFile(tmp_path, MOST, sync)
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            file.write([line(1)])
    fails = False
    file.write([line(2)])
    assert newest(tmp_path).read_bytes() == line(2)


def test_a_file_that_is_taken_away_is_begun_anew_but_not_its_root(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    file = AuditFile(store / "audit", MOST, root=store)
    file.write([line(1)])
    newest(store / "audit").unlink()
    file.write([line(2)])
    assert numbers(file) == [2]
    store.rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError):
        file.write([line(3)])
    assert not store.exists()


def test_the_journal_gets_one_datagram_an_event(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    journal = Journal(path)
    with pytest.raises(FileNotFoundError):
        journal.write([line(1)])
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        journal.begin([event(1).encode()], 0)
        journal.write([line(1)])
        begun, ended = receiver.recv(LINE_BYTES), receiver.recv(LINE_BYTES)
    assert b"MESSAGE=" + event(1).encode() in begun
    assert b"MESSAGE=" + line(1) in ended
    assert b"SYSLOG_IDENTIFIER=aerobee-audit\n" in ended
    with pytest.raises(BadRequest, match="journalctl -t aerobee-audit"):
        journal.page(Place(), 0)
    journal.close()
