"""Each kind of finding: a store damaged in that way, what an audit says of it, and nothing else.

`SCENARIOS` has one entry for each kind there is; a test holds both lists against each other.
"""

import os
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from aerobee.broker.tables.files.state_file import JsonStateFile, StateFileError
from aerobee.nameserver.kv import KvFile, KvTable
from aerobee.protocol.message.filler import fillers
from aerobee.store.at_rest.audit.verify import verify
from aerobee.store.disk.offsets_file import decode as decode_offsets
from aerobee.store.disk.offsets_file import encode as encode_offsets
from aerobee.store.inspect.finding_kinds import KINDS, Level
from aerobee.store.message_store import MessageStore
from tests.crash.damage.tables import LOADERS, MEMBERS
from tests.unit.store.at_rest import audit_support as at
from tests.unit.store.support import (
    FIRST_MS,
    SEGMENT,
    adopt,
    flip,
    log_segment,
    message,
    queue_file,
    small_settings,
)


class Scenario(NamedTuple):
    """Damage, what is said besides, settings the store was made with and is checked with."""

    damage: Callable[[Path], None]
    beside: set[str]
    made_with: dict[str, Any]
    checked_with: Callable[[Path], dict[str, Any]]


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    kind: str,
    *beside: str,
    made_with: dict[str, Any] | None = None,
    checked_with: Callable[[Path], dict[str, Any]] = lambda _: {},
) -> Callable[[Callable[[Path], None]], None]:
    def keep(damage: Callable[[Path], None]) -> None:
        assert kind not in SCENARIOS
        SCENARIOS[kind] = Scenario(damage, set(beside), made_with or {}, checked_with)

    return keep


# --- the directory -----------------------------------------------------------------------------


@scenario(
    "start-refused", checked_with=lambda root: {"read_only_commit_log_paths": f"{root}/not-mounted"}
)
def _(root: Path) -> None:
    """Damage that no part of an audit looks at, but loading does."""
    assert root.is_dir()


@scenario("not-a-file")
def _(root: Path) -> None:
    (root / "offsets.tmp").mkdir()
    log_segment(root, 100 * SEGMENT).mkdir()
    queue_file(root, start=2000).mkdir()
    (root / "index" / "20991231235959998").mkdir()


@scenario("log-missing", "log-short")  # all of it
def _(root: Path) -> None:
    shutil.rmtree(root / "commitlog")
    (root / "commitlog").mkdir()


@scenario("segment-missing", "record-damaged")
def _(root: Path) -> None:
    log_segment(root, SEGMENT).unlink()


@scenario("segment-size", "record-damaged")
def _(root: Path) -> None:
    os.truncate(log_segment(root, SEGMENT), 1000)


@scenario("segment-start")
def _(root: Path) -> None:
    shutil.copy(log_segment(root), log_segment(root, 4 * SEGMENT + 100))


@scenario("segment-misplaced")
def _(root: Path) -> None:
    shutil.copy(log_segment(root, 2 * SEGMENT), log_segment(root, SEGMENT))


@scenario(
    "segment-duplicate",
    "foreign-file",
    checked_with=lambda root: {"read_only_commit_log_paths": f"{root}/elsewhere/log"},
)
def _(root: Path) -> None:
    (root / "elsewhere" / "log").mkdir(parents=True)
    shutil.copy(log_segment(root, SEGMENT), root / "elsewhere" / "log")


@scenario("segment-unfinished")
def _(root: Path) -> None:
    log_segment(root, 100 * SEGMENT).touch()


@scenario("segment-spare")
def _(root: Path) -> None:
    last = max((root / "commitlog").iterdir())
    log_segment(root, int(last.name) + SEGMENT).write_bytes(bytes(SEGMENT))


@scenario("rebuild-left-over")
def _(root: Path) -> None:
    (root / "rebuild").mkdir()


@scenario("rebuild-broken-off", "index-missing")
def _(root: Path) -> None:
    (root / "rebuild").mkdir()
    shutil.rmtree(root / "index")


@scenario("foreign-file")
def _(root: Path) -> None:
    (root / "notes.txt").touch()


@scenario("foreign-stops-rocketmq")
def _(root: Path) -> None:
    (root / "commitlog" / "lost+found").mkdir()


# --- records -----------------------------------------------------------------------------------


@scenario("record-damaged")
def _(root: Path) -> None:
    at.flip_log(root, at.of_queue(root)[10].log_offset + 95)


