"""The history that a broker is given, and the mqadmin commands that it is asked meanwhile.

The order matters: each command finds what those before it left. The output of a command follows
from this file, from the broker's address (the same one for both brokers) and from the time.
"""

from __future__ import annotations

import json
import time

from aerobee.client.blocking_roles import Producer, PushConsumer
from aerobee.client.consuming.listener import Consumed
from aerobee.client.message import Message, ReceivedMessage
from aerobee.client.options import ConsumeFrom, ProducerOptions, PushOptions
from tests.interop.administration.mqadmin import AdminPeer, Output
from tests.interop.brokers import BROKER_NAME, Broker
from tests.interop.processes import wait_until
from tests.interop.wire import SUCCESS, Wire

QUEUES, COUNT = 4, 24
TRIES = 5
QUERY_CONSUMER_OFFSET = 14
GET_ALL_TOPIC_CONFIG = 21
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
# How a command ends that got no answer in its own time.
_MISSES = ("RemotingTimeoutException", "RemotingSendRequestException", "RemotingConnectException")

# --- commands, by when they are run; the names in braces are in `Story.names`

#: On a broker that nobody has used.
MADE = (
    "updateTopic -b {broker} -t orders -r 4 -w 4",
    "updateTopic -c DefaultCluster -t payments -r 2 -w 2 -o true",
    "updateTopic -c DefaultCluster -t units -r 1 -w 1 -u true -s true",
    # A consumer has it made as well, and knows of it at once or half a minute later, as it comes.
    "updateTopic -b {broker} -t %RETRY%readers -r 1 -w 1",
    # The group of mqadmin's own consumers, which the broker knows when they live for a second.
    "updateTopic -b {broker} -t %RETRY%TOOLS_CONSUMER -r 1 -w 1",
    "updateSubGroup -b {broker} -g readers -r 3",
    "updateSubGroup -c DefaultCluster -g others",
    "getConsumerConfig -g readers",
    "getConsumerConfig -g nobody",
)
#: With 24 messages in `orders`, which a Java consumer of `readers` has had, and which a Java
#: producer of `writers` could have sent; both are still there.
USED = (
    "topicRoute -t orders",
    "topicRoute -t orders -l",
    "topicRoute -t nowhere",
    "topicStatus -t orders",
    "topicStatus -t nowhere",
    "topicClusterList -t orders",
    "topicList",
    "topicList -c",
    "clusterList",
    "clusterList -m",
    "brokerStatus -b {broker}",
    "brokerStatus -c DefaultCluster",
    "allocateMQ -t orders -i 10.0.0.1,10.0.0.2,10.0.0.3",
    "queryMsgById -i {offset_id}",
    "queryMsgById -i {no_offset_id}",
    "queryMsgById -i {offset_id} -g nobody -d {client}",
    "queryMsgByKey -t orders -k key-3",
    "queryMsgByKey -t orders -k key-none",
    "queryMsgByUniqueKey -t orders -i {unique_id}",
    "queryMsgByUniqueKey -t orders -i {unique_id} -a",
    "queryMsgByUniqueKey -t orders -i {no_unique_id}",
    "queryMsgByOffset -t orders -b {name} -i 1 -o 2",
    "queryMsgByOffset -t orders -b {name} -i 1 -o 999",
    "queryCq -t orders -q 0 -i 0 -c 3 -b {broker} -g readers",
    "queryCq -t orders -q 0 -i 4 -c 9 -b {broker}",
    "queryCq -t nowhere -q 0 -i 0 -b {broker}",
    "printMsg -t orders -d true",
    "printMsg -t orders -d false -s TagA",
    "printMsgByQueue -t orders -a {name} -i 0 -p true -d true -f true",
    "consumeMessage -t orders -b {name} -i 0 -o 2 -c 3",
    "consumeMessage -t orders -c 2",
    "brokerConsumeStats -b {broker}",
    "brokerConsumeStats -b {broker} -o true",
    "producerConnection -g writers -t orders",
    "producerConnection -g nobody -t orders",
    "producer -b {broker}",
    "consumerConnection -g readers",
    "consumerConnection -g readers -b {broker}",
    "consumerConnection -g nobody",
    "consumerProgress",
    "consumerProgress -g readers",
    "consumerProgress -g readers -s true",
    "consumerProgress -g nobody",
    "consumerStatus -g readers",
    "consumerStatus -g readers -b {broker}",
    "consumerStatus -g readers -i {client}",
    "consumerStatus -g readers -i nobody@here",
    "statsAll",
    # Not with -a: that lists what was active between two samples, ten seconds apart.
    "statsAll -t orders",
    "cloneGroupOffset -s readers -d copies -t orders",
    "cloneGroupOffset -s readers -d copies -t orders -o true",
    "cloneGroupOffset -s nobody -d copies -t orders -o true",
    "resetOffsetByTime -g readers -t orders -s now",
    "resetOffsetByTime -g readers -t orders -s {begin}",
)
#: When the consumer has had all messages once more.
READ_AGAIN = (
    "queryMsgById -i {offset_id} -g readers -d {client}",
    "queryMsgByUniqueKey -t orders -i {unique_id} -g readers -d {client}",
)
#: When it has left.
LEFT = (
    "consumerProgress -g readers",
    "consumerConnection -g readers",
    "resetOffsetByTime -g readers -t orders -s {begin} -c",
    "resetOffsetByTime -g readers -t orders -s {begin} -f false",
    "resetOffsetByTime -g readers -t orders -s now",
    "resetOffsetByTime -g nobody -t orders -s {begin}",
    "resetOffsetByTime -g readers -t nowhere -s {begin}",
    "skipAccumulatedMessage -g readers -t orders",
    "skipAccumulatedMessage -g nobody -t orders",
    "consumerProgress -g copies",
    "printMsg -t OFFSET_MOVED_EVENT -d true",
    "sendMessage -t payments -p hello -k key-hello -c TagX -b {name} -i 1",
    "sendMessage -t payments -p hello -b {name} -i 0",
    "sendMsgStatus -b {name} -s 32 -c 2",
    "checkMsgSendRT -t payments -a 3 -s 32",
    "clusterRT -a 2 -s 32 -c DefaultCluster -i 60",
    "queryMsgById -i {offset_id} -s true",
    "topicStatus -t payments",
)
#: When our own client has sent and consumed one message, and written the trace of it.
TRACED = ("queryMsgTraceById -i {trace_id}", "queryMsgTraceById -i {no_unique_id}")
#: An order topic that becomes a plain topic.
ORDERED = (
    "updateOrderConf -t payments -m get",
    "updateOrderConf -t payments -m put -v {name}:2",
    "updateOrderConf -t payments -m get",
    "topicRoute -t payments",
    "updateOrderConf -t payments -m delete",
    "updateOrderConf -t payments -m get",
)
#: Settings that the cluster gets, and those that it shows.
SETTINGS = (
    "updateKvConfig -s SPACE -k key -v value",
    "deleteKvConfig -s SPACE -k key",
    "wipeWritePerm -b {name}",
    "topicRoute -t orders",
    "addWritePerm -b {name}",
    "topicRoute -t orders",
    "wipeWritePerm -b nobody",
    "addWritePerm -b nobody",
    "getNamesrvConfig",
    "updateNamesrvConfig -k serverWorkerThreads -v 9",
    "getBrokerConfig -b {broker}",
    "updateBrokerConfig -b {broker} -k maxMessageSize -v 2000000",
    "updateBrokerConfig -b {broker} -k fileReservedTime -v soon",
    "updateBrokerConfig -b {broker} -k fileReservedTime -v 73",
    "updateBrokerConfig -c DefaultCluster -k diskMaxUsedSpaceRatio -v 94",
    "getBrokerConfig -c DefaultCluster",
    "exportMetadata -c DefaultCluster -f {folder}/export",
    "exportMetadata -b {broker} -f {folder}/export -t -s",
    "exportMetadata -b {broker} -f {folder}/export -g",
    "exportConfigs -c DefaultCluster -f {folder}/export",
    "exportMetrics -c DefaultCluster -f {folder}/export",
)
#: Commands that clear away.
CLEARED = (
    "updateTopicPerm -b {broker} -t payments -p 4",
    "updateTopicPerm -b {broker} -t payments -p 4",
    "updateTopicPerm -c DefaultCluster -t payments -p 6",
    "updateTopicPerm -b {broker} -t nowhere -p 4",
    "cleanExpiredCQ -b {broker}",
    "cleanExpiredCQ -c DefaultCluster",
    "deleteExpiredCommitLog -b {broker}",
    "deleteExpiredCommitLog -c DefaultCluster",
    "cleanUnusedTopic -b {broker}",
    "cleanUnusedTopic -c DefaultCluster",
    "deleteTopic -t units -c DefaultCluster",
    "deleteTopic -t nowhere -c DefaultCluster",
    "deleteSubGroup -b {broker} -g others -r true",
    "deleteSubGroup -c DefaultCluster -g readers",
    "deleteSubGroup -b {broker} -g nobody",
    "topicList",
    "consumerProgress",
    "startMonitoring",
    "consumerConnection -g __MONITOR_CONSUMER",
)
COMMANDS = (*MADE, *USED, *READ_AGAIN, *LEFT, *TRACED, *ORDERED, *SETTINGS, *CLEARED)
#: Commands that would never end are interrupted after this number of lines of output.
LINES = {"clusterRT": 2}


