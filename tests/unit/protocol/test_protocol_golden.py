"""Our codecs give the golden bytes, and read them back as the values they stand for."""

from __future__ import annotations

import importlib.util
import zlib
from pathlib import Path
from types import ModuleType

import pytest

from aerobee.broker.cluster.registration.registration import registration_body
from aerobee.nameserver.bodies import cluster_body, read_registration, read_topics, route_body
from aerobee.nameserver.routes import BrokerGroup, QueueData
from aerobee.protocol.bodies import clients as client_bodies
from aerobee.protocol.bodies import common as bodies
from aerobee.protocol.bodies import routes as route_bodies
from aerobee.protocol.bodies import statistics as stats_bodies
from aerobee.protocol.bodies.common import MessageQueue
from aerobee.protocol.bodies.topics import DataVersion, TopicConfig
from aerobee.protocol.filters.subscription import parse_tag_expression
from aerobee.protocol.frames.command import Command, encode_response, make_response
from aerobee.protocol.frames.frame import FrameDecoder
from aerobee.protocol.hashing import tag_code
from aerobee.protocol.headers.send import SendReply
from aerobee.protocol.message import ids, record, record_check, record_layout
from aerobee.protocol.message.batch import BatchItem, decode_batch, encode_batch
from aerobee.protocol.message.properties import decode_properties, encode_properties
from tests.inline_loop import drive

GOLDEN = Path(__file__).parents[2] / "golden"


def load_maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_protocol", GOLDEN / "make_protocol.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make = load_maker()


def golden(name: str) -> bytes:
    return (GOLDEN / "protocol" / name).read_bytes()


def one_command(name: str) -> Command:
    decoder = FrameDecoder()
    [command] = decoder.feed(golden(name))
    assert decoder.failed is None
    assert not decoder.buffered
    return command


def test_files_are_what_the_program_makes() -> None:
    built = make.build()
    assert {path.name for path in (GOLDEN / "protocol").iterdir()} == set(built)
    for name, content in built.items():
        assert golden(name) == content, name


def send_request(serialization: int) -> Command:
    return Command(
        code=310,
        ext=dict(make.EXT),
        language="JAVA",
        opaque=77,
        version=409,
        body=make.BODY,
        serialization=serialization,
    )


@pytest.mark.parametrize(("serialization", "form"), [(0, "json"), (1, "rocketmq")])
def test_send_request_has_golden_bytes(serialization: int, form: str) -> None:
    name = f"frame-{form}-send.bin"
    command = one_command(name)
    assert (command.ext, command.body, command.opaque) == (make.EXT, make.BODY, 77)
    assert (command.code, command.language, command.version) == (310, "JAVA", 409)
    assert command.serialization == serialization
    assert send_request(serialization).encode() == golden(name)


@pytest.mark.parametrize(("serialization", "form"), [(0, "json"), (1, "rocketmq")])
def test_send_reply_has_golden_bytes(serialization: int, form: str) -> None:
    reply = SendReply("DefaultRegion", True)
    message_id = "7F00000100002A9F000000000000007B"
    data = reply.encode(send_request(serialization), 0, message_id, 3, 42)
    assert data == golden(f"frame-{form}-sent.bin")


def test_json_answer_has_golden_bytes() -> None:
    remark = 'no "route" for\tTöpic'
    data = encode_response(send_request(0), 17, remark, {})
    assert data == golden("frame-json-answer.bin")
    assert make_response(send_request(0), 17, remark).encode() == data
    answer = one_command("frame-json-answer.bin")
    assert answer.is_response
    assert (answer.code, answer.remark, answer.ext) == (17, remark, {})


def test_binary_answer_has_golden_bytes() -> None:
    data = encode_response(send_request(1), 17, "no route for Töpic")
    assert data == golden("frame-rocketmq-answer.bin")
    assert one_command("frame-rocketmq-answer.bin").remark == "no route for Töpic"


def test_request_without_fields_has_no_ext_fields_member() -> None:
    command = one_command("frame-json-bare.bin")
    assert (command.code, command.ext, command.body, command.remark) == (106, {}, b"", None)
    assert command.encode() == golden("frame-json-bare.bin")


def test_msgpack_request_has_golden_bytes() -> None:
    command = one_command("frame-msgpack-send.bin")
    assert (command.code, command.ext, command.language) == (310, {"a": "PG", "b": "T"}, "PYTHON")
    assert (command.opaque, command.body, command.serialization) == (77, make.BODY, 2)
    assert command.encode() == golden("frame-msgpack-send.bin")


