"""mqadmin 4.9.8 against our broker and against the Java one: the same history, the same commands,
and each printed field compared.

`DIFFERENCES` has the fields that differ, and why. It is exact: a difference that is not listed
fails, and so does a listed difference that is not there. `VARYING` has the fields that no two runs
print alike, of either broker; only their form is compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.interop.administration.mqadmin import AdminPeer, Output, fields_of
from tests.interop.administration.mqadmin_commands import COMMANDS, Story
from tests.interop.brokers import Broker, JavaBroker, OurBroker, StoreShape
from tests.interop.kit import require
from tests.ports import free_port

Fields = dict[str, str]

#: Access control is refused here as a whole: `aclEnable=true` stops the start.
ACL = {"updateAclConfig", "deleteAclConfig", "clusterAclConfigVersion", "updateGlobalWhiteAddr"}


EXTRA = {
    "traceTopicEnable": "true",
    # The Java broker makes the topic of half messages at its first check, a minute after the start.
    "transactionCheckInterval": "3600000",
    # Ours alone: the Java broker always lets its settings be changed.
    "admin.remote_config": "true",
}


class Varying(NamedTuple):
    """Fields (regular expressions) of commands (patterns) whose values have a form alone."""

    commands: str
    field: str
    form: str


_RATES = r"(\d+\.\d+(E-\d+)?( |$)){0,3}"  # of ten seconds, a minute and ten, as far as there are
VARYING = (
    Varying("clusterList", r".*\.(In|Out)TPS\(LOAD\)", r"\d+\.\d\d\(\d+,\d+ms\)"),
    Varying("clusterList", r".*\.SPACE", r"0\.\d{4}"),
    Varying("brokerStatus *", r".*(Found|Miss|Total|Transfered|put)Tps", _RATES),
    Varying("brokerStatus *", r".*DiskRatio(_<broker>.*)?", r"0\.\d{1,4}"),
    Varying("brokerStatus *", r".*commitLogDirCapacity", r"Total : [\d.]+ .iB, Free : .* .iB\."),
    Varying("brokerStatus *", r".*MessageEntireTimeMax", r"\d+"),
    Varying("brokerStatus *", r".*putLatency999?", r"\d+\.\d\d"),
    Varying("brokerStatus *", r".*remainHowManyDataToFlush", r"[\d.]+ (Ki)?B"),
    Varying("brokerStatus *", r".*Queue(Size|HeadWaitTimeMills)", r"\d+"),
    Varying("brokerStatus *", r".*(pageCacheLockTimeMills|dispatchBehindBytes)", r"\d+"),
    Varying("brokerStatus *", r".*runtime", r"\[ 0 days, 0 hours, \d+ minutes, \d+ seconds \]"),
    Varying("brokerStatus *", r".*putMessageDistributeTime", r"null|(\[.*\]:\d+ ?)+"),
    Varying("consumerProgress *", "Consume TPS", r"\d+\.\d\d"),
    Varying("consumerProgress", r".*\.TPS", r"\d+"),
    Varying("consumerStatus *", r".*(RT|TPS|AvgDelay)", r"\d+\.\d\d"),
    Varying("statsAll*", r".*\.(In|Out)TPS", r"\d+\.\d\d"),
    # Messages between two samples, ten seconds apart.
    Varying("statsAll*", r".*\.(In|Out)Msg24Hour", r"\d+"),
    Varying("checkMsgSendRT *", r".*\.RT( #\d)?", r"\d+"),
    # mqadmin chooses a queue by chance.
    Varying("queryMsgById * -s true", r".*SendResult\.queueId", r"\d\]"),
    Varying("clusterRT *", r".*\.RT( #\d)?", r"\d+\.\d\d"),
    Varying("queryMsgTraceById *", r".*\.CostTimes", r"\d+ms"),
    Varying("exportMetrics *", r".*DiskRatio", r'"0\.\d{1,4}"'),
    Varying("exportMetrics *", r".*Tps", r"\d+\.\d+(E-\d+)?"),
    Varying("exportMetrics *", r".*messageAverageSize", r'"\d+\.\d+"'),
)


class Difference(NamedTuple):
    """An intended difference: the values are regular expressions, None where there is no such
    field."""

    commands: str
    field: str
    ours: str | None
    java: str | None
    reason: str


_EXPLAINED = "the remark goes on with the cause, or with what helps"
_VERSION = "4.9.8 is what is served here; the Java broker is 4.9.7, the newest that was published"
_NO_PATHS = "no request is told a path of the machine, or changes where something is"
_MADE = "a group is made with its first offset, so that the groups that have offsets are limited"
_REFUSED = "no request changes the settings of a name server (protocol/WIRE.md 5.1)"
_UPDATE = "updateNamesrvConfig *"
_SETTINGS = "getBrokerConfig *"
_LIVE = "a request changes what a reload may change, and this needs a start"
_WRONG = "a wrong value is refused; that broker says success and keeps the one it had"

#: Settings that one of the two alone tells, by reason.
_OURS_ALONE = {
    "of RocketMQ 5": """
        bindAddress configBlackList enabledAppendPropCRC forceVerifyPropCRC haMasterAddress
        maxTransferBytesBulk maxTransferCountBulk metricsExporterType metricsLabel
        metricsOtelCardinalityLimit metricsPromExporterHost metricsPromExporterPort
        inSyncReplicas syncFromLastFile timerMaxDelaySec timerRollWindowSlot timerWheelEnable
    """,
    "a property of the JVM there, or of another file": """
        aclFile diskSpaceCleanForciblyRatio diskSpaceWarningLevelRatio frameMaxLength kvConfigPath
        lockMaxLiveTime orderMessageEnable tls.client.authServer tls.client.certPath
        tls.client.keyPath tls.client.trustCertPath tls.config.file tls.enable
        tls.server.authClient tls.server.certPath tls.server.keyPath tls.server.mode
        tls.server.need.client.auth tls.server.trustCertPath tls.test.mode.enable
    """,
    "of our own: there its name servers take changes from anybody": """
        aclToolsFile namesrvAclEnable
    """,
    "of our own, of replication": """
        haAckDurable haEnabled haSlaveAddresses
    """,
    "left out there while it is not set": """
        abortFile dLegerGroup dLegerPeers dLegerSelfId preferredLeaderId
        readOnlyCommitLogStorePaths storeCheckpoint storePathConsumeQueue
        storePathDLedgerCommitLog storePathIndex
    """,
    "the name that a broker.conf has for it, which that broker does not tell": "enableBatchPush",
}
_JAVA_ALONE = {
    "that broker tells each line of its file": "admin.remote_config",
    "of that broker's connections to others, by Netty": """
        channelNotActiveInterval clientAsyncSemaphoreValue clientChannelMaxIdleTimeSeconds
        clientCloseSocketIfTimeout clientOnewaySemaphoreValue clientPooledByteBufAllocatorEnable
        clientSocketRcvBufSize clientSocketSndBufSize clientWorkerThreads connectTimeoutMillis
    """,
    "a name that no broker.conf can have": "isEnableBatchPush",
}
#: Settings whose values differ: ours, that broker's, why.
_VALUES = {
    r"\w+ThreadPoolNums": (r"\d+", r"\d+", "made from the processors there, not in effect here"),
    "bitMapLengthConsumeQueueExt": ("64", "112", "made at that broker's start, when it is needed"),
    "brokerIP2": ("", r"[\d.]+", "the address that clients get counts while it is empty"),
    "enablePropertyFilter": ("true", "false", "on by default, for SQL92 subscriptions"),
    "flushConsumerOffsetInterval": ("1000", "5000", "saved sooner: a kill loses less"),
    "flushDelayOffsetInterval": ("1000", "10000", "saved sooner: a kill repeats less"),
    "haTransferBatchSize": ("524288", "32768", "larger pieces: fewer reports for the same bytes"),
    "namesrvAddr": ("", r"127\.0\.0\.1:\d+", "its name server is embedded here"),
    "rocketmqHome": ("", "<broker>/home", "nothing is read from there"),
    "writeBufferHighWaterMark": ("1048576", "0", "in effect here; 0 is Netty's own"),
}

DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        "*", "error text", r"No topic route info .* \(none of the 1 registered brokers has this .*",
        r"No topic route info in name server for the topic: \S+", _EXPLAINED,
    ),
    Difference(
        "*", "error text", r"The Consumer <.*> <.*> not online: the members that are can .*",
        r"The Consumer <.*> <.*> not online", _EXPLAINED,
    ),
    Difference(
        "*", "error text", r"THe consumer group <nobody> not exist: it has no settings, no mem.*",
        "THe consumer group <nobody> not exist", _EXPLAINED,
    ),
    Difference("clusterList", r".*\.Version", "V4_9_8", "V4_9_7", _VERSION),
    Difference("brokerStatus *", ".*brokerVersion", "409", "407", _VERSION),
    Difference("brokerStatus *", ".*brokerVersionDesc", "V4_9_8", "V4_9_7", _VERSION),
    *(
        Difference(
            commands, field, ours, java,
            "it tells no time as long as its log is shorter than the largest message may be",
        )
        for commands, field, ours, java in (
            ("clusterList", r".*\.Hour", r"0\.\d\d", r"\d{6}\.\d\d"),
            ("brokerStatus *", ".*earliestMessageTimeStamp", "<time>", "-1"),
        )
    ),
    Difference("getNamesrvConfig", r"\w+Path|rocketmqHome", None, "<broker>/.*", _NO_PATHS),
    Difference(
        "getNamesrvConfig", r"writeBuffer\w+WaterMark", r"\d+", "0",
        "in effect here; 0 is Netty's own",
    ),
    Difference(_UPDATE, "error( code)?", r"16|.*UpdateNamesrvConfigCommand.*", None, _REFUSED),
    Difference(_UPDATE, "error text", "the configuration of a name server .*", None, _REFUSED),
    Difference(_UPDATE, "update name server config success!", None, "", _REFUSED),
    Difference(_UPDATE, "serverWorkerThreads", None, "9", _REFUSED),
    *(
        Difference(_SETTINGS, re.escape(key), ".*", None, reason)
        for reason, keys in _OURS_ALONE.items()
        for key in keys.split()
    ),
    *(
        Difference(_SETTINGS, re.escape(key), None, ".*", reason)
        for reason, keys in _JAVA_ALONE.items()
        for key in keys.split()
    ),
    *(Difference(_SETTINGS, key, ours, java, why) for key, (ours, java, why) in _VALUES.items()),
    *(
        Difference(f"updateBrokerConfig * -k {setting}", field, ours, java, reason)
        for setting, said, reason in (
            ("maxMessageSize *", ".*cannot be changed by a request.*", _LIVE),
            ("fileReservedTime -v soon", ".*must be a whole number.*", _WRONG),
        )
        for field, ours, java in (
            ("error", ".*UpdateBrokerConfigSubCommand.*", None),
            ("error code", "1", None),
            ("error text", f"nothing was changed: {said}", None),
            ("update broker config success.*", None, ""),
        )
    ),
    Difference("exportConfigs *", ".*/maxMessageSize", '"4194304"', '"2000000"', _LIVE),
    Difference("getBrokerConfig -c *", "maxMessageSize", "4194304", "2000000", _LIVE),
    Difference("exportMetadata *", r".*/subscriptionGroupTable/copies/\w+", ".*", None, _MADE),
    Difference("exportMetadata *", ".*/dataVersion/counter", "4", "3", _MADE),
    Difference("exportMetrics *", ".*/groupSize", "4", "3", _MADE),
)  # fmt: skip


class Found(NamedTuple):
    """A field that the two brokers have differently."""

    command: str
    field: str
    ours: str | None
    java: str | None

    def is_meant(self, one: Difference) -> bool:
        return (
            fnmatchcase(self.command, one.commands)
            and re.fullmatch(one.field, self.field) is not None
            and _fits(one.ours, self.ours)
            and _fits(one.java, self.java)
        )


def _fits(form: str | None, value: str | None) -> bool:
    if form is None or value is None:
        return form is value
    return re.fullmatch(form, value) is not None


@dataclass(frozen=True, slots=True)
class Told:
    """The output of both brokers, by command and field; and the commands of mqadmin."""

    registered: set[str]
    ours: dict[str, Fields]
    java: dict[str, Fields]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Both brokers' answers. They have the same ports, one after the other."""
    require("java-broker")
    require("java-4.9.8")
    folder = tmp_path_factory.mktemp("mqadmin")
    ports = (free_port(), free_port())
    ours, registered = tell(OurBroker, folder / "our", ports)
    java, _ = tell(JavaBroker, folder / "java", ports)
    return Told(registered, ours, java)


