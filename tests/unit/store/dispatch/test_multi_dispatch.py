"""Claims about messages that are found through several queues, and about light queues."""

import shutil
from pathlib import Path

import msgspec
import pytest

from aerobee.config.model import Settings
from aerobee.protocol.message.record import StoreMessage, decode_record
from aerobee.protocol.message.record_layout import (
    SYS_TRANSACTION_PREPARED,
    SYS_TRANSACTION_ROLLBACK,
)
from aerobee.store.at_rest.audit.verify import verify
from aerobee.store.errors import LmqConsumeQueueNumExceeded, MessageIllegal, PropertiesTooLarge
from aerobee.store.log import commit_log
from aerobee.store.message_store import MessageStore
from aerobee.store.segments.results import Arrival
from tests.golden import make_store_options
from tests.golden.make_store import FIRST_MS, QUEUE_BYTES, STEP_MS
from tests.golden.make_store_options import LMQ_LOG_BYTES, LMQ_WORKLOAD, write_lmq_store
from tests.unit.store.at_rest.audit_support import keep_topics
from tests.unit.store.support import (
    SEGMENT,
    ManualClock,
    bodies,
    flip,
    from_properties,
    kill_image,
    log_segment,
    message,
    queue_file,
    read_all,
    small_settings,
    tree,
)

GOLDEN = make_store_options.target("lmq")
X, Y = "%LMQ%x", "%LMQ%y"


def light_settings(path: Path, **changes: object) -> Settings:
    values: dict[str, object] = {"multi_dispatch": True, "lmq_enabled": True}
    return small_settings(path, **(values | changes))


def light(path: Path, **changes: object) -> MessageStore:
    return MessageStore.open(light_settings(path, **changes))


def to(names: str, body: bytes = b"hello", topic: str = "Orders", **more: object) -> StoreMessage:
    return message(body, topic, more={"INNER_MULTI_DISPATCH": names}, **more)  # type: ignore[arg-type]


def stored_properties(store: MessageStore, log_offset: int) -> dict[str, str]:
    record = store.reader.record_at(log_offset)
    assert record is not None
    return decode_record(record).properties


def derived(root: Path) -> dict[str, bytes]:
    return tree(root, "consumequeue")


# --- what is written ------------------------------------------------------------------------------


def golden_settings(path: Path) -> Settings:
    return light_settings(
        path, commit_log_segment_bytes=LMQ_LOG_BYTES, consume_queue_segment_bytes=QUEUE_BYTES
    )


def test_golden_files_are_what_their_program_makes(tmp_path: Path) -> None:
    write_lmq_store(tmp_path / "made")
    for folder in ("commitlog", "consumequeue"):
        assert tree(tmp_path / "made", folder) == tree(GOLDEN, folder)


def test_our_files_are_the_golden_ones_byte_for_byte(tmp_path: Path) -> None:
    clock = ManualClock()
    store = MessageStore.open(golden_settings(tmp_path), clock=clock)
    for turn, item in enumerate(LMQ_WORKLOAD):
        clock.time_ms = FIRST_MS + turn * STEP_MS
        text = item.properties.encode()
        store.log.put(
            from_properties(item.body, item.topic, item.queue_id, text, born_ms=FIRST_MS - 5)
        )
    store.dispatch()
    assert store.close()
    for folder in ("commitlog", "consumequeue"):
        assert tree(tmp_path, folder) == tree(GOLDEN, folder)