@scenario("record-seal", made_with={"append_property_crc": True})
def _(root: Path) -> None:
    at.flip_log(root, at.of_queue(root)[10].log_offset + 17)  # the user's flag


@scenario("record-stray", "unit-dangling")
def _(root: Path) -> None:
    """A bit of its queue offset: message 12 says that it is message 8."""
    at.flip_log(root, at.of_queue(root)[12].log_offset + 27, bit=4)


@scenario("segment-not-closed")
def _(root: Path) -> None:
    last = [one for one in at.records(root) if one.log_offset < SEGMENT][-1]
    room = SEGMENT - last.log_offset
    path, position = at.place(last.log_offset, root)
    record = path.read_bytes()[position : position + last.size]
    body = last.body + bytes(room - last.size)
    at.overwrite(path, position, struct.pack(">i", room))
    at.overwrite(path, position + 8, struct.pack(">I", zlib.crc32(body) & 0x7FFFFFFF))
    at.overwrite(path, position + 84, struct.pack(">i", len(body)))
    at.overwrite(path, position + 88, body + record[88 + len(last.body) :])
    tags_code = at.unit(root, last.queue_id, last.queue_offset)[2]
    unit = at.UNIT.pack(last.log_offset, room, tags_code)
    at.set_unit(root, last.queue_id, last.queue_offset, unit)


@scenario("log-trailing")
def _(root: Path) -> None:
    at.overwrite_log(root, at.log_end(root) + 100, b"something")


@scenario("log-torn", "left-open")
def _(root: Path) -> None:
    at.overwrite_log(root, at.log_end(root), at.whole_record(at.log_end(root), b"x")[:-5])
    at.mark_open(root)


@scenario("log-short", "record-damaged")
def _(root: Path) -> None:
    adopt(root, flushed=20 * SEGMENT)


@scenario("log-front-missing")
def _(root: Path) -> None:
    log_segment(root).unlink()


@scenario("time-back")
def _(root: Path) -> None:
    later = at.of_queue(root, 2, "SCHEDULE_TOPIC_XXXX")[0]  # it has no key, the index no entry
    at.overwrite_log(root, later.log_offset + 56, (FIRST_MS - 1).to_bytes(8, "big"))


@scenario("filler", "slot-lost")
def _(root: Path) -> None:
    lost = at.of_queue(root)[10]
    for log_offset, record in fillers(
        lost.log_offset, lost.log_offset + lost.size, FIRST_MS + 31 * 1500
    ):
        at.overwrite_log(root, log_offset, record)
    at.set_unit(root, 0, 10, at.PRE_BLANK)


# --- consume queues ----------------------------------------------------------------------------


@scenario("queue-missing")
def _(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "Orders" / "1")


@scenario("topic-deleted")
def _(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "Orders")
    for name in ("topics.json", "topics.json.bak"):
        path = root / "config" / name
        path.write_text(path.read_text().replace("Orders", "Others"))


@scenario("queue-file-size")
def _(root: Path) -> None:
    with queue_file(root, start=200).open("ab") as file:
        file.write(bytes(20))


@scenario("queue-file-missing", "unit-missing")
def _(root: Path) -> None:
    queue_file(root, start=200).unlink()


@scenario("queue-file-unfinished")
def _(root: Path) -> None:
    queue_file(root, start=800).touch()


@scenario("unit-missing")
def _(root: Path) -> None:
    at.set_unit(root, 0, 5, bytes(20))


@scenario("queue-behind", "left-open")
def _(root: Path) -> None:
    for offset in range(31, 34):
        at.set_unit(root, 2, offset, bytes(20))
    at.mark_open(root)


@scenario("unit-wrong")
def _(root: Path) -> None:
    log_offset, size, tags_code = at.unit(root, 0, 5)
    at.set_unit(root, 0, 5, at.UNIT.pack(log_offset + 1, size, tags_code))


@scenario("unit-tags")
def _(root: Path) -> None:
    log_offset, size, tags_code = at.unit(root, 0, 5)
    at.set_unit(root, 0, 5, at.UNIT.pack(log_offset, size, tags_code + 1))


@scenario("unit-dangling")
def _(root: Path) -> None:
    at.set_unit(root, 0, 34, at.UNIT.pack(*at.unit(root, 1, 33)))