def tell(
    kind: type[Broker], folder: Path, ports: tuple[int, int]
) -> tuple[dict[str, Fields], set[str]]:
    """A broker's answers by command, and the names of mqadmin's commands."""
    broker = kind(folder / "broker", StoreShape(extra=EXTRA))
    broker.port, broker.name_server_port = ports
    broker.start()
    try:
        peer = AdminPeer(folder / "mqadmin", broker.name_server)
        try:
            registered = set(peer.ask("names")["names"].split())
            story = Story(broker, peer)
            story.tell()
            peer.close()
        finally:
            peer.end()
    finally:
        broker.kill()
    folders = {str(folder / "mqadmin"): "<folder>", str(folder / "broker"): "<broker>"}
    answers = {
        command: fields_of(output, own_ports=ports, folders=folders)
        for command, output in story.outputs.items()
    }
    return {command: masked(command, fields) for command, fields in answers.items()}, registered


def masked(command: str, fields: Fields) -> Fields:
    """The fields, with the values of those that vary replaced, if they have their form."""

    def value_of(field: str, value: str) -> str:
        forms = [
            one.form
            for one in VARYING
            if fnmatchcase(command, one.commands) and re.fullmatch(one.field, field)
        ]
        return "<varying>" if forms and re.fullmatch(forms[0], value) else value

    return {field: value_of(field, value) for field, value in fields.items()}