def test_queues_made_again_from_the_log_are_the_golden_ones(tmp_path: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(GOLDEN / "commitlog", root / "commitlog")
    store = MessageStore.open(golden_settings(root))
    assert store.close()
    assert derived(root) == derived(GOLDEN)


def test_a_message_is_found_through_all_queues_it_lists(tmp_path: Path) -> None:
    store = light(tmp_path)
    store.log.put(to(f"{X},Audit,{Y}", b"one", queue_id=3, tags="a"))
    store.log.put(to(X, b"two", queue_id=1))
    arrivals = store.dispatch()
    assert bodies(store, "Orders", 3) == bodies(store, "Audit", 3) == bodies(store, Y) == [b"one"]
    assert bodies(store, X) == [b"one", b"two"]
    assert [(one.topic, one.queue_id, one.queue_offset) for one in arrivals] == [
        ("Orders", 3, 0), (X, 0, 0), ("Audit", 3, 0), (Y, 0, 0), ("Orders", 1, 0), (X, 0, 1),
    ]  # fmt: skip
    assert len({arrival.tags_code for arrival in arrivals[:4]}) == 1
    assert store.close()


def test_the_record_tells_the_offsets_and_nothing_of_wait(tmp_path: Path) -> None:
    store = light(tmp_path)
    store.log.put(to(Y))
    more = {"WAIT": "true", "INNER_MULTI_QUEUE_OFFSET": "77,78", "mine": "kept"}
    made = message(more={"INNER_MULTI_DISPATCH": f"{X},{Y}"} | more)
    found = stored_properties(store, store.log.put(made).log_offset)
    assert found == {
        "INNER_MULTI_DISPATCH": f"{X},{Y}",
        "mine": "kept",
        "INNER_MULTI_QUEUE_OFFSET": "0,1",
    }
    assert store.close()


def test_without_light_queues_such_names_have_the_message_s_queue_id(tmp_path: Path) -> None:
    store = light(tmp_path, lmq_enabled=False)
    store.log.put(to(X, b"one", queue_id=3))
    store.dispatch()
    assert bodies(store, X, 3) == [b"one"]
    assert bodies(store, X, 0) == []
    assert store.close()


def test_with_the_option_off_a_message_has_its_own_queue_only(tmp_path: Path) -> None:
    store = MessageStore.open(small_settings(tmp_path, lmq_enabled=True))
    store.log.put(to(X))
    assert [arrival.topic for arrival in store.dispatch()] == ["Orders"]
    assert list(store.queues()) == [("Orders", 0)]
    assert store.close()


def test_a_queue_listed_twice_or_the_message_s_own_gets_one_unit(tmp_path: Path) -> None:
    store = light(tmp_path)
    result = store.log.put(to(f"{X},{X},Orders", b"one"))
    store.log.put(to(X, b"two"))
    store.dispatch()
    assert stored_properties(store, result.log_offset)["INNER_MULTI_QUEUE_OFFSET"] == "0,0,0"
    assert bodies(store) == bodies(store, X) == [b"one", b"two"]
    assert store.close()


@pytest.mark.parametrize(
    "made",
    [
        to(X, topic="%RETRY%group"),
        to(X, topic="%DLQ%group"),
        to(X, topic="SCHEDULE_TOPIC_XXXX"),
        to(X, topic="RMQ_SYS_TRANS_HALF_TOPIC"),
        to(X, sys_flag=SYS_TRANSACTION_PREPARED),
        to(X, sys_flag=SYS_TRANSACTION_ROLLBACK),
    ],
    ids=lambda made: f"{made.topic} {made.sys_flag}",
)
def test_copies_and_messages_that_wait_are_not_dispatched_further(
    tmp_path: Path, made: StoreMessage
) -> None:
    store = light(tmp_path)
    result = store.log.put(made)
    assert X not in [arrival.topic for arrival in store.dispatch()]
    assert "INNER_MULTI_QUEUE_OFFSET" not in stored_properties(store, result.log_offset)
    assert store.close()


def test_messages_of_a_batch_go_into_their_own_queue_only(tmp_path: Path) -> None:
    store = light(tmp_path)
    store.log.put_batch([to(X, b"one"), to(X, b"two")])
    assert [arrival.topic for arrival in store.dispatch()] == ["Orders", "Orders"]
    assert store.close()


def test_a_record_that_begins_the_next_segment_has_the_right_numbers(tmp_path: Path) -> None:
    store = light(tmp_path)
    count = 0
    while store.written < 2 * SEGMENT + 500:
        store.log.put(to(f"{X},{Y}", b"%d" % count + b"." * 700))
        count += 1
    store.dispatch()
    offsets = [one.properties["INNER_MULTI_QUEUE_OFFSET"] for one in read_all(store, Y)]
    assert offsets == [f"{n},{n}" for n in range(count)]
    assert store.close()


def test_sealed_records_are_multi_dispatched_too(tmp_path: Path) -> None:
    store = light(tmp_path, append_property_crc=True, verify_property_crc=True)
    result = store.log.put(to(X, b"one"))
    store.dispatch()
    assert list(stored_properties(store, result.log_offset)) == [
        "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "__CRC32#",
    ]  # fmt: skip
    assert bodies(store, X) == [b"one"]
    assert store.close()


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    ["../../etc", "a/b", "..", ".", "a,,b", ",", " ", "a\x00", "a\nb", "SCHEDULE_TOPIC_XXXX",
     "RMQ_SYS_TRANS_OP_HALF_TOPIC", "ok,a/b", "n" * 128],
)  # fmt: skip
def test_a_name_that_can_be_no_queue_refuses_the_message(tmp_path: Path, names: str) -> None:
    store = light(tmp_path)
    store.log.put(to("ok", b"before"))
    end = store.written
    with pytest.raises(MessageIllegal, match=r"not allowed|are allowed|no queue"):
        store.log.put(to(names))
    assert store.written == end
    assert store.stats.put_failures == {"MessageIllegal": 1}
    store.log.put(to("ok", b"after"))
    store.dispatch()
    assert bodies(store, "ok") == bodies(store) == [b"before", b"after"]
    assert store.close()


