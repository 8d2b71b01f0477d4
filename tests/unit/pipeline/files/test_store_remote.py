"""A store on an object store reads like one on a disk, and no more of it is fetched."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aerobee.pipeline.errors import StoreReadError
from aerobee.pipeline.files.segment_bytes import ReadAhead
from tests.unit.pipeline.object_store import ObjectStore
from tests.unit.pipeline.stores import errors, offsets, read_one_by_one, rows, write_store


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    root = tmp_path_factory.mktemp("bucket")
    write_store(root / "store", 400)
    with ObjectStore(root) as running:
        yield running


def test_all_ways_to_read_give_the_same_as_from_a_disk(
    bucket: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerobee.pipeline.files.part_reader.REMOTE_CHUNK_BYTES", 700)
    wanted = [one.log_offset for one in read_one_by_one(bucket.root / "store")]
    for options in (
        {"splitBytes": "1k"}, {"use": "commitlog"}, {"use": "consumequeue"}, {"mapped": "true"},
        {"topic": "A,Rare"},
    ):  # fmt: skip
        assert offsets(rows(bucket.uri("store"), **options)) == wanted
    assert not [request for request in bucket.requests if "REFUSED" in request[0]]


def test_a_time_range_fetches_its_segments_and_heads(bucket: ObjectStore) -> None:
    whole = sum(path.stat().st_size for path in (bucket.root / "store/commitlog").iterdir())
    bucket.requests.clear()
    found = rows(
        bucket.uri("store"), startTimestamp="2023-11-14T22:15:01Z",
        endTimestamp="2023-11-14T22:15:11Z",
    )  # fmt: skip
    assert len(found) == 10
    of_log = [size for method, key, size in bucket.requests
              if method == "GET" and "/commitlog/" in key]  # fmt: skip
    assert sum(of_log) < whole / 5


def test_credentials_are_in_no_error(bucket: ObjectStore) -> None:
    for path in ("nowhere", "store/config"):
        with pytest.raises(StoreReadError) as caught:
            rows(bucket.uri(path))
        assert "topsecret" not in str(caught.value)
        assert "key:" not in str(caught.value)
    path = bucket.root / "store" / "commitlog" / f"{4096:020d}"
    data = path.read_bytes()
    try:
        path.write_bytes(bytes(4096))
        texts = errors(rows(bucket.uri("store")))
        assert texts
        assert "topsecret" not in "".join(texts)
    finally:
        path.write_bytes(data)


# --- reading ahead ------------------------------------------------------------------------------


DATA = bytes(range(256)) * 40


@pytest.mark.parametrize("size", [1, 7, 100, 20_000])
def test_reading_ahead_gives_the_files_bytes(size: int) -> None:
    def read(position: int, count: int) -> bytes:
        return DATA[position : position + count]

    for step, count in ((50, 60), (60, 60), (1, 300), (300, 300), (90, 1)):
        ahead = ReadAhead(read, len(DATA), size)
        for position in range(100, 3000, step):
            assert ahead.read(position, count) == DATA[position : position + count]
        assert ahead.read(0, 10) == DATA[:10]
        assert ahead.read(len(DATA) - 5, 10) == DATA[-5:]
        ahead.close()


def test_a_file_that_ends_early_gives_no_bytes_from_behind_its_end() -> None:
    def read(position: int, count: int) -> bytes:
        return DATA[position : min(position + count, 1000)]

    ahead = ReadAhead(read, len(DATA), 300)
    for position in range(0, 2000, 100):
        assert ahead.read(position, 150) == DATA[position : min(position + 150, 1000)]
    ahead.close()


def test_only_what_is_wanted_is_read_ahead() -> None:
    asked: list[tuple[int, int]] = []

    def read(position: int, count: int) -> bytes:
        asked.append((position, count))
        return DATA[position : position + count]

    ahead = ReadAhead(read, 1000, 300)
    for position in (500, 600, 900):
        assert len(ahead.read(position, 100)) == 100
    ahead.close()
    assert max(position + count for position, count in asked) == 1000
    assert min(position for position, _ in asked) == 500