def unique_id(sequence: int) -> str:
    """A unique message id as Java's clients make them, of the first moment of this month."""
    return f"7F000001002A139A550000000000{sequence:04X}"


class Story:
    """One broker's history, told to it; `outputs` has what each command printed."""

    def __init__(self, broker: Broker, peer: AdminPeer) -> None:
        self._broker = broker
        self._peer = peer
        self.names = {
            "broker": broker.address,
            "name": BROKER_NAME,
            "folder": str(peer.folder),
            "begin": str(time.time_ns() // 1_000_000),
            "unique_id": unique_id(5),
            "no_unique_id": unique_id(0xFFFF),
        }
        self.outputs: dict[str, Output] = {}

    def tell(self) -> None:
        """All of it, in order."""
        self._run(MADE)
        self._send_orders()
        self._peer.ask("producer", "writers", "orders", "writer")
        self._consume("readers", "reader")
        self._peer.ask("expect", COUNT)
        self._run(USED)
        self._peer.ask("expected")
        self._wait_committed("readers")
        self._run(READ_AGAIN)
        self._peer.ask("end", "reader")
        self._run(LEFT)
        self._trace()
        self._run(TRACED)
        self._run(ORDERED)
        self._wait_unordered()
        self._run(SETTINGS)
        self._run(CLEARED)

    def _run(self, commands: tuple[str, ...]) -> None:
        """The outputs of a command that is run again have its number behind them."""
        for command in commands:
            words = command.format(**self.names).split(" ")
            label = command
            again = 1
            while label in self.outputs:
                again += 1
                label = f"{command} #{again}"
            self.outputs[label] = self._run_one(words)

    def _run_one(self, words: list[str]) -> Output:
        """The output of a command; a machine under load makes it miss its own time-outs."""
        for _ in range(TRIES):
            output = self._peer.run(*words, lines=LINES.get(words[0], 0))
            if not any(miss in output.err for miss in _MISSES):
                break
        return output

    def _send_orders(self) -> None:
        with self._broker.wire() as wire:
            for n in range(COUNT):
                sent = wire.send(
                    "orders", n % QUEUES, f"order {n}".encode(), KEYS=f"key-{n}",
                    TAGS="TagA" if n % 3 else "TagB", UNIQ_KEY=unique_id(n),
                )  # fmt: skip
                assert sent.code == SUCCESS, sent.remark
                if n == 5:
                    self.names["offset_id"] = sent.ext["msgId"]
            self.names["no_offset_id"] = self.names["offset_id"][:-4] + "FFFF"

    def _consume(self, group: str, instance: str) -> None:
        answer = self._peer.ask("consumer", group, "orders", "*", instance, COUNT)
        self.names["client"] = answer["id"]
        self._wait_committed(group)

    def _wait_committed(self, group: str) -> None:
        def committed(wire: Wire) -> int:
            fields = {"consumerGroup": group, "topic": "orders"}
            return sum(
                int(wire.done(QUERY_CONSUMER_OFFSET, {**fields, "queueId": n}).ext["offset"])
                for n in range(QUEUES)
            )

        with self._broker.wire() as wire:
            wait_until(lambda: committed(wire) == COUNT, 60, f"{group} has told its offsets")

    def _wait_unordered(self) -> None:
        """The broker hears it with the answer to its next registration, half a minute apart."""

        def unordered(wire: Wire) -> bool:
            topics = json.loads(wire.done(GET_ALL_TOPIC_CONFIG).body)["topicConfigTable"]
            return not topics["payments"]["order"]

        with self._broker.wire() as wire:
            wait_until(lambda: unordered(wire), 90, "payments is no order topic any more")

    def _trace(self) -> None:
        """One message sent and consumed by our own client, which writes the trace."""
        heard: list[ReceivedMessage] = []

        def listen(messages: list[ReceivedMessage]) -> Consumed:
            heard.extend(messages)
            return Consumed.SUCCESS

        server = self._broker.name_server
        push = PushOptions(consume_from=ConsumeFrom.FIRST, trace=True)
        with PushConsumer(server, "traced-readers", listen, push) as consumer:
            consumer.subscribe("payments")
            with Producer(server, "traced-writers", ProducerOptions(trace=True)) as producer:
                sent = producer.send(Message("payments", b"traced", keys="traced"))
            self.names["trace_id"] = sent.msg_id
            wait_until(lambda: bool(heard), 60, "the traced message has come")
            self._wait_traced(sent.msg_id)

    def _wait_traced(self, unique_id: str) -> None:
        """Both ends write their traces later, and a broker indexes them when it can."""

        def traced(wire: Wire) -> bool:
            found = wire.by_key(TRACE_TOPIC, unique_id, 0, int(time.time() * 1000) + 60_000)
            bodies = "".join(one.body for one in found)
            return all(kind in bodies for kind in ("Pub", "SubBefore", "SubAfter"))

        with self._broker.wire() as wire:
            wait_until(lambda: traced(wire), 60, "the traces of both ends can be asked for")
