"""A stream's arguments are checked before Spark starts, and refused in one line."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from aerobee.cli.main import main
from aerobee.pipeline.jobs import submit
from aerobee.pipeline.jobs.arguments import build_parser
from aerobee.pipeline.jobs.common.job_result import JobFailed
from aerobee.pipeline.jobs.stream import stream_run
from aerobee.pipeline.jobs.stream.job_plan import JobPlan, read_plan
from aerobee.pipeline.source.source_options import read_source_options


def plan(words: str, **environ: str) -> JobPlan:
    parsed = build_parser().parse_args(["stream", *shlex.split(words)])
    return read_plan(parsed, submit.parse_time, {"NAMESRV_ADDR": "127.0.0.1:9876"} | environ)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--to t", "stream needs --topic (or --pattern, and not both)"),
        ("--to t --topic a --pattern b.*", "stream needs --topic (or --pattern, and not both)"),
        ("--to t --topic a --from yesterday", "not a time: 'yesterday'"),
        ("--to t --topic a --tags x --filter b=1", "--tags and --filter exclude each other"),
        ("--to t --topic a --filter 'b ='", "--tags or --filter"),
        ("--to t --topic a --columns topic,kees", "did you mean 'keys'?"),
        ("--to t --topic a --columns a,,b", "--columns a,,b: must be names that differ"),
        ("--to t --topic a --columns a,A", "--columns a,A: must be names that differ"),
        ("--to t --topic a --source pullTimeoutM=3", "did you mean 'pullTimeoutMs'?"),
        ("--to t --topic a --source startingOffsets=latest", "say it with --from"),
        ("--to t --topic a --source pullTimeoutMs", "--source pullTimeoutMs: not KEY=VALUE"),
        ("--to t --topic a --compact-every 3", "are for delta and iceberg"),
        ("--to t --topic a --existing", "a Parquet directory has one writer"),
        ("--to d/t --topic a --format delta --compact-bytes 1M", "needs --compact-every"),
        ("--to 'no table' --topic a --format delta", "must be the name of a table, or a directory"),
        ("--to shop.orders --topic a --format iceberg", "must name catalog, database and table"),
        ("--to shop.orders --topic a --format delta", "a table by name needs a --checkpoint"),
        ("--to t --topic a --bad-to b", "bodies that stay binary are never bad"),
        ("--to t --topic a --body json --bad-to t/b", "--bad-to t/b: must lie apart from --to"),
        ("--to t --topic a --body text --mode failfast --bad-to b", "for --mode permissive"),
        ("--to t --topic a --body text --schema x", "--schema is for --body json"),
        ("--to t --topic a --nested", "--nested is for --body json"),
        ("--to t --topic a --body avro", "needs --schema with the file of a schema"),
        ("--to t --topic a --body avro --schema NOWHERE", "--schema NOWHERE: No such file"),
        ("--to t --topic a --body protobuf --schema /", "belong together"),
        ("--to t --topic a --body json --message M", "belong together"),
        ("--to t --topic a --body json --body-option mode=x", "say it with --mode and --bad-to"),
        ("--to s3a://b/t --topic a --from latest", "needs --source consumerGroup=NAME"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    words: str, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def start(*_: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(stream_run, "open_session", start)
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:9876")
    with pytest.raises(JobFailed) as caught:
        plan(words)
    assert caught.value.code == 2
    assert text in str(caught.value)
    assert main(["pipeline", "stream", *shlex.split(words)]) == 2
    said = capsys.readouterr().err
    assert text in said
    assert said.count("\n") == 1


def test_name_servers_are_needed() -> None:
    with pytest.raises(JobFailed, match="NAMESRV_ADDR"):
        plan("--to t --topic a", NAMESRV_ADDR="")
    assert plan("--to t --topic a -n x:1").source["nameServer"] == "x:1"


def test_a_plan_is_options_of_the_source_that_it_takes(tmp_path: Path) -> None:
    made = plan(
        f"--to {tmp_path}/t --topic b --topic a,b --from 2026-11-21T10:00Z --tags 'x || y' "
        "--max-per-batch 500 --columns keys,storeTimestamp --source consumerGroup=g --trigger 1.5"
    )
    assert made.topics == ("a", "b")
    assert made.route == f"topics a, b to {tmp_path}/t"
    options = read_source_options(made.source, streaming=True)
    assert options.topics == ("a", "b")
    assert options.tags == {"x", "y"}
    assert options.start.timestamp_ms == 1_795_255_200_000
    assert (options.limits.most_rows, options.group) == (500, "g")
    # The columns that identify the message come along, whatever columns the table has.
    names = [column.name for column in options.columns]
    assert names == [
        "topic", "brokerName", "queueId", "queueOffset", "keys", "storeTimestamp", "body",
    ]  # fmt: skip
    assert made.columns == ("keys", "storeTimestamp")
    assert made.trigger_s == 1.5


def test_the_checkpoint_lies_in_a_tables_directory_unless_it_is_named(tmp_path: Path) -> None:
    made = plan(f"--to {tmp_path}/t --topic a")
    assert made.checkpoint == f"{tmp_path}/t/_aerobee/checkpoint"
    assert made.has_own_checkpoint
    assert made.table.uri == f"file://{tmp_path}/t"
    assert "startStateLocation" not in made.source
    made = plan(f"--to s3a://lake/t/ --topic a --checkpoint {tmp_path}/c --from latest")
    assert (made.table.place, made.checkpoint) == ("s3a://lake/t", f"{tmp_path}/c")
    assert not made.has_own_checkpoint
    assert made.source["startStateLocation"] == f"{tmp_path}/c/aerobee/start"
    assert plan("--to file:///x/t --topic a").table.place == "/x/t"
    made = plan("--to lake.shop.orders --topic a --format iceberg --checkpoint c")
    assert not made.table.is_directory


def test_a_schema_is_ddl_or_what_a_file_says(tmp_path: Path) -> None:
    assert plan("--to t --topic a --body json --schema 'a INT'").body.schema == "a INT"
    file = tmp_path / "schema"
    file.write_text("b STRING")
    assert plan(f"--to t --topic a --body json --schema {file}").body.schema == "b STRING"
    assert plan(f"--to t --topic a --body avro --schema {file}").body.schema == "b STRING"
    made = plan(f"--to t --topic a --body protobuf --message M --schema {file}")
    assert made.body.schema == str(file)