def differences(told: Told) -> Iterator[Found]:
    for command, ours in told.ours.items():
        java = told.java[command]
        for field in {**ours, **java}:
            if ours.get(field) != java.get(field):
                yield Found(command, field, ours.get(field), java.get(field))


_PRINTED = """\
#Broker Name                      #QID  #Min Offset           #Last Updated
interop                           0     0                     2026-11-23 09:55:24,735
interop                           1     7                     2026-11-23 09:55:24,735

commitLogMaxOffset              : 4564
127.0.0.1:10911  putTps         : 0.5 0.1 0.0
TopicConfig [topicName=orders, perm=RW-]
{
	"brokerAddrs":{0:"127.0.0.1:41000"
	},
	"names":["a"]
}
success from /somewhere/else
"""
_TRACE = """\
SubCommandException: it failed
	at frame(Frame.java:1)
Caused by: MQBrokerException: CODE: 17  DESC: no such topic BROKER: 127.0.0.1:10911
For more information, please visit the url, http://rocketmq.apache.org/docs/faq/
"""


def test_output_is_taken_apart_into_fields() -> None:
    output = Output(_PRINTED, _TRACE, {"1/made.txt": "key = 1\n"})
    found = fields_of(output, own_ports=(10911,), folders={"/somewhere": "<folder>"})
    assert found == {
        "interop 0 .": "",
        "interop 0 .Min Offset": "0",
        "interop 0 .Last Updated": "<time>",
        "interop 1 .": "",
        "interop 1 .Min Offset": "7",
        "interop 1 .Last Updated": "<time>",
        "commitLogMaxOffset": "4564",
        "127.0.0.1:10911  putTps": "0.5 0.1 0.0",
        "TopicConfig": "",
        "TopicConfig.topicName": "orders",
        "TopicConfig.perm": "RW-",
        "/brokerAddrs/0": '"127.0.0.1:<client>"',
        "/names/0": '"a"',
        "success from <folder>/else": "",
        "made.txt: key": "1",
        "error": "SubCommandException: it failed",
        "error code": "17",
        "error text": "no such topic",
    }