def test_as_many_light_queues_as_allowed_and_not_one_more(tmp_path: Path) -> None:
    store = light(tmp_path, lmq_max_queues=3)
    store.log.put(to(f"{X},Audit"))
    store.log.put(to(Y))
    store.log.put(message(topic="%LMQ%straight"))
    end = store.written
    for refused in (to("%LMQ%z"), to(f"{X},%LMQ%z"), message(topic="%LMQ%z")):
        with pytest.raises(LmqConsumeQueueNumExceeded, match=r"maxLmqConsumeQueueNum\) allows: 3"):
            store.log.put(refused)
    assert store.written == end
    assert store.stats.put_failures == {"LmqConsumeQueueNumExceeded": 3}
    store.log.put(to(f"{X},{Y},Audit2", b"goes on"))
    store.dispatch()
    assert bodies(store, Y)[-1] == b"goes on"
    store.delete_topic(X)
    store.log.put(to("Audit3"))
    store.log.put(to("%LMQ%z"))
    with pytest.raises(LmqConsumeQueueNumExceeded):
        store.log.put(to(X))
    assert store.close()


def test_the_limit_counts_what_is_there_and_stops_no_recovery(tmp_path: Path) -> None:
    store = light(tmp_path)
    for name in "abc":
        store.log.put(to(f"%LMQ%{name}"))
    store.dispatch()
    assert store.close()
    shutil.rmtree(tmp_path / "consumequeue")
    store = light(tmp_path, lmq_max_queues=2)
    assert sorted(store.queues()) == [
        ("%LMQ%a", 0), ("%LMQ%b", 0), ("%LMQ%c", 0), ("Orders", 0),
    ]  # fmt: skip
    with pytest.raises(LmqConsumeQueueNumExceeded):
        store.log.put(to("%LMQ%d"))
    store.log.put(to("%LMQ%c"))
    assert store.close()


def test_the_limit_of_properties_includes_the_offsets(tmp_path: Path) -> None:
    store = light(tmp_path, commit_log_segment_bytes=100_000)
    text = f"INNER_MULTI_DISPATCH\x01{X}\x02A\x01".encode()
    added = len("\x02INNER_MULTI_QUEUE_OFFSET\x010")

    def made(size: int) -> StoreMessage:
        return from_properties(b"x", "Orders", 0, text + b"v" * (size - len(text)))

    store.log.put(made(32_767 - added))
    # Number 1 and its room for one digit more.
    with pytest.raises(PropertiesTooLarge, match="32768 bytes, 32767"):
        store.log.put(made(32_767 - added))
    store.log.put(made(32_767 - added - 1))
    store.dispatch()
    assert len(bodies(store, X)) == 2
    assert store.close()


# --- what is made again ---------------------------------------------------------------------------


def fill(store: MessageStore) -> None:
    for n in range(24):
        names = ",".join([X, Y, "Audit"][: n % 4]) + f",{X},Orders" * (n == 13)
        more = {"INNER_MULTI_DISPATCH": names} if names else {}
        store.log.put(message(b"%d" % n, queue_id=n % 2, more=more, tags=f"T{n % 3}"))