@scenario("unit-beyond-log")
def _(root: Path) -> None:
    """Further away than a log that lost its end can have gone."""
    at.set_unit(root, 0, 34, at.UNIT.pack(5000 * SEGMENT, 200, 0))


@scenario("unit-torn", "left-open")
def _(root: Path) -> None:
    at.set_unit(root, 0, 34, at.UNIT.pack(at.log_end(root), 200, 0))
    at.mark_open(root)


@scenario("unit-order", "unit-dangling")
def _(root: Path) -> None:
    at.set_unit(root, 0, 34, at.UNIT.pack(*at.unit(root, 0, 0)))


@scenario("queue-hole", "slot-lost")
def _(root: Path) -> None:
    at.set_unit(root, 0, 36, at.PRE_BLANK)


@scenario("slot-lost")
def _(root: Path) -> None:
    at.set_unit(root, 0, 34, at.PRE_BLANK)


@scenario("numbering-restarted")
def _(root: Path) -> None:
    (root / "config" / "consumerOffset.json").unlink()
    store = MessageStore.open(small_settings(root))
    store.delete_topic("Orders")
    for number in range(6):
        store.log.put(message(b"anew", queue_id=number % 3))
    store.dispatch()
    assert store.close()


EXTENDED = {"consume_queue_ext_enabled": True, "consume_queue_ext_segment_bytes": 4096}


def extension_file(root: Path, queue_id: int = 0) -> Path:
    return root / "consumequeue_ext" / "Orders" / str(queue_id) / f"{0:020d}"


@scenario("ext-file-size", "ext-missing", made_with=EXTENDED, checked_with=lambda _: EXTENDED)
def _(root: Path) -> None:
    with extension_file(root).open("ab") as file:
        file.write(b"x")


@scenario("ext-missing", made_with=EXTENDED, checked_with=lambda _: EXTENDED)
def _(root: Path) -> None:
    at.overwrite(extension_file(root), 5 * 20, bytes(60))


@scenario("ext-wrong", made_with=EXTENDED, checked_with=lambda _: EXTENDED)
def _(root: Path) -> None:
    flip(extension_file(root), 5 * 20 + 9)


@scenario("queue-removed")
def _(root: Path) -> None:
    (root / "consumequeue" / "Orders" / "7.removed").mkdir()


# --- index -------------------------------------------------------------------------------------


def entry_position(number: int) -> int:
    return at.INDEX_ENTRIES_AT + 20 * number


def change_field(path: Path, position: int, code: str, change: int) -> None:
    data = path.read_bytes()
    (value,) = struct.unpack_from(code, data, position)
    at.overwrite(path, position, struct.pack(code, value + change))


@scenario("index-missing")
def _(root: Path) -> None:
    shutil.rmtree(root / "index")


@scenario("index-size", "key-missing")
def _(root: Path) -> None:
    with at.index_files(root)[1].open("ab") as file:
        file.write(b"x")


@scenario("index-unfinished")
def _(root: Path) -> None:
    (root / "index" / "20991231235959999").touch()


@scenario("index-header")
def _(root: Path) -> None:
    change_field(at.index_files(root)[1], 24, ">q", -1)


@scenario("index-entry")
def _(root: Path) -> None:
    change_field(at.index_files(root)[1], entry_position(30) + 16, ">i", 1)


@scenario("index-slot")
def _(root: Path) -> None:
    path = at.index_files(root)[1]
    slots = struct.unpack_from(">50i", path.read_bytes(), 40)
    used = next(slot for slot, newest in enumerate(slots) if newest)
    at.overwrite(path, 40 + 4 * used, bytes(4))


@scenario("index-count")
def _(root: Path) -> None:
    change_field(at.index_files(root)[1], 32, ">i", 1)


@scenario("index-torn", "left-open")
def _(root: Path) -> None:
    path = at.index_files(root)[-1]
    slots = struct.unpack_from(">50i", path.read_bytes(), 40)
    at.overwrite(path, 40 + 4 * slots.index(0), struct.pack(">i", 39))
    at.mark_open(root)


@scenario("index-time")
def _(root: Path) -> None:
    change_field(at.index_files(root)[1], entry_position(5) + 12, ">i", 7)


@scenario("key-missing")
def _(root: Path) -> None:
    at.index_files(root)[0].unlink()


@scenario("key-stray", "key-missing")
def _(root: Path) -> None:
    """Another hash of the same slot."""
    change_field(at.index_files(root)[1], entry_position(5), ">i", -50)


