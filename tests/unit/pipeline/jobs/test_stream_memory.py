"""The memory of a stream, its messages about failures and packages, and how it counts."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aerobee.pipeline.jobs.common.job_result import JobFailed
from aerobee.pipeline.jobs.stream.failures import stream_failure
from aerobee.pipeline.jobs.stream.reports import Report, Stopping
from aerobee.pipeline.jobs.stream.stream_run import watch
from aerobee.pipeline.jobs.stream.tables.packages import (
    check_asked,
    missing,
    no_packages,
    settings_of,
)
from tests.unit.pipeline.jobs.test_stream_plan import plan

pytest.importorskip("pyarrow")

from aerobee.pipeline.jobs.stream.stream_memory import Memory, Notes, only_run
from aerobee.pipeline.jobs.targets.target import Target


def test_a_stream_is_the_same_one_at_each_start(tmp_path: Path) -> None:
    made = plan(f"--to {tmp_path}/t --topic a")
    folder = Target(made.checkpoint)
    first = Memory(folder, made)
    first.keep({"type": "struct", "fields": []}, {made.table.place: "7"})
    again = Memory(folder, made)
    assert (again.id, again.schema) == (first.id, {"type": "struct", "fields": []})
    assert again.table(made.table.place) == "7"
    before = folder.names("aerobee")
    again.keep(again.schema, {made.table.place: "7"})
    assert folder.names("aerobee") == before  # nothing new, nothing written
    # A table may be moved together with the checkpoint in it.
    (tmp_path / "t").rename(tmp_path / "moved")
    moved = plan(f"--to {tmp_path}/moved --topic a")
    assert Memory(Target(moved.checkpoint), moved).table(moved.table.place) == "7"


def test_of_two_first_runs_one_is_the_stream(tmp_path: Path) -> None:
    made = plan(f"--to s3a://b/t --topic a --checkpoint {tmp_path}/c")
    folder = Target(made.checkpoint)
    memory = Memory(folder, made)

    class Late(Target):
        """The other run's note appears after this one has looked."""

        def write_new(self, path: str, data: bytes) -> bool:
            memory.keep(None, {})
            return super().write_new(path, data)

    late = Memory(Late(made.checkpoint), made)
    with pytest.raises(JobFailed, match="began at the same time"):
        late.keep(None, {})
    assert Memory(folder, made).id == memory.id


def test_one_run_at_a_time(tmp_path: Path) -> None:
    made = plan(f"--to {tmp_path}/t --topic a")
    with (
        only_run(made),
        pytest.raises(JobFailed, match=r"topic a to .* is under way"),
        only_run(made),
    ):
        pass
    with only_run(made):
        pass
    (tmp_path / "file").touch()
    blocked = plan(f"--to {tmp_path}/file --topic a")
    with pytest.raises(JobFailed, match="cannot write to"), only_run(blocked):
        pass


def test_a_note_that_is_torn_is_an_error_and_the_newest_counts(tmp_path: Path) -> None:
    notes = Notes(Target(str(tmp_path)), "own", "note")
    assert notes.latest() is None
    for number in range(12):
        assert notes.write({"n": number})
    assert notes.latest() == {"n": 11}
    (tmp_path / "own" / "note-12.json").write_text('{"n"')
    with pytest.raises(JobFailed, match=r"own/note-12\.json cannot be read"):
        notes.latest()


@pytest.mark.parametrize(
    ("error", "text", "code"),
    [
        ("x [USER_RAISED_EXCEPTION] the body of message 3 of queue 0 of broker b of topic a is no "
         "JSON object of the schema (mode failfast) SQLSTATE: P0001",
         "topic a is no JSON object of the schema (mode failfast): nothing of its batch", 1),
        ("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update", "two runs of the stream from topic a",
         3),
        ("io.delta.exceptions.MetadataChangedException: [DELTA_METADATA_CHANGED] x",
         "somebody else changed table T while a batch of topic a was written (Metadata", 3),
        ("[INCOMPATIBLE_DATA_FOR_TABLE.CANNOT_SAFELY_CAST] Cannot write\nmore",
         "topic a no longer fits table T, whose columns somebody changed: [INCOMPATIBLE", 3),
    ],
)  # fmt: skip
def test_a_failure_names_topic_table_and_remedy(error: str, text: str, code: int) -> None:
    made = plan("--to /T --topic a --body json --mode failfast")
    found = stream_failure(RuntimeError(error), made)
    assert found is not None
    assert found.code == code
    assert text.replace("table T", "table /T") in str(found)
    assert "\n" not in str(found)
    assert stream_failure(RuntimeError("something else"), made) is None


