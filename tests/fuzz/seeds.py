"""A valid request of every code that a broker or a name server handles: where the fuzzing begins.

`test_requests.py` and `test_accounts.py` hold that no handled code is without one. Names are few,
so that requests meet what others have made; the store they go to has its limits of topics and
groups low.
"""

from __future__ import annotations

import json
import struct
import time
import zlib
from typing import Any, NamedTuple

from aerobee.protocol.codes import RequestCode as Code
from aerobee.protocol.headers.stages import (
    Run,
    StagePart,
    chunk_crc,
    encode_chunk,
    encode_parts,
    stage_checksum,
)
from aerobee.protocol.message.batch import BatchItem, encode_batch
from aerobee.protocol.message.recall import RecallHandle

TOPIC, GROUP, CLIENT = "Orders", "CG", "127.0.0.1@7"
BROKER, CLUSTER, ADDRESS = "fuzzed", "DefaultCluster", "127.0.0.1:10911"
STAGE = "0123456789abcdef" * 2


class Seed(NamedTuple):
    """A request that is right."""

    code: int
    ext: dict[str, str]
    body: bytes = b""


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


_PROPERTIES = "UNIQ_KEY\x01U1\x02KEYS\x01k1 k2\x02TAGS\x01t1\x02WAIT\x01true\x02"
_HALF = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x0130\x02"
_BATCH = encode_batch(
    [BatchItem(0, b"first", b"TAGS\x01a\x02"), BatchItem(1, b"second" * 9, b"KEYS\x01k\x02")]
)
_SEND = {
    "producerGroup": "PG", "topic": TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
    "queueId": "0", "sysFlag": "0", "bornTimestamp": "1700000000000", "flag": "0",
    "properties": _PROPERTIES, "reconsumeTimes": "0", "unitMode": "false",
    "maxReconsumeTimes": "16", "batch": "false",
}  # fmt: skip
_SEND_V2 = dict(zip("abcdefghijklm", _SEND.values(), strict=True))
_PULL = {
    "consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
    "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
    "subVersion": "0", "expressionType": "TAG",
}  # fmt: skip
_QUEUE = {"topic": TOPIC, "queueId": "0"}
_OFFSET = {"consumerGroup": GROUP, **_QUEUE}
_REPLY = f"REPLY_TO_CLIENT\x01{CLIENT}\x02CORRELATION_ID\x011\x02MSG_TYPE\x01reply\x02"
_HANDLE = RecallHandle(
    TOPIC, BROKER, time.time_ns() // 1_000_000 + 30 * 86_400_000, "A" * 32
).encode()
_MEMBER = {"consumerGroup": GROUP, "clientId": CLIENT}
_SUBSCRIPTION = {
    "topic": TOPIC, "subString": "t1 || t2", "tagsSet": ["t1", "t2"], "codeSet": [3645, 3646],
    "subVersion": 1, "classFilterMode": False, "expressionType": "TAG",
}  # fmt: skip
_HEARTBEAT = {
    "clientID": CLIENT,
    "producerDataSet": [{"groupName": "PG"}],
    "consumerDataSet": [
        {
            "groupName": GROUP, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": False,
            "subscriptionDataSet": [_SUBSCRIPTION],
        }
    ],
}  # fmt: skip
_LOCK = {
    "clientId": CLIENT, "consumerGroup": GROUP,
    "mqSet": [{"topic": TOPIC, "brokerName": BROKER, "queueId": 0}],
}  # fmt: skip
_GROUP_CONFIG = {
    "groupName": GROUP, "consumeEnable": True, "consumeFromMinEnable": True,
    "consumeBroadcastEnable": True, "retryQueueNums": 1, "retryMaxTimes": 16, "brokerId": 0,
    "whichBrokerWhenConsumeSlowly": 1, "notifyConsumerIdsChangedEnable": True,
}  # fmt: skip
_TOPIC_CONFIG = {
    "topicName": TOPIC, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6,
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
}  # fmt: skip
_REGISTRATION = _json(
    {
        "filterServerList": [],
        "topicConfigSerializeWrapper": {
            "dataVersion": {"counter": 1, "timestamp": 1},
            "topicConfigTable": {TOPIC: _TOPIC_CONFIG},
        },
    }
)
_BROKER = {
    "brokerName": BROKER, "brokerAddr": ADDRESS, "clusterName": CLUSTER, "brokerId": "0",
}  # fmt: skip
_REGISTER = {**_BROKER, "haServerAddr": "127.0.0.1:10912", "compressed": "false", "bodyCrc32": "0"}


