"""The tools on stores with extension files of consume queues (consume_queue_ext_enabled)."""

import os
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from aerobee.broker.tables.files.state_file import JsonStateFile, pretty
from aerobee.protocol.hashing import tag_code
from aerobee.store.at_rest.audit.dump import Dump, DumpedQueueEntry, DumpFilter
from aerobee.store.at_rest.repair.at_rest import StoreAtRest
from aerobee.store.at_rest.repair.rebuild import rebuild
from aerobee.store.at_rest.repair.repair import plan_repair, repair
from aerobee.store.at_rest.repair.truncate import plan_cut, truncate
from aerobee.store.message_store import MessageStore
from tests.unit.store.at_rest import audit_support as at
from tests.unit.store.support import (
    ManualClock,
    adopt,
    bodies,
    fill,
    flip,
    message,
    small_settings,
    tree,
)

# Nine units a file, four bytes and some to spare.
EXT_BYTES = 9 * 20 + 10
ON: dict[str, Any] = {
    "consume_queue_ext_enabled": True,
    "consume_queue_ext_segment_bytes": EXT_BYTES,
}
T0 = tag_code("T0")
LEVELS: dict[str, Any] = {"message_delay_levels": "1s 2s 3h"}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return at.make(tmp_path_factory.mktemp("ext") / "template", **ON)


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    return at.copy(template, tmp_path / "store")


def opened(root: Path, **changes: Any) -> MessageStore:
    return MessageStore.open(small_settings(root, **(ON | changes)), clock=ManualClock())


def rest_of(root: Path, **changes: Any) -> StoreAtRest:
    """Given what a broker.conf would say of it, or nothing."""
    return StoreAtRest(small_settings(root, **changes), given=changes)


def save(path: str, content: Mapping[str, Any]) -> None:
    JsonStateFile(path).save(pretty(content))


def extension(root: Path, queue_id: int = 0, start: int = 0) -> Path:
    return root / "consumequeue_ext" / "Orders" / str(queue_id) / f"{start:020d}"


def derived(root: Path) -> dict[str, bytes]:
    return tree(root, "consumequeue") | tree(root, "consumequeue_ext")


def tagged(root: Path, tag: str) -> list[bytes]:
    """The bodies that a consumer of that tag gets of queue 0."""
    store = opened(root)
    found: list[bytes] = []
    offset = 0
    while offset < store.max_offset("Orders", 0):
        result = store.reader.get("Orders", 0, offset, 32, frozenset({tag_code(tag)}))
        offset = result.next_offset
        found += [bytes(view) for view in result.views]
        result.release()
    assert store.close()
    return found


# --- nothing is wrong --------------------------------------------------------------------------


def test_nothing_is_found_where_nothing_is_wrong(root: Path) -> None:
    assert len(list(extension(root).parent.iterdir())) == 4
    for given in (ON, {}):
        report = at.check(root, *given, **given)
        assert (at.kinds(report), report.counts.units) == (set(), 103)
        assert report.sizes.extension_bytes == EXT_BYTES


def test_units_of_before_the_option_and_of_after_it_are_sound(tmp_path: Path) -> None:
    at.keep_topics(tmp_path)
    store = MessageStore.open(small_settings(tmp_path), clock=ManualClock())
    for turn in range(4):
        fill(store, 20, queues=2)
        assert store.close()
        assert at.kinds(at.check(tmp_path)) == set()
        store = opened(tmp_path, consume_queue_ext_enabled=turn % 2 == 0)
    assert store.close()


def test_further_queues_without_extension_units_are_sound(tmp_path: Path) -> None:
    options = {"multi_dispatch": True, "lmq_enabled": True}
    store = opened(at.keep_topics(tmp_path), **options)
    for number in range(30):
        more = {"INNER_MULTI_DISPATCH": "%LMQ%x,Others"}
        store.log.put(message(b"%d" % number, tags="T1", more=more))
    store.dispatch()
    assert store.close()
    assert at.kinds(at.check(tmp_path, **ON, **options)) == set()


