"""An audit reads the sound parts of a damaged log, and misses no damage."""

import random
import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

from aerobee.store.disk.files import Files
from aerobee.store.errors import NotAStore, StoreSizeMismatch
from aerobee.store.inspect.sizes import FOUND, GIVEN, NOTED
from aerobee.store.inspect.store_files import StoreFiles
from aerobee.store.log.scan import sources
from aerobee.store.message_store import MessageStore
from aerobee.store.queues.queue_view import ENTRY, names_record
from tests.faulty_files import FaultyFiles
from tests.golden import make_store
from tests.unit.store.at_rest import audit_support as at
from tests.unit.store.log.test_golden_store import GOLDEN, golden_settings
from tests.unit.store.recovery.test_random_stores import Writer
from tests.unit.store.support import (
    SEGMENT,
    adopt,
    fill,
    flip,
    kill_image,
    log_segment,
    message,
    small_settings,
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return at.make(tmp_path_factory.mktemp("audit") / "template")


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    return at.copy(template, tmp_path / "store")


# Bytes of a record that nothing can vouch for: flag, sysFlag except the transaction's bits, born
# time, born host, the store time within its second, store host, reconsume times, prepared offset.
UNGUARDED = {*range(16, 20), *range(36, 56), 62, 63, *range(64, 84)}


def test_every_flipped_bit_that_something_guards_is_found(root: Path) -> None:
    one = at.of_queue(root, 1)[20]
    path, position = at.place(one.log_offset, root)
    whole = path.read_bytes()
    missed = set()
    for byte in range(one.size):
        flip(path, position + byte, 1 << byte % 8)
        if not at.check(root).findings.counts:
            missed.add(byte)
        path.write_bytes(whole)
    assert missed <= UNGUARDED


def test_every_flipped_bit_of_a_unit_is_found(root: Path) -> None:
    path = root / "consumequeue" / "Orders" / "1" / f"{200:020d}"
    whole = path.read_bytes()
    for byte in range(20, 40):
        for bit in (0, 3, 7):
            flip(path, byte, 1 << bit)
            assert not at.check(root).sound, (byte, bit)
            path.write_bytes(whole)


def test_every_flipped_bit_of_an_index_file_is_found(root: Path) -> None:
    path = at.index_files(root)[1]
    whole = path.read_bytes()
    for byte in [*range(40), *range(40, 240, 7), *range(at.INDEX_ENTRIES_AT + 20, 500, 3)]:
        flip(path, byte, 1 << byte % 8)
        assert at.check(root).findings.counts, byte
        path.write_bytes(whole)


def damaged(root: Path, lost: list[at.Stored]) -> None:
    for one in lost:
        at.flip_log(root, one.log_offset + 95)


def test_k_damaged_records_are_k_lost_records(root: Path) -> None:
    everything = at.records(root)
    lost = [everything[number] for number in (3, 4, 5, 30, 31, 60, 90)]
    damaged(root, lost)
    report = at.check(root)
    assert report.counts.records == len(everything) - len(lost)
    assert sum(gap.end - gap.start for gap in report.gaps) == sum(one.size for one in lost)


def test_the_last_record_is_damaged_not_torn(root: Path) -> None:
    last = at.records(root)[-1]
    damaged(root, [last])
    report = at.check(root)
    assert at.kinds(report) == {"record-damaged"}
    assert report.counts.log_end == last.log_offset + last.size


@pytest.mark.parametrize("byte", [0, 2, 4, 35, 84, 88 + 46])
@pytest.mark.parametrize("queues", [True, False], ids=["queues", "no queues"])
def test_damaged_lengths_cost_one_record(root: Path, byte: int, queues: bool) -> None:
    """Size, magic, own offset, body length, topic length: where the next one begins is unknown."""
    everything = at.records(root)
    lost = everything[40]
    assert lost.body.startswith(b"0000")
    at.flip_log(root, lost.log_offset + byte, bit=16)
    if not queues:
        shutil.rmtree(root / "consumequeue")
    report = at.check(root)
    assert [(gap.start, gap.end) for gap in report.gaps] == [
        (lost.log_offset, lost.log_offset + lost.size)
    ]


def test_a_half_message_behind_damage_is_found_although_no_unit_names_it(root: Path) -> None:
    everything = at.records(root)
    number = next(n for n, one in enumerate(everything) if one.body == b"half")
    at.flip_log(root, everything[number - 1].log_offset)
    report = at.check(root)
    assert [(gap.start, gap.end) for gap in report.gaps] == [
        (everything[number - 1].log_offset, everything[number].log_offset)
    ]


def test_a_record_forged_in_a_body_is_not_believed(tmp_path: Path) -> None:
    """A body holds a record made for its own place; then the record around it is damaged."""
    store = MessageStore.open(small_settings(tmp_path))
    fill(store, 3)
    place = store.written + 88
    store.log.put(message(at.whole_record(place, b"lie") + bytes(40), unique="F"))
    fill(store, 3)
    assert store.close()
    around = at.of_queue(tmp_path)[3]
    assert around.log_offset + 88 == place
    at.flip_log(tmp_path, around.log_offset)
    report = at.check(tmp_path)
    assert [(gap.start, gap.end) for gap in report.gaps] == [
        (around.log_offset, around.log_offset + around.size)
    ]
    assert report.counts.records == 6


def result_of(steps: Generator[None, None, int]) -> int:
    """The value that a generator of steps returns at last."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return int(end.value)


@pytest.mark.parametrize("seed", range(3))
def test_the_next_record_that_units_name_is_that_of_all_units(root: Path, seed: int) -> None:
    """However it is asked: place after place, and back again; wrong entries are passed over."""
    chance = random.Random(seed)
    slots = [
        (path, at_byte)
        for path in sorted((root / "consumequeue").glob("*/*/*"))
        for at_byte in range(0, 200, 20)
        if path.read_bytes()[at_byte : at_byte + 20].strip(b"\0")
    ]
    for path, at_byte in chance.sample(slots, 15):
        # In the size, or a little in the place: the queue stays in order.
        flip(path, at_byte + chance.choice([7, 9, 10, 11]), 1 << chance.randrange(8))
    settings = small_settings(root)
    store = StoreFiles(Files(), settings)
    named = sorted(
        log_offset
        for queue in store.queues.values()
        for first, data in queue.chunks()
        for offset, (log_offset, size, _) in enumerate(ENTRY.iter_unpack(data), first)
        if names_record(log_offset, size)
        and store.log.problem(queue, offset, log_offset, size) is None
    )
    assert 80 < len(named) < 103
    end = store.layout.segments[-1].start + SEGMENT
    places = [0, end, *(chance.randrange(end) for _ in range(30)), *named]
    for asked in (places, sorted(places), sorted(places, reverse=True)):
        for place in asked:
            limit = min(end, place + chance.choice([1, 200, SEGMENT, end]))
            wanted = next((one for one in named if place < one < limit), limit)
            assert result_of(store.boundaries.after(place, limit)) == wanted, (seed, place, limit)
    store.close()


def test_two_segments_swapped_are_two_misplaced_ones(root: Path) -> None:
    first, second = log_segment(root, SEGMENT), log_segment(root, 2 * SEGMENT)
    kept = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(kept)
    report = at.check(root)
    assert at.kinds(report) == {"segment-misplaced"}
    assert [found.path for found in report.findings] == [str(first), str(second)]


def test_zeroed_page_and_missing_segment_in_one_log(root: Path) -> None:
    everything = at.records(root)
    at.overwrite_log(root, 1024, bytes(512))
    log_segment(root, 2 * SEGMENT).unlink()
    report = at.check(root)
    start = max(one.log_offset for one in everything if one.log_offset <= 1024)
    end = min(one.log_offset for one in everything if one.log_offset >= 1024 + 512)
    assert [(gap.start, gap.end) for gap in report.gaps] == [
        (start, end),
        (2 * SEGMENT, 3 * SEGMENT),
    ]


def test_killed_store_is_sound_and_what_it_lacks_is_what_a_start_adds(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path / "running"))
    fill(store, 50)
    for number in range(5):
        store.log.put(message(b"not dispatched", unique=f"N{number}"))
    image = at.keep_topics(adopt(kill_image(tmp_path / "running", tmp_path / "image")))
    store.close()
    report = at.check(image)
    assert report.sound
    # The next segment is made on a thread of its own: it is there by now, or not yet.
    found = at.kinds(report) - {"segment-spare"}
    assert found == {"left-open", "queue-behind", "index-behind"}
    assert MessageStore.open(small_settings(image)).close()
    assert at.kinds(at.check(image)) == set()


@pytest.mark.parametrize("seed", range(4))
def test_random_store_is_sound_after_a_power_cut_and_a_start(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    root = tmp_path / "store"
    root.mkdir()
    files = FaultyFiles(root)
    writer = Writer(root, random.Random(seed), files, sync=bool(seed % 2))
    for _ in range(150):
        writer.step()
    files.power_cut(tmp_path / "image")
    writer.store.close()
    for image in (root, tmp_path / "image"):
        assert MessageStore.open(small_settings(image, max_message_bytes=100_000)).close()
        report = at.check(image)
        assert report.sound, list(report.findings)


def test_golden_store_of_another_program_is_sound(tmp_path: Path) -> None:
    from aerobee.store.at_rest.audit.verify import verify

    shutil.copytree(GOLDEN, tmp_path / "store")
    for number, path in enumerate(sorted((tmp_path / "store" / "index").iterdir())):
        path.rename(path.with_name(f"2023111422132000{number}"))
    report = verify(golden_settings(at.keep_topics(tmp_path / "store")))
    assert at.kinds(report) == set()
    assert report.counts.log_end > make_store.LOG_BYTES


@pytest.mark.parametrize("seed", range(6))
def test_records_over_the_ends_of_windows_are_read(
    root: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    everything = at.records(root)
    lost = sorted(rng.sample(everything, 5))
    damaged(root, lost)
    wanted = at.check(root)
    monkeypatch.setattr(sources, "WINDOW_BYTES", rng.choice((8, 50, 200, 1000)))
    found = at.check(root)
    assert (found.gaps, list(found.findings)) == (wanted.gaps, list(wanted.findings))


# --- sizes -------------------------------------------------------------------------------------


def test_sizes_are_found_from_the_files(root: Path) -> None:
    report = at.check(
        root, commit_log_segment_bytes=1 << 30, consume_queue_segment_bytes=6_000_000,
        index_slots=5_000_000, index_entries=20_000_000,
    )  # fmt: skip
    assert report.sound
    assert report.sizes[:4] == (SEGMENT, 200, 50, 40)
    assert [report.sizes.origins[name] for name in ("segment", "queue", "index")] == [
        NOTED, FOUND, FOUND
    ]  # fmt: skip
    (root / "offsets").unlink()
    report = at.check(root, commit_log_segment_bytes=1 << 30)
    assert (report.sizes.segment_bytes, report.sizes.origins["segment"]) == (SEGMENT, FOUND)


@pytest.mark.parametrize(
    ("name", "value"), [("index_slots", 50), ("index_entries", 40)], ids=["slots", "entries"]
)
def test_one_index_size_gives_the_other(root: Path, name: str, value: int) -> None:
    changes = {"index_slots": 5_000_000, "index_entries": 20_000_000, name: value}
    report = at.check(root, name, **changes)
    assert report.sound
    assert report.sizes[2:4] == (50, 40)
    assert report.sizes.origins["index"] == GIVEN


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("commit_log_segment_bytes", "no file of the commit log has the 8200 bytes"),
        ("consume_queue_segment_bytes", "no file of the consume queues has the 8200 bytes"),
    ],
)
def test_size_of_no_file_is_refused(root: Path, name: str, text: str) -> None:
    settings = small_settings(root).with_changes(**{name: 8200})
    from aerobee.store.at_rest.audit.verify import verify

    with pytest.raises(StoreSizeMismatch, match=text):
        verify(settings, {name})


def test_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "photos").mkdir()
    (tmp_path / "names" / "commitlog").mkdir(parents=True)
    (tmp_path / "names" / "commitlog" / "readme").touch()
    (tmp_path / "names" / "index").mkdir()
    for name, text in (
        ("none", "does not exist"),
        ("file", "is a file"),
        ("empty", "it is empty"),
        ("other", "holds nothing that belongs to one"),
        ("names", "holds nothing that belongs to one"),
    ):
        with pytest.raises(NotAStore, match=text):
            at.check(tmp_path / name)


def test_the_directory_above_a_store_is_refused_with_the_store_in_it(tmp_path: Path) -> None:
    at.make(tmp_path / "store")
    with pytest.raises(NotAStore, match=f"its directory store is one: {tmp_path}/store$"):
        at.check(tmp_path)


def test_store_without_a_message_is_sound(tmp_path: Path) -> None:
    assert MessageStore.open(small_settings(tmp_path)).close()
    report = at.check(tmp_path)
    assert at.kinds(report) == set()
    assert report.counts.records == 0


# --- files under the name of another -----------------------------------------------------------


@pytest.mark.parametrize("bit", range(13, 20))
def test_damaged_log_offset_of_a_first_record_costs_that_record_only(root: Path, bit: int) -> None:
    """One bit makes it the first record of another segment, which the file then seems to be."""
    first = next(one for one in at.records(root) if one.log_offset == SEGMENT)
    at.flip_log(root, SEGMENT + 35 - bit // 8, 1 << bit % 8)
    report = at.check(root)
    (gap,) = report.gaps
    assert (gap.start, gap.end) == (SEGMENT, SEGMENT + first.size)
    assert report.log.misplaced == []


def test_misplaced_segment_is_known_although_its_first_record_is_damaged(root: Path) -> None:
    shutil.copy(log_segment(root, 2 * SEGMENT), log_segment(root, SEGMENT))
    flip(log_segment(root, SEGMENT), 95)
    assert [own for _, _, own in at.check(root).log.misplaced] == [2 * SEGMENT]


def one_record_each(root: Path) -> Path:
    """A store whose segments hold one record each."""
    store = MessageStore.open(small_settings(root))
    for number in range(6):
        store.log.put(message(b"%d" % number + bytes(2900)))
    store.dispatch()
    assert store.close()
    return root


def test_segments_of_one_record_that_are_swapped_are_known(tmp_path: Path) -> None:
    root = one_record_each(tmp_path / "store")
    one, other = log_segment(root, SEGMENT), log_segment(root, 2 * SEGMENT)
    one.rename(root / "aside")
    other.rename(one)
    (root / "aside").rename(other)
    misplaced = at.check(root).log.misplaced
    assert [(start, own) for _, start, own in misplaced] == [
        (SEGMENT, 2 * SEGMENT), (2 * SEGMENT, SEGMENT)
    ]  # fmt: skip


def test_the_only_record_of_a_segment_with_a_damaged_log_offset_is_not_misplaced(
    tmp_path: Path,
) -> None:
    root = one_record_each(tmp_path / "store")
    flip(log_segment(root, 2 * SEGMENT), 34, SEGMENT >> 8)
    report = at.check(root)
    assert report.log.misplaced == []
    assert [gap.start for gap in report.gaps] == [2 * SEGMENT]