@scenario("index-behind", "left-open")
def _(root: Path) -> None:
    at.index_files(root)[-1].unlink()
    at.mark_open(root)


# --- state -------------------------------------------------------------------------------------


@scenario("left-open")
def _(root: Path) -> None:
    (root / "abort").touch()


@scenario("lock-content")
def _(root: Path) -> None:
    (root / "lock").write_bytes(b"locked")
    adopt(root)


@scenario("poisoned")
def _(root: Path) -> None:
    adopt(root, poisoned=True)


@scenario("offsets-damaged")
def _(root: Path) -> None:
    flip(root / "offsets", 30)


@scenario("offsets-foreign")
def _(root: Path) -> None:
    os.utime(root / "lock")


@scenario("checkpoint-damaged")
def _(root: Path) -> None:
    os.truncate(root / "checkpoint", 100)


@scenario("checkpoint-tail")
def _(root: Path) -> None:
    at.overwrite(root / "checkpoint", 100, b"x")


@scenario("checkpoint-ahead")
def _(root: Path) -> None:
    change_field(root / "checkpoint", 8, ">q", 1)


# --- tables ------------------------------------------------------------------------------------


@scenario("config-damaged")
def _(root: Path) -> None:
    (root / "config" / "topics.json").write_text("{")
    (root / "config" / "topics.json.bak").write_text("[1]")


@scenario("config-unused")
def _(root: Path) -> None:
    """Offsets of light queues, which are off, and a table of RocketMQ's that we do not have."""
    (root / "config" / "lmqConsumerOffset.json").write_text("{")
    (root / "config" / "messageRequestMode.json").touch()


@scenario("config-from-backup")
def _(root: Path) -> None:
    (root / "config" / "topics.json").write_text(at.TOPICS[:100])


@scenario("topics-missing")
def _(root: Path) -> None:
    (root / "config" / "topics.json").unlink()
    (root / "config" / "topics.json.bak").unlink()


@scenario("config-backup")
def _(root: Path) -> None:
    (root / "config" / "topics.json.bak").write_text("{")


@scenario("config-unfinished")
def _(root: Path) -> None:
    (root / "config" / "topics.json.tmp").touch()


@scenario("config-aside")
def _(root: Path) -> None:
    (root / "config" / "topics.json.damaged").write_text("{")


@scenario("offset-beyond")
def _(root: Path) -> None:
    (root / "config" / "consumerOffset.json").write_text(at.OFFSETS.replace("2:30", "2:35"))


# --- the claims --------------------------------------------------------------------------------

# Tested on its own below: it takes a disk that refuses.
ELSEWHERE = {"unreadable"}

Templates = Callable[[dict[str, Any]], Path]


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Templates:
    made: dict[str, Path] = {}

    def template(changes: dict[str, Any]) -> Path:
        key = repr(changes)
        if key not in made:
            made[key] = at.make(tmp_path_factory.mktemp("audit") / "template", **changes)
        return made[key]

    return template


@pytest.fixture
def root(templates: Templates, tmp_path: Path) -> Path:
    return at.copy(templates({}), tmp_path / "store")


@pytest.mark.parametrize("kind", SCENARIOS)
def test_damage_is_named_and_nothing_else_is(
    kind: str, templates: Templates, tmp_path: Path
) -> None:
    damage, beside, made_with, checked_with = SCENARIOS[kind]
    root = at.copy(templates(made_with), tmp_path / "store")
    assert at.kinds(at.check(root)) == set()
    damage(root)
    report = at.check(root, **checked_with(root))
    assert at.kinds(report) == {kind, *beside}
    worst = {KINDS[found].level for found in (kind, *beside)}
    assert report.sound == (Level.DAMAGE not in worst)
    for finding in report.findings:
        assert finding.path.startswith(str(root)), finding
        assert finding.what
        assert finding.consequence
        assert finding.remedy


def start_mends(kind: str) -> bool:
    """Whether the table promises that a start puts it right."""
    return KINDS[kind].remedy.startswith("nothing: ") and kind != "foreign-file"


