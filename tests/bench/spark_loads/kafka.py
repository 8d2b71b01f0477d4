"""A Kafka broker of one node, the controller in the same process, as a child of the benchmark."""

import contextlib
import socket
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path

from tests.bench.loads import CACHE
from tests.interop.processes import Child, wait_until
from tests.ports import free_port

JARS = CACHE / "jars" / "kafka-4.3.1"
CONNECTOR = CACHE / "jars" / "spark-kafka-4.2.0"
# The flags that Kafka's own start script sets.
_FLAGS = (
    "-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
)  # fmt: skip


class KafkaBroker:
    """Serves topics of `partitions` partitions each, made when they are first written to."""

    def __init__(self, root: Path, partitions: int) -> None:
        self.root = root
        self.port = free_port()
        self._partitions = partitions
        self._child: Child | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.process.pid

    def start(self) -> "KafkaBroker":
        self.root.mkdir(parents=True)
        config = self.root / "server.properties"
        config.write_text(self._settings())
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        words = ["format", "--cluster-id", cluster, "--config", str(config)]
        self._java("format", "kafka.tools.StorageTool", *words).wait(60)
        self._child = self._java("kafka", "kafka.Kafka", str(config))
        wait_until(self._ready, 60, "Kafka is ready")
        return self

    def kill(self) -> None:
        if self._child is not None:
            self._child.end()

    def _java(self, name: str, *words: str) -> Child:
        argv = ["java", *_FLAGS, "-cp", str(JARS / "*"), *words]
        return Child(argv, self.root / f"{name}.log")

    def _ready(self) -> bool:
        assert self._child is not None
        assert self._child.running, f"Kafka died at its start\n{self._child.tail()}"
        # It listens once it is of use; clients wait for what is not there yet.
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def _settings(self) -> str:
        controller = free_port()
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.root / "logs",
            "num.partitions": self._partitions,
            # A machine with other things to do is no reason to take the broker for lost.
            "broker.session.timeout.ms": 120_000,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
        }
        return "".join(f"{key}={value}\n" for key, value in settings.items())