def _with_length(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


_COMPACT = zlib.compress(
    _with_length(_json({"counter": 2, "timestamp": 2}))
    + struct.pack(">i", 1)
    + _with_length(f"{TOPIC} 4 4 6 SINGLE_TAG".encode())
    + _with_length(b"[]")
)
_CHUNK = encode_chunk([Run(TOPIC, 0, 2, _BATCH)])
_BATCH_NAME = {"query": "fuzz-query", "batch": "1"}
_PARTS = encode_parts([StagePart(BROKER, 0, STAGE, 1, 2, stage_checksum([chunk_crc(_CHUNK)]))])

BROKER_SEEDS: tuple[Seed, ...] = (
    Seed(Code.HEART_BEAT, {}, _json(_HEARTBEAT)),
    # The first message of the log, so that it is known where it lies.
    Seed(Code.SEND_MESSAGE_V2, {**_SEND_V2, "i": _PROPERTIES + _HALF}, b"half"),
    Seed(Code.RESUME_CHECK_HALF_MESSAGE, {"msgId": "7F00000100002A9F" + "0" * 16}),
    Seed(
        Code.END_TRANSACTION,
        {
            "producerGroup": "PG", "tranStateTableOffset": "0", "commitLogOffset": "0",
            "commitOrRollback": "8", "fromTransactionCheck": "false", "msgId": "U1",
            "transactionId": "U1",
        },
    ),
    Seed(Code.SEND_MESSAGE, _SEND, b"hello"),
    Seed(Code.SEND_MESSAGE_V2, _SEND_V2, b"hello"),
    Seed(Code.SEND_MESSAGE_V2, {**_SEND_V2, "e": "1", "i": _PROPERTIES + "DELAY\x013\x02"}, b"d"),
    Seed(Code.SEND_BATCH_MESSAGE, {**_SEND_V2, "m": "true"}, _BATCH),
    Seed(Code.SEND_MESSAGE, {**_SEND, "batch": "true"}, _BATCH),
    Seed(Code.RECALL_MESSAGE, {"topic": TOPIC, "recallHandle": _HANDLE, "producerGroup": "PG"}),
    Seed(Code.SEND_REPLY_MESSAGE, {**_SEND, "properties": _REPLY}, b"reply"),
    Seed(Code.SEND_REPLY_MESSAGE_V2, {**_SEND_V2, "i": _REPLY}, b"reply"),
    Seed(
        Code.CONSUMER_SEND_MSG_BACK,
        {
            # The place follows the half message, its copy, and the records of its commit.
            "offset": "1143", "group": GROUP, "delayLevel": "0", "originMsgId": "U1",
            "originTopic": TOPIC, "unitMode": "false", "maxReconsumeTimes": "3",
        },
    ),
    Seed(Code.PULL_MESSAGE, _PULL),
    Seed(Code.PULL_MESSAGE, {**_PULL, "queueOffset": "1000000", "maxMsgBytes": "4096"}),
    Seed(
        Code.PULL_MESSAGE,
        {**_PULL, "queueId": "3", "sysFlag": "7", "suspendTimeoutMillis": "1000"},
    ),
    Seed(Code.LITE_PULL_MESSAGE, {**_PULL, "subscription": "t1 || t2"}),
    Seed(
        Code.QUERY_MESSAGE,
        {
            "topic": TOPIC, "key": "k1", "maxNum": "32", "beginTimestamp": "0",
            "endTimestamp": "9223372036854775807", "_UNIQUE_KEY_QUERY": "false",
        },
    ),
    Seed(Code.VIEW_MESSAGE_BY_ID, {"offset": "0"}),
    Seed(Code.QUERY_CONSUMER_OFFSET, _OFFSET),
    Seed(Code.UPDATE_CONSUMER_OFFSET, {**_OFFSET, "commitOffset": "1"}),
    *(
        Seed(Code.UPDATE_CONSUMER_OFFSET, {**_OFFSET, "queueId": queue_id, "commitOffset": "0"})
        for queue_id in "123"
    ),
    Seed(Code.GET_MAX_OFFSET, _QUEUE),
    Seed(Code.GET_MIN_OFFSET, _QUEUE),
    Seed(Code.GET_EARLIEST_MSG_STORETIME, _QUEUE),
    Seed(Code.SEARCH_OFFSET_BY_TIMESTAMP, {**_QUEUE, "timestamp": "1700000000000"}),
    Seed(
        Code.UPDATE_AND_CREATE_TOPIC,
        {
            "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4",
            "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        },
    ),
    Seed(Code.DELETE_TOPIC_IN_BROKER, {"topic": "Gone"}),
    Seed(Code.GET_ALL_TOPIC_CONFIG, {}),
    Seed(Code.GET_TOPIC_CONFIG, {"topic": TOPIC}),
    Seed(Code.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "CG"}),
    Seed(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, {}),
    Seed(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, _json(_GROUP_CONFIG)),
    Seed(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}),
    Seed(Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "Gone", "removeOffset": "true"}),
    Seed(Code.GET_ALL_CONSUMER_OFFSET, {}),
    Seed(Code.GET_ALL_DELAY_OFFSET, {}),
    Seed(Code.CLEAN_EXPIRED_CONSUMEQUEUE, {}),
    Seed(Code.CLEAN_UNUSED_TOPIC, {}),
    Seed(Code.DELETE_EXPIRED_COMMITLOG, {}),
    Seed(Code.GET_TOPIC_STATS_INFO, {"topic": TOPIC}),
    Seed(Code.GET_CONSUME_STATS, {"consumerGroup": GROUP, "topic": TOPIC}),
    Seed(Code.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
    Seed(Code.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": TOPIC}),
    Seed(Code.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": GROUP}),
    Seed(Code.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "PG"}),
    Seed(Code.GET_ALL_PRODUCER_INFO, {}),
    Seed(Code.GET_BROKER_RUNTIME_INFO, {}),
    Seed(Code.GET_BROKER_HA_STATUS, {}),
    Seed(Code.GET_BROKER_CONFIG, {}),
    Seed(Code.UPDATE_BROKER_CONFIG, {}, b"fileReservedTime=72\n"),
    Seed(Code.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS", "statsKey": TOPIC}),
    Seed(
        Code.UNREGISTER_CLIENT,
        {"clientID": CLIENT, "producerGroup": "PG", "consumerGroup": GROUP},
    ),
    Seed(
        Code.CHECK_CLIENT_CONFIG,
        {},
        _json({"clientId": CLIENT, "group": GROUP, "subscriptionData": _SUBSCRIPTION}),
    ),
    Seed(Code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP}),
    Seed(Code.LOCK_BATCH_MQ, {}, _json(_LOCK)),
    Seed(Code.UNLOCK_BATCH_MQ, {}, _json(_LOCK)),
    Seed(
        Code.INVOKE_BROKER_TO_RESET_OFFSET,
        {"topic": TOPIC, "group": GROUP, "timestamp": "1700000000000", "isForce": "true"},
    ),
    Seed(
        Code.INVOKE_BROKER_TO_RESET_OFFSET,
        {"topic": TOPIC, "group": GROUP, "timestamp": "-1", "isForce": "true"},
        _json({"offsetTable": [{**_LOCK["mqSet"][0], "brokerName": "test-broker", "offset": 0}]}),
    ),
    Seed(Code.QUERY_CONSUME_TIME_SPAN, {"topic": TOPIC, "group": GROUP}),
    Seed(
        Code.QUERY_CORRECTION_OFFSET,
        {"topic": TOPIC, "compareGroup": GROUP, "filterGroups": "G1,G2"},
    ),
    Seed(
        Code.CLONE_GROUP_OFFSET,
        {"srcGroup": GROUP, "destGroup": "Cloned", "topic": TOPIC, "offline": "true"},
    ),
    Seed(
        Code.QUERY_CONSUME_QUEUE,
        {"topic": TOPIC, "queueId": "0", "index": "0", "count": "8", "consumerGroup": GROUP},
    ),
    Seed(Code.GET_CONSUMER_RUNNING_INFO, {**_MEMBER, "jstackEnable": "false"}),
    Seed(
        Code.CONSUME_MESSAGE_DIRECTLY,
        {**_MEMBER, "msgId": "7F00000100002A9F0000000000000000", "brokerName": BROKER},
    ),
    Seed(
        Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        {"topic": TOPIC, "group": GROUP, "clientAddr": ""},
    ),
    Seed(Code.WAITING_MESSAGES, {"topic": TOPIC}),
    Seed(Code.DRAIN, {"action": "begin", "everything": "false"}),
    Seed(Code.DRAIN_STATUS, {}),
    Seed(Code.MESSAGE_STATE, {"offset": "0"}),
    Seed(Code.AUDIT_EVENTS, {"sinceTimestamp": "1", "file": "1", "position": "0"}),
    Seed(Code.BROKER_STATUS, {"topic": TOPIC}),
    Seed(Code.CLIENTS, {"group": GROUP, "topic": TOPIC, "address": "", "details": "true"}),
    Seed(Code.GROUP_LAG, {"consumerGroup": GROUP, "topic": TOPIC}),
    Seed(Code.LOG_RANGES, {"start": "0", "end": "4096", "parts": "8"}),
    Seed(Code.REPLICA_TABLES, {"topics": "", "offsets": "1", "timer": "", "stages": ""}),
    Seed(Code.STAGE_CAPABILITY, {}),
    Seed(
        Code.STAGE_CHUNK,
        {
            **_BATCH_NAME, "partition": "0", "stage": STAGE, "chunk": "0", "rows": "2",
            "crc": str(chunk_crc(_CHUNK)),
        },
        _CHUNK,
    ),
    Seed(Code.STAGE_INTENT, _BATCH_NAME, _PARTS),
    Seed(Code.STAGE_STATUS, _BATCH_NAME),
    Seed(Code.STAGE_ABORT, _BATCH_NAME),
)  # fmt: skip

#: The accounts in a test's file, which the requests below name.
ADMIN, OWNER, STRANGER = "administrator", "orders-owner", "only-others"
EVERYDAY, NEIGHBOUR, NEWCOMER = "everyday-user", "white-neighbour", "newcomer-1"
GIVEN_SECRET = "a-secret-that-is-given"

#: For administrators of a broker with accounts, in an order in which each can be carried out.
ACCOUNT_SEEDS: tuple[Seed, ...] = (
    Seed(
        Code.UPDATE_AND_CREATE_ACL_CONFIG,
        {
            "accessKey": NEWCOMER, "secretKey": GIVEN_SECRET, "whiteRemoteAddress": "192.0.2.1",
            "admin": "false", "defaultTopicPerm": "DENY", "defaultGroupPerm": "SUB",
            "topicPerms": f"{TOPIC}=PUB,Other=PUB|SUB", "groupPerms": f"{GROUP}=SUB",
        },
    ),
    Seed(
        Code.UPDATE_AND_CREATE_ACL_CONFIG,
        {"accessKey": OWNER, "admin": "false", "topicPerms": f"{TOPIC}=SUB"},
    ),
    Seed(
        Code.UPDATE_AND_CREATE_ACL_CONFIG,
        {"accessKey": STRANGER, "secretKey": GIVEN_SECRET, "admin": "true"},
    ),
    Seed(Code.GET_BROKER_CLUSTER_ACL_INFO, {}),
    Seed(
        Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        {"globalWhiteAddrs": "192.0.2.*,198.51.100.7", "aclFileFullPath": ""},
    ),
    Seed(
        Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        {"globalWhiteAddrs": "", "aclFileFullPath": "conf/plain_acl.yml"},
    ),
    Seed(Code.DELETE_ACL_CONFIG, {"accessKey": NEWCOMER}),
)  # fmt: skip
#: Requests that the compiled form serves: sends, and pulls from behind the first message of a
#: queue.
PLAIN_SEEDS: tuple[Seed, ...] = (
    Seed(Code.SEND_MESSAGE, _SEND, b"hello"),
    Seed(Code.SEND_MESSAGE_V2, _SEND_V2, b"hello"),
    Seed(Code.SEND_BATCH_MESSAGE, {**_SEND_V2, "i": "", "m": "true"}, _BATCH),
    Seed(Code.PULL_MESSAGE, {**_PULL, "queueOffset": "1"}),
    Seed(Code.LITE_PULL_MESSAGE, {**_PULL, "queueOffset": "1"}),
)
_LISTING = f"INNER_MULTI_DISPATCH\x01%LMQ%other,{TOPIC}\x02"
#: Requests that reach more than their fields name.
LISTING_SEEDS: tuple[Seed, ...] = (
    Seed(Code.SEND_MESSAGE_V2, {**_SEND_V2, "b": "Other", "i": _LISTING}, b"listing"),
    Seed(
        Code.SEND_BATCH_MESSAGE,
        {**_SEND_V2, "b": "Other", "i": "", "m": "true"},
        encode_batch([BatchItem(0, b"plain", b""), BatchItem(0, b"listing", _LISTING.encode())]),
    ),
    Seed(Code.SEND_MESSAGE_V2, {**_SEND_V2, "b": f"%RETRY%{GROUP}"}, b"again"),
    Seed(Code.PULL_MESSAGE, {**_PULL, "topic": f"%RETRY%{GROUP}"}),
)

NAME_SERVER_SEEDS: tuple[Seed, ...] = (
    Seed(Code.PUT_KV_CONFIG, {"namespace": "N", "key": "k", "value": "v"}),
    Seed(Code.GET_KV_CONFIG, {"namespace": "N", "key": "k"}),
    Seed(Code.DELETE_KV_CONFIG, {"namespace": "N", "key": "gone"}),
    Seed(Code.GET_KVLIST_BY_NAMESPACE, {"namespace": "N"}),
    Seed(Code.REGISTER_BROKER, _REGISTER, _REGISTRATION),
    Seed(Code.REGISTER_BROKER, {**_REGISTER, "brokerId": "1", "compressed": "true"}, _COMPACT),
    Seed(Code.UNREGISTER_BROKER, {**_BROKER, "brokerId": "5"}),
    Seed(Code.QUERY_DATA_VERSION, _BROKER, _json({"counter": 1, "timestamp": 1})),
    Seed(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC, "acceptStandardJsonOnly": "true"}),
    Seed(Code.GET_BROKER_CLUSTER_INFO, {}),
    Seed(Code.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": BROKER}),
    Seed(Code.ADD_WRITE_PERM_OF_BROKER, {"brokerName": BROKER}),
    Seed(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}),
    Seed(Code.DELETE_TOPIC_IN_NAMESRV, {"topic": "Gone", "clusterName": CLUSTER}),
    Seed(Code.GET_TOPICS_BY_CLUSTER, {"cluster": CLUSTER}),
    Seed(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, {}),
    Seed(Code.GET_UNIT_TOPIC_LIST, {}),
    Seed(Code.GET_HAS_UNIT_SUB_TOPIC_LIST, {}),
    Seed(Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, {}),
    Seed(Code.UPDATE_NAMESRV_CONFIG, {}, b"kvConfigPath=/etc/x"),
    Seed(Code.GET_NAMESRV_CONFIG, {}),
)