@pytest.mark.parametrize("kind", [kind for kind in SCENARIOS if start_mends(kind)])
def test_what_a_start_is_said_to_put_right_it_does(
    kind: str, templates: Templates, tmp_path: Path
) -> None:
    damage, _, made_with, _ = SCENARIOS[kind]
    root = at.copy(templates(made_with), tmp_path / "store")
    damage(root)
    assert kind in at.kinds(at.check(root))
    assert MessageStore.open(small_settings(root, **made_with)).close()
    assert kind not in at.kinds(at.check(root))


@pytest.mark.parametrize("entered", [0, SEGMENT])
def test_a_queue_that_a_broker_had_not_begun_is_made_by_a_start(root: Path, entered: int) -> None:
    """A full disk keeps a queue's first file away, and then the broker is killed. Below the mark of
    entries the queue was there, and its loss is damage."""
    path = root / "offsets"
    offsets = decode_offsets(path.read_bytes())
    assert offsets is not None
    mark = msgspec.structs.replace(offsets.synced, log_offset=entered)
    path.write_bytes(encode_offsets(msgspec.structs.replace(offsets, synced=mark, live=mark)))
    shutil.rmtree(root / "consumequeue" / "Orders" / "1")
    at.mark_open(root)
    kind = "queue-missing" if entered else "queue-behind"
    assert kind in at.kinds(at.check(root))
    assert at.check(root).sound == (not entered)
    assert MessageStore.open(small_settings(root)).close()
    assert at.check(root).sound


def test_every_kind_has_a_scenario() -> None:
    assert set(SCENARIOS) | ELSEWHERE == set(KINDS)


def test_verify_changes_nothing(root: Path) -> None:
    def state() -> dict[str, tuple[int, bytes]]:
        return {
            str(path): (path.stat().st_mtime_ns, path.read_bytes())
            for path in root.rglob("*")
            if path.is_file()
        }

    at.flip_log(root, at.of_queue(root)[10].log_offset + 95)
    before = state()
    at.check(root)
    assert state() == before


def test_what_the_disk_refuses_is_named_and_the_rest_is_read(root: Path) -> None:
    path = log_segment(root)
    report = verify(small_settings(root), files=at.BadDisk(path, 0, 4096))
    (found,) = report.findings.of("unreadable")
    assert (found.path, found.position) == (str(path), 0)
    assert at.kinds(report) == {"unreadable", "record-damaged"}
    assert report.counts.records == len([one for one in at.records(root) if one.log_offset >= 4096])


def test_sound_store_is_counted(root: Path) -> None:
    report = at.check(root)
    counts = report.counts
    assert report.sound
    assert (counts.records, counts.messages) == (106, 103)
    assert (counts.half_messages, counts.rollbacks, counts.fillers) == (2, 1, 0)
    assert (counts.queues, counts.units, counts.index_files) == (4, 103, 6)
    assert counts.index_entries == 102 + 2 * 51 + 2
    assert counts.log_end == at.log_end(root)
    assert (counts.config_files, counts.consumer_offsets) == (4, 4)


def test_lost_messages_are_named_by_queue_and_number(root: Path) -> None:
    lost = at.of_queue(root, 1)[10]
    at.flip_log(root, lost.log_offset + 95)
    (found,) = at.check(root).findings.of("record-damaged")
    assert found.log_offset == lost.log_offset
    assert found.what == (
        f"{lost.size} bytes from {lost.log_offset} to {lost.log_offset + lost.size}: body of the "
        f"record at {lost.log_offset} does not match its CRC; held message Orders/1 10"
    )


def test_known_gap_is_said_to_be_known(root: Path) -> None:
    lost = at.of_queue(root, 1)[10]
    at.flip_log(root, lost.log_offset + 95)
    adopt(root, gaps=((lost.log_offset, lost.log_offset + lost.size),))
    (found,) = at.check(root).findings.of("record-damaged")
    assert found.what.endswith("; known to the broker")


def test_units_of_a_missing_file_are_missing_and_no_others(root: Path) -> None:
    """Records come in batches that go over the ends of queue files."""
    queue_file(root, start=200).unlink()
    (found,) = at.check(root).findings.of("unit-missing")
    assert "10 records" in found.what
    assert "messages 10 to 19 of Orders/0" in found.what


@pytest.mark.parametrize("content", [("", ""), ("", None), (None, "")])
def test_tables_that_are_empty_with_their_backup_are_damage(
    root: Path, content: tuple[str | None, str | None]
) -> None:
    """A start takes an empty file for a damaged one."""
    for name, text in zip(("topics.json", "topics.json.bak"), content, strict=True):
        path = root / "config" / name
        path.unlink()
        if text is not None:
            path.write_text(text)
    with pytest.raises(StateFileError):
        JsonStateFile(str(root / "config" / "topics.json")).load(str, "")
    assert at.kinds(at.check(root)) == {"config-damaged"}


