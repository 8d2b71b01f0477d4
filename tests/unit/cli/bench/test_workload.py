"""Workload files of the OpenMessaging Benchmark: keys that are read, and keys that are refused and
why."""

from pathlib import Path

import pytest

from aerobee.cli.bench.workload import Workload, WorkloadError, parse_workload, read_workload

WHOLE = """\
# Licensed to nobody in particular
name: 1 topic / 16 partitions / 1Kb

topics: 1
partitionsPerTopic: 16
messageSize: 1024
payloadFile: "payload/payload-1Kb.data"
useRandomizedPayloads: true   # with some zeros
randomBytesRatio: 0.5
randomizedPayloadPoolSize: 1_000
keyDistributor: 'KEY_ROUND_ROBIN'
subscriptionsPerTopic: 2
consumerPerSubscription: 3
producersPerTopic: 4
producerRate: 50000
consumerBacklogSizeGB: 8
backlogDrainRatio: 0.9
testDurationMinutes: 15
warmupDurationMinutes: 0
"""
LEAST = """\
topics: 1
partitionsPerTopic: 1
messageSize: 100
subscriptionsPerTopic: 1
consumerPerSubscription: 1
producersPerTopic: 1
producerRate: 0
testDurationMinutes: 5
"""


def test_every_key_is_read() -> None:
    assert parse_workload(WHOLE, "file") == Workload(
        name="1 topic / 16 partitions / 1Kb",
        topics=1,
        partitions_per_topic=16,
        message_size=1024,
        payload_file="payload/payload-1Kb.data",
        use_randomized_payloads=True,
        random_bytes_ratio=0.5,
        randomized_payload_pool_size=1000,
        key_distributor="KEY_ROUND_ROBIN",
        subscriptions_per_topic=2,
        consumer_per_subscription=3,
        producers_per_topic=4,
        producer_rate=50_000,
        consumer_backlog_size_gb=8,
        backlog_drain_ratio=0.9,
        test_duration_minutes=15,
        warmup_duration_minutes=0,
    )


def test_what_may_be_left_out_is_the_benchmarks_default() -> None:
    workload = parse_workload("\ufeff---\n" + LEAST, "the-file")
    assert workload.name == "the-file"
    assert (workload.warmup_duration_minutes, workload.backlog_drain_ratio) == (1, 1.0)
    assert (workload.key_distributor, workload.payload_file) == ("NO_KEY", "")