@pytest.mark.parametrize(
    "missing", ["", "consumequeue", f"consumequeue/{X}", "consumequeue/Orders"]
)
@pytest.mark.parametrize("crashed", [False, True])
def test_what_is_rebuilt_equals_what_was_there(tmp_path: Path, missing: str, crashed: bool) -> None:
    store = light(tmp_path)
    fill(store)
    store.dispatch()
    assert store.close()
    before = derived(tmp_path)
    if missing:
        shutil.rmtree(tmp_path / missing)
    if crashed:
        (tmp_path / "abort").touch()
        (tmp_path / "checkpoint").unlink()
        (tmp_path / "offsets").unlink()
    store = light(tmp_path)
    assert store.recovery.gaps == []
    assert store.log.put(to(X)).queue_offset == 12
    assert stored_properties(store, store.recovery.log_end)["INNER_MULTI_QUEUE_OFFSET"] == "18"
    assert derived(tmp_path) == before
    store.close()


def test_a_reput_that_reads_the_log_gives_the_same_bytes_and_arrivals(tmp_path: Path) -> None:
    arrivals: list[list[Arrival]] = []
    for way in ("fed", "read"):
        store = light(tmp_path / way)
        fill(store)
        if way == "read":
            store.log.stop_feeding()
        arrivals.append(store.dispatch())
        assert store.close()
    assert arrivals[0] == arrivals[1]
    assert derived(tmp_path / "fed") == derived(tmp_path / "read")


def test_a_feed_that_runs_over_leaves_nothing_to_be_dispatched_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "PENDING_MOST", 10)
    store = light(tmp_path)
    arrivals = []
    for n in range(60):
        store.log.put(to(f"{X},{Y}", b"%d" % n))
        if n % 7 == 6:
            arrivals += store.dispatch()
    arrivals += store.dispatch()
    assert len({msgspec.structs.astuple(arrival) for arrival in arrivals}) == len(arrivals) == 180
    for name in ("Orders", X, Y):
        assert bodies(store, name) == [b"%d" % n for n in range(60)]
    assert store.close()


@pytest.mark.parametrize("option", [True, False])
def test_a_crash_costs_no_unit_of_a_light_queue(tmp_path: Path, option: bool) -> None:
    """Their records name other topics; with the option off they are kept as they are."""
    running = tmp_path / "running"
    store = light(running)
    fill(store)
    store.dispatch()
    root = kill_image(running, tmp_path / "killed")
    store.close()
    (root / "offsets").unlink()
    store = light(root, multi_dispatch=option)
    assert store.recovery.entries_blanked == store.recovery.queues_cut == 0
    assert len(bodies(store, X)) == 18
    assert len(bodies(store, Y)) == 12
    store.close()


def test_a_damaged_number_of_a_further_queue_costs_that_queue_s_unit_only(tmp_path: Path) -> None:
    running = tmp_path / "running"
    store = light(running)
    fill(store)
    store.dispatch()
    place = next(one for one in read_all(store, X) if one.body == b"9").log_offset
    root = kill_image(running, tmp_path / "killed")
    store.close()
    shutil.rmtree(root / "consumequeue" / X)
    data = log_segment(root).read_bytes()
    digit = data.index(b"INNER_MULTI_QUEUE_OFFSET\x01", place) + 25
    flip(log_segment(root), digit, 0x08)  # 6 becomes >
    store = light(root)
    assert bodies(store, "Orders", 1) == [b"%d" % n for n in range(24) if n % 2]
    assert b"9" not in bodies(store, X)
    assert len(bodies(store, X)) == 17
    store.close()


def test_a_wrong_number_of_a_further_queue_costs_that_queue_s_unit_only(tmp_path: Path) -> None:
    running = tmp_path / "running"
    store = light(running)
    fill(store)
    store.dispatch()
    place = next(one for one in read_all(store, X) if one.body == b"9").log_offset
    root = kill_image(running, tmp_path / "killed")
    store.close()
    shutil.rmtree(root / "consumequeue" / X)
    data = log_segment(root).read_bytes()
    digit = data.index(b"INNER_MULTI_QUEUE_OFFSET\x01", place) + 25
    flip(log_segment(root), digit, 0x01)  # 6 becomes 7
    store = light(root)
    assert bodies(store, "Orders", 1) == [b"%d" % n for n in range(24) if n % 2]
    assert len(bodies(store, X)) == 17
    assert (store.recovery.gaps, store.recovery.further_strays) == ([], 1)
    store.close()