HOSTS = {
    "v4": (("192.0.2.7", 54321), ("127.0.0.1", 10911)),
    "v6": (("2001:db8::7", 54321), ("::1", 10911)),
}


@pytest.mark.parametrize("born", ["v4", "v6"])
@pytest.mark.parametrize("store", ["v4", "v6"])
def test_record_has_golden_bytes(born: str, store: str) -> None:
    data = golden(f"record-{born}-{store}.bin")
    born_host, store_host = HOSTS[born][0], HOSTS[store][1]
    message = record.StoreMessage(
        "TopicTest",
        3,
        11,
        0x30,  # the host bits follow the hosts, whatever came in
        1700000000000,
        record_layout.pack_host(*born_host),
        record_layout.pack_host(*store_host),
        2,
        98765,
        make.BODY,
        make.PROPERTIES.encode(),
    )
    assert record.encode_record(message, 42, 123456789, 1700000000123) == data
    assert record.record_size(message) == len(data)
    decoded = record.decode_record(data)
    assert (decoded.born_host, decoded.store_host) == (born_host, store_host)
    assert (decoded.topic, decoded.queue_id, decoded.queue_offset) == ("TopicTest", 3, 42)
    assert (decoded.flag, decoded.reconsume_times) == (11, 2)
    assert (decoded.log_offset, decoded.prepared_transaction_offset) == (123456789, 98765)
    assert (decoded.born_timestamp_ms, decoded.store_timestamp_ms) == (1700000000000, 1700000000123)
    assert (decoded.body, decoded.tags) == (make.BODY, "TagA")
    assert decoded.keys == ("C0000207000018B4AAC21234ABCD0001", "k1", "k2")
    assert decoded.size == len(data)
    head = record_check.check_record(data, 0, 123456789, len(data))
    assert (head.kind, head.size, head.topic) == (record_check.RECORD, len(data), "TopicTest")
    assert tag_code(decoded.tags or "") == 2598919


def test_record_without_body_and_properties_is_read() -> None:
    data = golden("record-bare.bin")
    assert len(data) == record_layout.MIN_RECORD_BYTES + len("TopicTest")
    decoded = record.decode_record(data)
    assert (decoded.body, decoded.properties, decoded.body_crc) == (b"", {}, 0)
    assert record_check.check_record(data, 0, 123456789, len(data)).properties_length == 0


def test_blank_has_golden_bytes() -> None:
    data = golden("record-blank.bin")
    assert record.encode_blank(4096) == data
    head = record_check.check_record(data + bytes(5000), 0, 7, 5008)
    assert (head.kind, head.size) == (record_check.BLANK, 4096)


def test_batch_has_golden_bytes() -> None:
    items = [
        BatchItem(0, b"one", b"KEYS\x01k1"),
        BatchItem(7, b"", b""),
        BatchItem(0, make.BODY, "TAGS\x01täg\x02".encode()),
    ]
    assert encode_batch(items) == golden("batch.bin")
    assert decode_batch(golden("batch.bin")) == items


def test_properties_have_golden_text() -> None:
    properties = decode_properties(golden("properties.txt"))
    assert list(properties) == ["KEYS", "TAGS", "UNIQ_KEY", "CLUSTER"]
    assert encode_properties(properties).encode() == golden("properties.txt")


@pytest.mark.parametrize(("form", "ip"), [("v4", "127.0.0.1"), ("v6", "::1")])
def test_offset_id_has_golden_text(form: str, ip: str) -> None:
    text = golden(f"offset-id-{form}.txt").decode()
    assert ids.offset_msg_id(record_layout.pack_host(ip, 10911), 149) == text
    assert ids.parse_offset_msg_id(text) == (ip, 10911, 149)


QUEUE = MessageQueue("T1", "b-a", 0)