def test_table_that_is_a_directory_is_damage(root: Path) -> None:
    (root / "config" / "topics.json.bak").unlink()
    (root / "config" / "topics.json").unlink()
    (root / "config" / "topics.json").mkdir()
    assert at.kinds(at.check(root)) == {"not-a-file"}


def test_without_a_table_of_topics_those_that_have_queues_are_named(root: Path) -> None:
    for name in ("topics.json", "topics.json.bak"):
        (root / "config" / name).unlink()
    for number in range(12):
        (root / "consumequeue" / f"Topic{number:02}" / "4").mkdir(parents=True)
    what = next(iter(at.check(root).findings.of("topics-missing"))).what
    # The one of delayed messages is the system's, which a start makes in any case.
    assert ", but the store has queues of Orders (--queues 3), Topic00 (--queues 5), " in what
    assert what.endswith(", Topic08 (--queues 5), and 3 more")


def test_a_store_without_a_topic_needs_no_table_of_them(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path))
    store.log.put(message(b"later", "SCHEDULE_TOPIC_XXXX", 2, more={"DELAY": "3"}))
    store.dispatch()
    assert store.close()
    assert at.kinds(at.check(tmp_path)) == set()


def test_the_key_value_table_is_one_of_the_tables(root: Path) -> None:
    """The embedded name server's: a start reads it as it reads those below config."""
    kv = KvFile(root / "namesrv" / "kvConfig.json")
    for value in ("1", "2"):
        kv.save(KvTable({"ORDER_TOPIC_CONFIG": {"Orders": value}}).to_json())
    report = at.check(root)
    assert (at.kinds(report), report.counts.config_files) == (set(), 6)
    kv.path.write_text("x")
    assert at.kinds(at.check(root)) == {"config-from-backup"}
    kv.path.with_name("kvConfig.json.bak").write_text("x")
    (found,) = at.check(root).findings
    assert (found.kind, found.path) == ("config-damaged", str(kv.path))
    for unused in ({"nameserver_enabled": False}, {"nameserver_kv_path": f"{root}/../kv.json"}):
        assert at.kinds(at.check(root, **unused)) == {"config-unused"}
    assert kv.load().namespace("ORDER_TOPIC_CONFIG") is None
    assert at.kinds(at.check(root)) == {"config-aside"}


@pytest.mark.parametrize("light", [True, False])
def test_of_both_tables_of_offsets_a_start_reads_one(root: Path, light: bool) -> None:
    for name in ("consumerOffset.json", "lmqConsumerOffset.json"):
        (root / "config" / name).write_text("{")
    findings = at.check(root, lmq_enabled=light).findings
    kinds = {Path(found.path).name: found.kind for found in findings}
    assert kinds == {
        "consumerOffset.json": "config-unused" if light else "config-damaged",
        "lmqConsumerOffset.json": "config-damaged" if light else "config-unused",
    }


@pytest.mark.parametrize(
    "name",
    [*LOADERS, "config/consumerFilter.json", "config/delayOffset.json", "config/stages.json"],
)
def test_a_file_that_holds_another_table_is_damage(root: Path, name: str) -> None:
    """A start sees it so too: one flipped bit in the name of its table must not empty it."""
    (root / name).parent.mkdir(exist_ok=True)
    for path in (root / name, root / f"{name}.bak"):
        path.write_text('{"offsetTabla":{}}')
    light = name.endswith("lmqConsumerOffset.json")
    assert at.kinds(at.check(root, lmq_enabled=light)) == {"config-damaged"}
    if name in LOADERS:
        # Entries that no start takes for some were told sound.
        members = ",".join(f'"{member}":{{"x":"y"}}' for member in MEMBERS[name])
        (root / name).write_text("{" + members + "}")
        found = at.check(root, lmq_enabled=light).findings.of("config-damaged")
        assert "holds something else than an entry of" in found[0].what
    if name in LOADERS:
        LOADERS[name](root)
        kinds = at.kinds(at.check(root, lmq_enabled=light))
        # A start makes topics again from the queues in the store.
        assert kinds - {"topics-missing"} == {"config-aside"}