@pytest.mark.parametrize("number", ["9" * 2500, str(1 << 62), "-1", "", "1,2", "\u0661"])
def test_a_number_that_is_none_is_passed_over(tmp_path: Path, number: str) -> None:
    """A foreign broker may have stored it, with the option off for example."""
    more = {"INNER_MULTI_DISPATCH": X, "INNER_MULTI_QUEUE_OFFSET": number}
    store = MessageStore.open(small_settings(tmp_path))
    store.log.put(message(more=more))
    store.dispatch()
    assert store.close()
    shutil.rmtree(tmp_path / "consumequeue")
    store = light(tmp_path)
    assert list(store.queues()) == [("Orders", 0)]
    assert store.close()


def test_deleting_a_light_queue_leaves_the_others_alone(tmp_path: Path) -> None:
    store = light(tmp_path)
    store.log.put(to(f"{X},{Y}", b"one"))
    store.delete_topic(X)
    store.log.put(to(f"{X},{Y}", b"two"))
    store.dispatch()
    assert bodies(store, X) == [b"two"]
    assert bodies(store, Y) == bodies(store) == [b"one", b"two"]
    assert read_all(store, X)[0].properties["INNER_MULTI_QUEUE_OFFSET"] == "0,1"
    assert store.close()


def test_units_lie_where_the_format_says(tmp_path: Path) -> None:
    store = light(tmp_path)
    result = store.log.put(to(X))
    store.dispatch()
    assert store.close()
    unit = queue_file(tmp_path, X).read_bytes()[:12]
    assert unit == result.log_offset.to_bytes(8, "big") + result.size.to_bytes(4, "big")


# --- what an audit says ---------------------------------------------------------------------------


def audit(root: Path, **options: object) -> dict[str, int]:
    changes = {"multi_dispatch": False, "lmq_enabled": False} | options
    if not (root / "config").exists():
        keep_topics(root)
    return dict(verify(small_settings(root, **changes)).findings.counts)


@pytest.mark.parametrize("lights", [False, True])
def test_an_audit_finds_each_unit_of_a_further_queue_in_its_place(
    tmp_path: Path, lights: bool
) -> None:
    store = light(tmp_path, lmq_enabled=lights)
    fill(store)
    store.dispatch()
    assert store.close()
    for multi_dispatch in (False, True):
        for lmq_enabled in (False, lights):
            options = {"multi_dispatch": multi_dispatch, "lmq_enabled": lmq_enabled}
            assert audit(tmp_path, **options) == {}


def test_an_audit_names_a_wrong_unit_of_a_further_queue(tmp_path: Path) -> None:
    store = light(tmp_path)
    fill(store)
    store.dispatch()
    assert store.close()
    path = queue_file(tmp_path, X)
    data = bytearray(path.read_bytes())
    data[60:80] = data[80:100]
    path.write_bytes(data)
    assert set(audit(tmp_path)) == {"unit-wrong", "unit-order"}


def test_an_audit_misses_a_further_queue_if_there_should_be_one(tmp_path: Path) -> None:
    store = light(tmp_path)
    fill(store)
    store.dispatch()
    assert store.close()
    shutil.rmtree(tmp_path / "consumequeue" / X)
    assert audit(tmp_path) == {}
    assert audit(tmp_path, multi_dispatch=True, lmq_enabled=True) == {"queue-missing": 1}


# --- all options of queues and records at once ----------------------------------------------------


def test_all_options_at_once_give_what_each_gives_alone(tmp_path: Path) -> None:
    together = {"append_property_crc": True, "verify_property_crc": True}
    together |= {"consume_queue_ext_enabled": True, "consume_queue_ext_segment_bytes": 200}
    for root, options in (
        (tmp_path / "mapped", together),
        (tmp_path / "pooled", together | {"transient_pool_enabled": True}),
    ):
        store = MessageStore.open(light_settings(root, **options), clock=ManualClock())
        fill(store)
        store.log.put_batch([message(b"batch"), to(X, b"batched")])
        assert store.close()
        store = MessageStore.open(light_settings(root, **options))
        assert [len(bodies(store, name)) for name in (X, Y)] == [18, 12]
        assert bodies(store, "Orders", 1) == [b"%d" % n for n in range(1, 24, 2)]
        assert store.close()
    for folder in ("commitlog", "consumequeue", "consumequeue_ext"):
        assert tree(tmp_path / "mapped", folder) == tree(tmp_path / "pooled", folder)