def test_client_bodies_have_golden_bytes() -> None:
    heartbeat = client_bodies.HeartbeatData(
        "10.0.0.1@123",
        ("PG",),
        (
            client_bodies.ConsumerData(
                "CG", subscriptions=(parse_tag_expression("T1", "A||B", 1700000000000),)
            ),
        ),
    )
    assert heartbeat.encode() == golden("body-heartbeat.json")
    assert client_bodies.HeartbeatData.parse(golden("body-heartbeat.json")) == heartbeat
    lock = client_bodies.LockBatch("c", "CG", (QUEUE,))
    assert lock.encode() == golden("body-lock.json")
    assert client_bodies.LockBatch.parse(golden("body-lock.json")) == lock
    assert drive(client_bodies.encode_locked_queues([QUEUE])) == golden("body-locked.json")
    assert client_bodies.parse_locked_queues(golden("body-locked.json")) == [QUEUE]
    assert drive(client_bodies.encode_consumer_list(["c1", "c2"])) == golden("body-consumers.json")
    assert client_bodies.parse_consumer_list(golden("body-consumers.json")) == ["c1", "c2"]


def test_registration_bodies_have_golden_bytes() -> None:
    def written(*, compressed: bool) -> bytes:
        version = DataVersion(1795178864021, 4)
        return registration_body(version, [TopicConfig("T1", 8, 4)], 6, compressed=compressed)

    def read(body: bytes, *, compressed: bool = False) -> object:
        found = read_registration(body, compressed=compressed, max_inflated_bytes=1 << 20)
        return found.data_version, read_topics(found.topics), found.filter_servers

    assert written(compressed=False) == golden("body-registration.json")
    assert zlib.decompress(written(compressed=True)) == golden("body-registration-compact.bin")
    registered = ((1795178864021, 4, 0), {"T1": QueueData(8, 4, 6, 0)}, ())
    assert read(golden("body-registration.json")) == registered
    assert read(golden("body-topic-table.json")) == registered
    packed = zlib.compress(golden("body-registration-compact.bin"))
    assert read(packed, compressed=True) == registered


def test_route_bodies_have_golden_bytes() -> None:
    addresses = {0: "1.1.1.1:10911", 1: "1.1.1.2:10911"}
    route = route_bodies.TopicRoute(
        (route_bodies.QueueRoute("b-a", 4, 4, 6),),
        (route_bodies.BrokerRoute("b-a", "C1", addresses),),
        "b-a:4",
    )
    group = BrokerGroup("b-a", "C1", addresses)
    written = route_body({"b-a": QueueData(4, 4, 6, 0)}, [group], {}, "b-a:4")
    assert written == golden("body-route.json")
    assert route_bodies.TopicRoute.parse(golden("body-route.json")) == route
    assert route_bodies.TopicRoute.parse(golden("body-route-upstream.json")) == route
    alone = {0: "1.1.1.1:10911"}
    info = route_bodies.ClusterInfo(
        {"b-a": route_bodies.BrokerRoute("b-a", "C1", alone)}, {"C1": ["b-a"]}
    )
    groups = {"b-a": BrokerGroup("b-a", "C1", alone)}
    assert cluster_body(groups, {"C1": {"b-a"}}) == golden("body-clusters.json")
    assert route_bodies.ClusterInfo.parse(golden("body-clusters.json")) == info


def test_statistics_bodies_have_golden_bytes() -> None:
    stats = stats_bodies.ConsumeStats(
        {QUEUE: stats_bodies.GroupProgress(6, 2, 1795178859501)}, 0.45
    )
    assert drive(stats.encode()) == golden("body-consume-stats.json")
    assert stats_bodies.ConsumeStats.parse(golden("body-consume-stats.json")) == stats
    queues = {QUEUE: stats_bodies.QueueOffsets(1, 9, 0)}
    assert drive(stats_bodies.encode_topic_stats(queues)) == golden("body-topic-stats.json")
    assert stats_bodies.parse_topic_stats(golden("body-topic-stats.json")) == queues


def test_shared_bodies_have_golden_bytes() -> None:
    assert bodies.encode_offset_table({QUEUE: 7}) == golden("body-offsets-by-queue.json")
    assert bodies.parse_offset_table(golden("body-offsets-by-queue.json")) == {QUEUE: 7}
    assert bodies.parse_offset_table(golden("body-offsets-list.json")) == {QUEUE: 7}
    assert bodies.encode_kv_table({"b": "ü", "a": "1"}) == golden("body-kv.json")
    assert bodies.parse_kv_table(golden("body-kv.json")) == {"a": "1", "b": "ü"}
    topics = bodies.encode_topic_list(["T1", "T2"], "1.1.1.1:10911")
    assert topics == golden("body-topics.json")
    assert bodies.parse_topic_list(golden("body-topics.json")) == ["T1", "T2"]