def test_a_difference_that_is_not_listed_is_found() -> None:
    told = Told(set(), {"topicList": {"a": "", "b": "1"}}, {"topicList": {"b": "2", "c": ""}})
    assert list(differences(told)) == [
        Found("topicList", "a", "", None),
        Found("topicList", "b", "1", "2"),
        Found("topicList", "c", None, ""),
    ]
    one = Difference("topic*", "b", r"\d", "2", "for the test")
    assert [found.is_meant(one) for found in differences(told)] == [False, True, False]


def test_every_command_of_mqadmin_is_asked(told: Told) -> None:
    assert {command.split()[0] for command in COMMANDS} == told.registered - ACL


def test_both_brokers_say_the_same_but_for_what_is_listed(told: Told) -> None:
    found = list(differences(told))
    unlisted = [one for one in found if not any(map(one.is_meant, DIFFERENCES))]
    gone = [one for one in DIFFERENCES if not any(each.is_meant(one) for each in found)]
    assert (unlisted, gone) == ([], [])


def test_what_varies_is_there(told: Told) -> None:
    """A form that fits nothing any more would say that something is compared which is not."""
    fields = [
        (command, field)
        for command, answer in told.ours.items()
        for field, value in answer.items()
        if value == "<varying>"
    ]
    for one in VARYING:
        assert any(
            fnmatchcase(command, one.commands) and re.fullmatch(one.field, field)
            for command, field in fields
        ), one


def test_a_trace_of_our_client_is_read_by_mqadmin(told: Told) -> None:
    for answers in (told.ours, told.java):
        trace = answers["queryMsgTraceById -i {trace_id}"]
        assert trace["traced-writers .Status"] == "success"
        assert trace["traced-readers .Status"] == "success"


def test_mqadmin_exports(told: Told) -> None:
    exports = {
        "exportConfigs -c DefaultCluster -f {folder}/export": "configs.json: /clusterScale/",
        "exportMetadata -c DefaultCluster -f {folder}/export": "metadata.json: /topicConfigTable/",
        "exportMetrics -c DefaultCluster -f {folder}/export": "metrics.json: /evaluateReport/",
    }
    for command, leaf in exports.items():
        assert any(field.startswith(leaf) for field in told.ours[command]), command
