"""An archive in a bucket of a real S3 server: what is decided is seen whole, and decided once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from aerobee.pipeline.jobs.archive import archived_files
from aerobee.pipeline.jobs.targets.ledger import Ledger
from aerobee.pipeline.jobs.targets.target import Target
from tests import campaign
from tests.spark.kit import VERSIONS, Driver
from tests.spark.s3_server import S3Server, s3_server
from tests.spark.stores.test_jobs import archived, in_store, job
from tests.unit.pipeline.jobs.test_jobs_ledger import ALL, Killed, KilledAt, by_ledger, decided, run
from tests.unit.store.at_rest import audit_support as at

_NEVER = 1 << 30


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


def in_directory(target: Target) -> list[int]:
    """The places that a reader of the directory alone sees."""
    found: list[int] = []
    for path in target.sizes(""):
        if path.endswith(".parquet") and not path.startswith("_"):
            table = pq.read_table(target.path(path), filesystem=target._files, partitioning=None)
            found += table.column("place").to_pylist()
    return sorted(found)


def test_whoever_reads_by_the_ledger_sees_decided_ranges_whole(s3: S3Server) -> None:
    changes = KilledAt(s3.uri("count"), _NEVER)
    run(changes)
    total = _NEVER - changes.left
    assert total > 40
    step = 1 if campaign.is_full() else 5
    seen = set()
    for at_change in range(1, total + 1, step):
        uri = s3.uri(f"killed-{at_change}")
        with pytest.raises(Killed):
            run(KilledAt(uri, at_change))
        target = Target(uri)
        assert by_ledger(target) == decided(target), at_change
        assert set(in_directory(target)) <= set(decided(target)), at_change
        seen.add(len(in_directory(target)) == len(decided(target)))
        run(target)
        assert in_directory(target) == by_ledger(target) == ALL, at_change
        assert not Ledger(target).check()
    # The directory alone was behind the decision now and then.
    assert seen == {True, False}


def test_of_many_that_write_an_object_at_once_one_does(s3: S3Server) -> None:
    for number in range(10):
        writers = [Target(s3.uri("once")) for _ in range(8)]
        with ThreadPoolExecutor(len(writers)) as pool:
            made = list(
                pool.map(
                    lambda place, who: place.write_new(f"entry-{number}", b"%d" % who),  # noqa: B023
                    writers,
                    range(len(writers)),
                )
            )
        assert sum(made) == 1
        winner = made.index(True)
        assert writers[0].read(f"entry-{number}") == b"%d" % winner
        # A put that is sent again because its answer was lost counts as the winner.
        assert writers[0].write_new(f"entry-{number}", b"%d" % winner)
        assert not writers[0].write_new(f"entry-{number}", b"another")


def test_who_comes_second_gives_way_on_s3(s3: S3Server) -> None:
    from aerobee.pipeline.jobs.targets.ledger import LedgerError
    from tests.unit.pipeline.jobs.test_jobs_ledger import writer

    uri = s3.uri("second")
    first = writer(Target(uri))

    def overtaken(start: int, end: int, aside: str) -> Any:
        staged = first(start, end, aside)
        Ledger(Target(uri)).archive(start, end, first)
        return staged

    with pytest.raises(LedgerError, match="another run"):
        Ledger(Target(uri)).archive(0, 1000, overtaken)
    assert by_ledger(Target(uri)) == list(range(0, 1000, 100))


def test_the_job_archives_to_s3_and_reads_what_is_not_in_its_place_yet(
    new_driver: Callable[..., Driver], s3: S3Server, tmp_path: Path
) -> None:
    root = at.make(tmp_path / "store")
    driver = new_driver(VERSIONS[0], conf=s3.of_spark())
    uri = s3.uri("messages")
    arguments = ["archive", str(root), "--to", uri, "--range-bytes", "8192"]
    first = driver.run(job, arguments=arguments)
    assert (first["code"], first["facts"]["rows"]) == (0, len(at.records(root)))
    assert "topsecret" not in first["text"]
    everything = driver.run(in_store, store=str(root))
    assert driver.run(archived, target=uri) == everything
    # A run that is killed after the decision, before its files are in their places, leaves this.
    target = Target(uri)
    last = Ledger(target).entries()[-1]
    target._files.delete_file(target.path(f"_archive/done/{last.name}"))
    for file in last.files:
        target._files.delete_file(target.path(file.place))
    assert any("/_archive/staging/" in path for path in archived_files(uri))
    assert driver.run(archived, target=uri) == everything
    again = driver.run(job, arguments=arguments)
    assert (again["code"], again["facts"]["rows"]) == (0, 0)
    assert not any("/_archive/" in path for path in archived_files(uri))
    assert driver.run(archived, target=uri) == everything
    checked = driver.run(job, arguments=["archive", str(root), "--to", uri, "--check"])
    assert (checked["code"], checked["facts"]["wrong"]) == (0, [])
