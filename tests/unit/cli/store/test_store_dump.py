"""`aerobee store dump`: all that is there, filtered, damaged places shown as such."""

from pathlib import Path

import pytest

from aerobee.store.message_store import MessageStore
from tests.unit.cli.store_support import store
from tests.unit.store.at_rest import audit_support as at
from tests.unit.store.support import FIRST_MS, adopt, small_settings


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return at.make(tmp_path_factory.mktemp("audit") / "template")


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    return at.copy(template, tmp_path / "store")


def offsets(root: Path, *filters: str) -> list[tuple[int, int]]:
    """(queue id, queue offset) of the messages listed."""
    done = store("dump", "messages", root, "--json", *filters)
    assert done.code == 0, done.err
    return [(one["queue"], one["offset"]) for one in done.lines]


# --- messages ----------------------------------------------------------------------------------


def test_every_record_is_listed_in_the_order_of_the_log(root: Path) -> None:
    found = store("dump", "messages", root, "--json").lines
    assert [(one["log_offset"], one["record_bytes"]) for one in found] == [
        (one.log_offset, one.size) for one in at.records(root)
    ]
    kinds = [one["kind"] for one in found]
    assert (kinds.count("half"), kinds.count("rollback"), kinds.count("message")) == (2, 1, 103)


def test_messages_are_filtered(root: Path) -> None:
    everything = at.records(root)
    orders = at.of_queue(root, 1)
    assert offsets(root, "--topic", "Orders", "--queue", "1") == [
        (1, one.queue_offset) for one in orders
    ]
    assert offsets(
        root, "--topic", "Orders", "--queue", "1", "--from-offset", "30", "--to-offset", "32"
    ) == [(1, 30), (1, 31)]
    assert offsets(root, "--topic", "Orders", "--from-offset", "33") == [(0, 33), (1, 33), (2, 33)]
    start, end = everything[50].log_offset, everything[52].log_offset
    assert offsets(root, "--from-log", str(start), "--to-log", str(end)) == [
        (one.queue_id, one.queue_offset) for one in everything[50:52]
    ]
    assert offsets(root, "--from-log", str(start - 1), "--to-log", str(start + 1)) == [
        (everything[50].queue_id, everything[50].queue_offset)
    ]
    assert offsets(root, "--key", "K30") == [(0, 10)]
    assert offsets(root, "--key", "U31") == [(1, 10)]
    assert offsets(root, "--key", "nobody") == []
    assert len(offsets(root, "--limit", "7")) == 7
    assert "7 shown, there is more" in store("dump", "messages", root, "--limit", "7").err


def test_messages_are_filtered_by_time(root: Path) -> None:
    time_of = {number: FIRST_MS + 1500 * (number + 1) for number in range(102)}
    found = offsets(root, "--begin", str(time_of[90]), "--end", str(time_of[93]))
    assert found == [(0, 30), (1, 30), (2, 30)]
    assert offsets(root, "--begin", str(time_of[101] + 1)) == []
    assert offsets(root, "--begin", "2023-11-14T22:13", "--end", "1999-01-01") == []


@pytest.mark.parametrize(
    ("form", "shown"),
    [("short", "000031...."), ("text", "000031...."), ("hex", "3030303033312e"), ("length", "46")],
)
def test_bodies_are_shown_as_asked_for(root: Path, form: str, shown: str) -> None:
    out = store("dump", "messages", root, "--key", "U31", "--body", form).out
    assert out.startswith("2023-11-14 22:14:08.000  Orders/1@10  log 5633+163  [T1]  (U31)  ")
    assert out.rstrip().split("  ")[-1].startswith(shown)
    fields = store("dump", "messages", root, "--key", "U31", "--body", form, "--json").lines[0]
    assert fields["body_bytes"] == 46
    assert ("body" in fields) == (form in ("short", "text"))
    assert ("body_hex" in fields) == (form == "hex")


def test_damaged_records_are_shown_in_their_place(root: Path) -> None:
    everything = at.records(root)
    at.flip_log(root, everything[40].log_offset + 95)
    at.flip_log(root, everything[-1].log_offset + 95)
    found = store("dump", "messages", root, "--json").lines
    assert found[40]["kind"] == "damaged"
    assert (found[40]["start"], found[40]["end"]) == (
        everything[40].log_offset,
        everything[41].log_offset,
    )
    assert found[-1]["kind"] == "damaged"
    text = store("dump", "messages", root).out.splitlines()
    assert text[40].startswith(f"DAMAGED  {everything[40].size} bytes from")


def test_bodies_cannot_move_the_cursor(tmp_path: Path) -> None:
    from aerobee.store.message_store import MessageStore
    from tests.unit.store.support import message, small_settings

    opened = MessageStore.open(small_settings(tmp_path))
    opened.log.put(message(b"\x1b[2J"))
    assert opened.close()
    assert "\x1b" not in store("dump", "messages", tmp_path).out