def test_delivery_times_by_levels_of_its_own_are_sound(tmp_path: Path) -> None:
    store = opened(tmp_path, **LEVELS)
    store.log.put(message(b"later", "SCHEDULE_TOPIC_XXXX", 2, more={"DELAY": "3"}))
    store.dispatch()
    assert store.close()
    assert at.kinds(at.check(tmp_path, *LEVELS, **LEVELS)) == set()
    assert at.kinds(at.check(tmp_path)) == set()  # nobody has told us the levels
    other = {"message_delay_levels": "1s 2s 3s"}
    assert at.kinds(at.check(tmp_path, *other, **other)) == {"ext-wrong"}


def test_a_store_that_was_killed_is_sound(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    fill(store, 40, queues=2)
    shutil.copytree(tmp_path / "store", tmp_path / "killed")
    assert store.close()
    found = at.kinds(at.check(at.keep_topics(adopt(tmp_path / "killed"))))
    # Whether the next segment was ready by then, nobody knows.
    assert found - {"segment-spare"} == {"left-open"}


# --- planted faults ----------------------------------------------------------------------------


def swap(root: Path) -> None:
    """The tags of queue 1 are those of queue 0, one further."""
    shutil.copy(extension(root), extension(root, queue_id=1))


FAULTS: dict[str, tuple[Callable[[Path], object], set[str]]] = {
    "tags code": (lambda root: flip(extension(root), 5 * 20 + 9), {"ext-wrong"}),
    "another queue's": (swap, {"ext-wrong"}),
    # Readers take these for missing, which costs a filter's work and no message.
    "tags code of no tags": (lambda root: flip(extension(root), 5 * 20 + 3), {"ext-missing"}),
    "size": (lambda root: flip(extension(root), 5 * 20 + 1), {"ext-missing"}),
    "size of the bit map": (lambda root: flip(extension(root), 5 * 20 + 19), {"ext-missing"}),
    "zeroed": (lambda root: at.overwrite(extension(root), 60, bytes(60)), {"ext-missing"}),
    "ended": (lambda root: at.overwrite(extension(root), 60, b"\xff\xff"), {"ext-missing"}),
    "reaching into the end of its file": (
        lambda root: at.overwrite(extension(root), 160, struct.pack(">hqqh", 27, T0, 1, 7)),
        {"ext-missing"},
    ),
    "no length": (lambda root: os.truncate(extension(root), 0), {"ext-missing"}),
    "file gone": (lambda root: extension(root).unlink(), {"ext-missing"}),
    "last file gone": (lambda root: extension(root, start=570).unlink(), {"ext-missing"}),
    "folder gone": (lambda root: shutil.rmtree(root / "consumequeue_ext"), {"ext-missing"}),
    "cut": (lambda root: os.truncate(extension(root), 100), {"ext-file-size", "ext-missing"}),
    "longer": (
        lambda root: os.truncate(extension(root), EXT_BYTES + 1),
        {"ext-file-size", "ext-missing"},
    ),
    "name": (
        lambda root: extension(root, start=570).rename(extension(root, start=571)),
        {"foreign-stops-rocketmq", "ext-missing"},
    ),
    "no queue": (lambda root: (root / "consumequeue_ext" / "x").touch(), {"foreign-file"}),
    "no file": (lambda root: extension(root).with_name("x").touch(), {"foreign-stops-rocketmq"}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named_and_mended(fault: str, root: Path, template: Path) -> None:
    damage, kinds = FAULTS[fault]
    damage(root)
    report = at.check(root, *ON, **ON)
    assert at.kinds(report) == kinds, list(report.findings)
    assert report.sound is not bool(kinds & {"ext-wrong", "ext-file-size"})
    with rest_of(root, **ON) as rest:
        repair(rest, plan_repair(rest), save)
    assert at.check(root, *ON, **ON).sound
    if "ext-missing" in at.kinds(at.check(root, **ON)):  # only a warning, which repair leaves alone
        with rest_of(root, **ON) as rest:
            rebuild(rest, index=False)
    assert at.kinds(at.check(root, **ON)) <= {"foreign-file"}
    if kinds & {"ext-wrong", "ext-missing"}:
        assert derived(root) == derived(template)
    assert len(tagged(root, "T0")) == at.PER_QUEUE


# The store time of an extension unit, which nothing uses.
UNUSED = range(10, 18)


def test_every_flipped_bit_of_an_extension_unit_or_of_its_address_is_found(root: Path) -> None:
    queue = root / "consumequeue" / "Orders" / "0" / f"{0:020d}"
    for path, first in ((extension(root), 5 * 20), (queue, 5 * 20)):
        whole = path.read_bytes()
        for byte in range(20):
            for bit in range(8):
                flip(path, first + byte, 1 << bit)
                is_found = bool(at.check(root).findings.counts)
                assert is_found or (path != queue and byte in UNUSED), (path, byte, bit)
                path.write_bytes(whole)


def test_an_address_in_a_store_without_extensions_is_a_wrong_tags_code(root: Path) -> None:
    shutil.rmtree(root / "consumequeue_ext")
    assert at.kinds(at.check(root)) == {"unit-tags"}


def test_how_many_are_missing_and_where_they_begin_is_said_once(root: Path) -> None:
    at.overwrite(extension(root), 60, bytes(60))
    (found,) = at.check(root).findings.of("ext-missing")
    assert found.queue_offset == 3
    assert found.what.startswith("3 entries of Orders/0, the first that of message 3, ")


def test_a_message_is_hidden_by_what_is_called_damage_and_by_nothing_else(
    root: Path, template: Path
) -> None:
    """The levels of the table, held against what a consumer of the tag really gets."""
    for fault, (damage, kinds) in FAULTS.items():
        copy = at.copy(template, root.with_name(fault))
        damage(copy)
        if "ext-file-size" in kinds:
            continue  # does not start
        got = len(tagged(copy, "T0"))
        assert (got < at.PER_QUEUE) is (fault == "tags code"), fault


# --- the other tools ---------------------------------------------------------------------------


def dumped(root: Path) -> list[DumpedQueueEntry]:
    with rest_of(root):
        dump = Dump(small_settings(root))
        try:
            return list(dump.queue_entries(DumpFilter("Orders", 0)))
        finally:
            dump.close()


def test_dump_shows_the_tags_code_and_names_a_missing_unit(root: Path) -> None:
    assert {(one.tags_code, one.state) for one in dumped(root)} == {(T0, "message")}
    at.overwrite(extension(root), 60, bytes(20))
    odd = [one for one in dumped(root) if one.state != "message"]
    assert [(one.queue_offset, one.tags_code) for one in odd] == [(3, -(1 << 63) + 60)]
    assert odd[0].state == "its extension unit is missing"


def test_rebuild_makes_the_extension_files_that_were_there(root: Path, template: Path) -> None:
    with rest_of(root, consume_queue_ext_enabled=True) as rest:  # their size is found
        rebuild(rest)
    assert derived(root) == derived(template)
    assert at.kinds(at.check(root)) == set()


def test_rebuild_without_the_option_takes_them_out(root: Path, template: Path) -> None:
    with rest_of(root) as rest:
        report = rebuild(rest, index=False)
    assert report.aside is not None
    assert tree(Path(report.aside), "consumequeue_ext") == tree(template, "consumequeue_ext")
    assert not (root / "consumequeue_ext").exists()
    assert at.kinds(at.check(root)) == set()
    assert len(tagged(root, "T0")) == at.PER_QUEUE


@pytest.mark.parametrize("given", [ON, {}], ids=["with the option", "without"])
def test_a_cut_store_is_the_one_that_never_had_more(
    given: dict[str, Any], root: Path, template: Path
) -> None:
    store = opened(root)
    place = store.written
    fill(store, 60, queues=3)
    assert store.close()
    assert len(derived(root)) > len(derived(template))
    with rest_of(root, **given) as rest:
        truncate(rest, plan_cut(rest, at=place), save)
    assert at.kinds(at.check(root)) == set()
    store = opened(root)  # the option's own start cuts the extensions, if nobody has
    assert [len(bodies(store, "Orders", number)) for number in range(3)] == [34, 34, 34]
    assert store.close()
    assert derived(root) == derived(template)
    store = opened(root)
    fill(store, 30, queues=3)
    assert store.close()
    assert at.kinds(at.check(root)) == set()