def test_quotes_and_comments_are_read_as_yaml_has_them() -> None:
    for written, name in (
        ('"a # b"', "a # b"),
        ("'it''s'  # more", "it's"),
        (r'"say \"hi\" \\ \n"', 'say "hi" \\ \n'),
        ("a#b # c", "a#b"),
        ("1: 2", "1: 2"),
    ):
        assert parse_workload(f"name: {written}\n{LEAST}", "file").name == name


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("topics: many", "line 1: topics must be a whole number from 1 to 10000, not 'many'"),
        ("topics: 0", "line 1: topics must be a whole number from 1 to 10000"),
        ("topics: 1.5", "must be a whole number"),
        ("topics:", "line 1: topics must be a whole number"),
        ("messageSize: 5000000", "messageSize must be a whole number from 1 to 4194304"),
        ("producerRate: -1", "producerRate must be a whole number from 0"),
        ("testDurationMinutes: 0", "testDurationMinutes must be"),
        ("randomBytesRatio: 2", "randomBytesRatio must be a number from 0 to 1, not '2'"),
        ("randomBytesRatio: nan", "randomBytesRatio must be a number from 0 to 1"),
        ("useRandomizedPayloads: perhaps", "useRandomizedPayloads must be true or false"),
        ("keyDistributor: ZIPF", "must be NO_KEY, KEY_ROUND_ROBIN or RANDOM_NANO, not 'ZIPF'"),
        ("mesageSize: 1", "line 1: there is no key mesageSize; did you mean messageSize?"),
        ("xyzzy: 1", "line 1: there is no key xyzzy"),
        ("producerIncrementRate: 5", "producerIncrementRate belongs to another version"),
        ("name: [a, b]", "line 1: the value must be a plain number or text: '[a, b]'"),
        ("name: &anchor x", "the value must be a plain number or text"),
        ("name: !!python/object:os.system x", "the value must be a plain number or text"),
        ("name: >", "the value must be a plain number or text"),
        ('name: "half', "line 1: the quoted value does not end"),
        ('name: "a" b', "line 1: the quoted value does not end"),
        ("just words", "line 1 is no `key: value`"),
        ("topics:1", "line 1 is no `key: value`"),
        ("  topics: 1", "line 1 is no `key: value`"),
        ("- topics: 1", "line 1 is no `key: value`"),
        ("name: a\nname: b", "line 2: name stands in line 1 already"),
        ("consumerBacklogSizeGB: 1", "consumerBacklogSizeGB needs a producerRate above 0"),
        ("useRandomizedPayloads: true", "needs a randomizedPayloadPoolSize of at least 1"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(line: str, said: str) -> None:
    keys = {one.partition(":")[0] for one in line.splitlines()}
    rest = "\n".join(one for one in LEAST.splitlines() if one.partition(":")[0] not in keys)
    with pytest.raises(WorkloadError) as error:
        parse_workload(f"{line}\n{rest}\n", "file")
    assert said in str(error.value)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(WorkloadError, match="it lacks topics, messageSize: "):
        parse_workload(LEAST.replace("topics: 1\n", "").replace("messageSize: 100\n", ""), "file")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("consumerPerSubscription: 1", "consumerPerSubscription: 0", "must be at least 1"),
        (
            "subscriptionsPerTopic: 1",
            "subscriptionsPerTopic: 0\nconsumerBacklogSizeGB: 1",
            "somebody to drain it",
        ),
        (
            "producerRate: 0",
            "producerRate: 1\nuseRandomizedPayloads: true\nrandomizedPayloadPoolSize: 1000000\n"
            "randomBytesRatio: 1",
            "",
        ),
    ],
)
def test_keys_that_do_not_go_together_are_refused(old: str, new: str, said: str) -> None:
    text = LEAST.replace(old, new)
    if said:
        with pytest.raises(WorkloadError, match=said):
            parse_workload(text, "file")
    else:
        assert parse_workload(text, "file").randomized_payload_pool_size == 1_000_000
        with pytest.raises(WorkloadError, match="more than 1 GiB in each process"):
            parse_workload(text.replace("messageSize: 100", "messageSize: 4096"), "file")


def test_a_payload_file_is_found_beside_the_workload_or_its_folder(tmp_path: Path) -> None:
    (tmp_path / "workloads").mkdir()
    (tmp_path / "payload").mkdir()
    payload = tmp_path / "payload" / "p.data"
    payload.write_bytes(bytes(100))
    file = tmp_path / "workloads" / "w.yaml"
    file.write_text(LEAST + "payloadFile: payload/p.data\n")
    assert Path(read_workload(file).payload_file).read_bytes() == bytes(100)
    payload.write_bytes(bytes(99))
    with pytest.raises(WorkloadError, match="has 99 bytes and messageSize is 100"):
        read_workload(file)
    payload.unlink()
    with pytest.raises(WorkloadError, match=r"its payloadFile payload/p\.data is not there"):
        read_workload(file)


def test_a_payload_file_does_not_count_where_bodies_are_random(tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    more = "useRandomizedPayloads: true\nrandomizedPayloadPoolSize: 3\npayloadFile: nowhere\n"
    file.write_text(LEAST + more)
    assert read_workload(file).payload_file == ""


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"none\.yaml cannot be read: No such file"):
        read_workload(tmp_path / "none.yaml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(WorkloadError, match="binary is no workload file: it is not UTF-8 text"):
        read_workload(tmp_path / "binary")
    (tmp_path / "wrong.yaml").write_text("topics: x\n")
    with pytest.raises(WorkloadError, match=r"wrong\.yaml: line 1: topics"):
        read_workload(tmp_path / "wrong.yaml")