# --- queues, index, checkpoint -----------------------------------------------------------------


def test_units_are_listed_and_held_against_their_records(root: Path) -> None:
    at.set_unit(root, 1, 3, at.PRE_BLANK)
    at.set_unit(root, 1, 4, bytes(20))
    at.set_unit(root, 1, 5, at.UNIT.pack(5, 100, 0))
    found = store("dump", "queues", root, "--topic", "Orders", "--queue", "1", "--json").lines
    assert [one["queue_offset"] for one in found] == list(range(34))
    states = [one["state"] for one in found]
    assert states[:5] == ["message", "message", "message", "lost", "empty"]
    assert states[5].startswith("magic 0x")
    assert states[6:] == ["message"] * 28
    text = store("dump", "queues", root, "--topic", "Orders", "--queue", "1").out.splitlines()
    assert text[3:5] == ["Orders/1@3  lost", "Orders/1@4  empty"]
    assert "DAMAGED magic" in text[5]


def test_queues_in_a_line_each(root: Path) -> None:
    found = store("dump", "queues", root, "--summary", "--json").lines
    assert [(one["topic"], one["queue_id"], one["first"], one["end"]) for one in found] == [
        ("Orders", 0, 0, 34),
        ("Orders", 1, 0, 34),
        ("Orders", 2, 0, 34),
        ("SCHEDULE_TOPIC_XXXX", 2, 0, 1),
    ]
    assert "Orders/0  slots 0 to 34  4 files" in store("dump", "queues", root, "--summary").out
    delayed = store("dump", "queues", root, "--topic", "SCHEDULE_TOPIC_XXXX").out
    assert "due 2023-11-14 22:14:01.500" in delayed


def test_entries_are_found_by_key(root: Path) -> None:
    found = store("dump", "index", root, "--topic", "Orders", "--key", "K30", "--json").lines
    assert [one["log_offset"] for one in found] == [at.of_queue(root)[10].log_offset]
    everything = store("dump", "index", root, "--json").lines
    assert len(everything) == 206
    assert store("dump", "index", root, "--key", "K30").code == 2


def test_damaged_entries_are_marked(root: Path) -> None:
    at.overwrite(at.index_files(root)[0], at.INDEX_ENTRIES_AT + 20 * 3, b"\xff")
    text = store("dump", "index", root).out.splitlines()
    assert text[2].endswith("DAMAGED")
    assert not text[3].endswith("DAMAGED")


def test_index_files_in_a_line_each(root: Path) -> None:
    found = store("dump", "index", root, "--summary", "--json").lines
    assert [one["entries"] for one in found] == [39] * 5 + [11]
    assert found[0]["begin_log_offset"] == 0


def test_checkpoint_and_marks_are_shown(root: Path) -> None:
    fields = store("dump", "checkpoint", root, "--json").json
    last_ms = FIRST_MS + 102 * 1500
    assert fields["checkpoint"] == {
        "commit_log_ms": last_ms,
        "consume_queues_ms": last_ms,
        "index_ms": last_ms,
    }
    assert (fields["flushed"], fields["units"]) == (at.log_end(root), 103)
    assert (fields["offsets_file"], fields["offsets_are_ours"]) == ("whole", True)
    assert fields["left_open"] is False
    adopt(root, gaps=((5, 9),), poisoned=True)
    assert "[[5, 9]]" in store("dump", "checkpoint", root).out
    (root / "offsets").write_bytes(b"x")
    (root / "checkpoint").unlink()
    fields = store("dump", "checkpoint", root, "--json").json
    assert (fields["offsets_file"], fields["checkpoint"]) == ("damaged", None)


@pytest.mark.parametrize("what", ["messages", "queues", "index", "checkpoint"])
def test_no_store_exits_3(tmp_path: Path, what: str) -> None:
    code, out, err = store("dump", what, tmp_path)
    assert (code, out) == (3, "")
    assert "is empty" in err


def test_wrong_filters_exit_2(root: Path) -> None:
    assert store("dump", "messages", root, "--queue", "-1").code == 2
    assert store("dump", "messages", root, "--begin", "tomorrow").code == 2
    assert store("dump", "everything", root).code == 2


def test_store_without_a_message_is_listed_as_one(tmp_path: Path) -> None:
    assert MessageStore.open(small_settings(tmp_path / "store")).close()
    for what in ("messages", "queues", "index"):
        done = store("dump", what, tmp_path / "store")
        assert (done.code, done.out) == (0, "")
        assert "nothing there" in done.err


def test_filter_that_nothing_fits_is_said(root: Path) -> None:
    done = store("dump", "messages", root, "--topic", "Nobody")
    assert (done.code, done.out) == (0, "")
    assert "nothing that fits" in done.err