def test_packages_and_settings_are_said_with_the_words_that_bring_them() -> None:
    assert missing("delta", "4.2.1").endswith("--packages io.delta:delta-spark_4.2_2.13:4.4.0")
    assert "pip install 'pyspark==4.1.*'" in missing("iceberg", "4.3.0")
    assert missing("avro", "4.3.0").endswith("org.apache.spark:spark-avro_2.13:4.3.0")
    made = plan("--to /T --topic a --format delta")
    settings = settings_of(made, "g:a:1", {"spark.sql.extensions": "My", "spark.x": "y"})
    assert settings["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension,My"
    assert (settings["spark.jars.packages"], settings["spark.x"]) == ("g:a:1", "y")
    assert settings_of(plan("--to /T --topic a"), None, {}) == {}
    gone = RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited")
    assert "with --packages g:a:1: what it says" in str(no_packages(gone, "g:a:1"))
    assert no_packages(gone, None) is None


def test_a_package_of_another_spark_is_told_before_it_is_brought() -> None:
    made, delta = plan("--to /T --topic a --format delta"), "io.delta:delta-spark_4.2_2.13:4.4.0"
    check_asked(made, f"g:a:1,{delta}", "4.2.1")
    check_asked(made, None, "4.3.0")
    with pytest.raises(JobFailed, match=rf"{delta} is for Spark 4.2, and this is 4.3.0: there is"):
        check_asked(made, f"g:a:1,{delta}", "4.3.0")


def progress(number: int, counts: tuple[int, int] | None, end: int = 0, last: int = 0) -> Any:
    def offset(value: int) -> str:
        return json.dumps({"a": {"broker": {"0": value}}})

    metrics = {} if counts is None else {"aerobee": {"rows": counts[0], "bad": counts[1]}}
    source = {"endOffset": offset(end), "latestOffset": offset(last)}
    return {"batchId": number, "observedMetrics": metrics, "sources": [source]}


def test_each_batch_is_counted_once_though_some_are_seen_late() -> None:
    said: list[str] = []
    clock = iter([0.0, 1.0, 11.0, 12.0, 13.0])
    made = plan("--to /T --topic a --body json --report-every 10")
    report = Report(made, said.append, lambda: next(clock))
    seen = [progress(0, (10, 1), 10, 30), progress(1, (5, 0), 15, 30), progress(2, None)]
    query = SimpleNamespace(lastProgress=None, recentProgress=seen)
    report.look(query)
    query.lastProgress = seen[1]
    report.look(query)
    assert said == [
        "11 s: 15 messages in 2 batches, 1 a second, 1 bad bodies in the column bad_body, 15 behind"
    ]
    query.lastProgress = seen[2]
    report.look(query)
    report.look(query)
    assert (report.batches, report.rows, report.bad) == (2, 15, 1)
    facts = report.result(True).facts
    assert (facts["messages"], facts["bad_bodies"], facts["stopped"]) == (15, 1, True)


class Query:
    """A query that has ended; it tells its failure to a caller that asks."""

    isActive = False
    lastProgress = None

    def __init__(self, error: Exception | None) -> None:
        self._error = error
        self.was_stopped = False

    def awaitTermination(self, timeout: float | None = None) -> None:
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self.was_stopped = True
        raise ConnectionError("the JVM is gone")


def failed(error: Exception | None) -> Any:
    return SimpleNamespace(failed=error)


def test_a_query_that_has_failed_is_never_taken_for_one_that_has_ended() -> None:
    report = Report(plan("--to /T --topic a"), None)
    told, at_first_hand = RuntimeError("pages of Spark"), RuntimeError("a word of ours")
    for batch_failed, error in ((None, told), (at_first_hand, at_first_hand)):
        query = Query(told)
        with pytest.raises(RuntimeError) as caught:
            watch(query, Stopping(), report, failed(batch_failed))
        assert caught.value is error
        assert query.was_stopped
    watch(Query(None), Stopping(), report, failed(None))
    asked = Stopping()
    asked.asked = True
    query = Query(told)
    watch(query, asked, report, failed(at_first_hand))
    assert query.was_stopped


def test_a_progress_without_offsets_has_no_lag() -> None:
    said: list[str] = []
    clock = iter([0.0, 1.0])
    report = Report(plan("--to /T --topic a --report-every 0"), said.append, lambda: next(clock))
    odd = progress(0, (1, 0)) | {"sources": [{"endOffset": "{a=1}", "latestOffset": None}]}
    report.look(SimpleNamespace(lastProgress=odd, recentProgress=[odd]))
    assert said == ["1 s: 1 messages in 1 batches, 1 a second"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_for_the_end_and_is_given_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Stopping() as stopping:
        stopping.listen()
        assert not stopping.asked
        os.kill(os.getpid(), number)
        assert stopping.asked
    assert signal.getsignal(number) is before
