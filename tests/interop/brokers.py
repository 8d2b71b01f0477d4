"""A broker with its name server, ours or the real Java one, behind one face.

Both are started as their users start them, as processes of their own on free ports of the loopback
address; both count as ready when a real request says so.
"""

import re
import ssl
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path

from tests.interop.kit import CACHE, JAVA_BROKER
from tests.interop.processes import Child, wait_until
from tests.interop.wire import CLUSTER_INFO, ROUTE, SUCCESS, Wire
from tests.ports import free_port
from tests.tls import CERTIFICATE, KEY
from tests.tls.authority import Authority, client
from tests.tools import SHORT_LIVED_JAVA

TLS_PROPERTIES = {
    "tls.test.mode.enable": "false",
    "tls.server.keyPath": str(KEY),
    "tls.server.certPath": str(CERTIFICATE),
    "tls.server.need.client.auth": "none",
}
READY_S = 180  # seconds usually; two dozen processes may want the two cores
BROKER_NAME = "interop"


@dataclass(slots=True)
class StoreShape:
    """Settings that must agree for two brokers that open one store directory."""

    flush: str = "ASYNC_FLUSH"
    segment_bytes: int = 16 << 20
    queue_segment_bytes: int = 60_000
    index_slots: int = 5_000
    index_entries: int = 20_000
    extra: dict[str, str] = field(default_factory=dict)

    def settings(self, store: Path) -> dict[str, str]:
        """Under RocketMQ's own keys, which both brokers read."""
        return {
            "brokerClusterName": "DefaultCluster",
            "brokerName": BROKER_NAME,
            "brokerId": "0",
            "brokerIP1": "127.0.0.1",
            "storePathRootDir": str(store),
            "storePathCommitLog": str(store / "commitlog"),
            "mappedFileSizeCommitLog": str(self.segment_bytes),
            "mappedFileSizeConsumeQueue": str(self.queue_segment_bytes),
            "maxHashSlotNum": str(self.index_slots),
            "maxIndexNum": str(self.index_entries),
            "flushDiskType": self.flush,
            "defaultTopicQueueNums": "8",
            "autoCreateTopicEnable": "true",
            "diskMaxUsedSpaceRatio": "95",
            "waitTimeMillsInSendQueue": "10000",  # two busy cores are no reason for SYSTEM_BUSY
            **self.extra,
        }


class Broker(ABC):
    """One name server and one broker over one store directory; may be started more than once."""

    kind: str
    children: list[Child]
    #: The TLS context of the tests' own connections; None for plain connections.
    encryption: ssl.SSLContext | None = None
    #: Access key and secret key that they sign with, if any.
    account: tuple[str, str] | None = None

    def __init__(
        self,
        root: Path,
        shape: StoreShape | None = None,
        store: Path | None = None,
        name_server: dict[str, str] | None = None,
        registers_at: str | None = None,
    ) -> None:
        """`registers_at` is the address of a name server that runs; without it the broker has one
        of its own."""
        self.root = root
        self.name_server_settings = name_server or {}  # under RocketMQ's own keys
        self.registers_at = registers_at
        self.store = store or root / "store"
        self.shape = shape or StoreShape()
        self.port = free_port()
        self.name_server_port = free_port()
        self.children = []
        root.mkdir(parents=True, exist_ok=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def name_server(self) -> str:
        return self.registers_at or f"127.0.0.1:{self.name_server_port}"

    @property
    def pid(self) -> int:
        """The process that owns the store."""
        return self.children[-1].process.pid

    def start(self) -> "Broker":
        self.launch()
        self.wait_ready()
        return self

    def launch(self) -> None:
        """The first half of `start`: the processes run, and are not ready yet."""
        assert not self.children, "started twice"
        self._launch()

    def wait_ready(self) -> None:
        try:
            wait_until(self._ready, READY_S, f"{self.kind} broker is ready")
        except BaseException:
            self.kill()
            raise

    @abstractmethod
    def write_config(self) -> Path:
        """Writes the broker's configuration file, as its start does."""

    @abstractmethod
    def _launch(self) -> None:
        """Starts the processes, name server first, and puts them into `children`."""

    def _ready(self) -> bool:
        dead = [child for child in self.children if not child.running]
        assert not dead, f"{self.kind} broker died at its start\n{dead[0].tail()}"
        try:
            with self.wire_to(self.name_server) as name_server, self.wire_to(self.address):
                return f':{self.port}"'.encode() in name_server.done(CLUSTER_INFO).body
        except (ConnectionError, TimeoutError):
            return False

    def stop(self) -> None:
        """SIGTERM and a clean end: nothing left that says the store was not closed."""
        *others, owner = self.children
        owner.stop()
        for child in others:
            child.end()  # a name server of its own has nothing to lose
        self.children = []
        assert not (self.store / "abort").exists(), f"{self.kind} broker left its abort file"

    def kill(self) -> None:
        """kill -9, as a power cut that spares the page cache."""
        for child in reversed(self.children):
            child.end()
        self.children = []

    def wire(self) -> Wire:
        return self.wire_to(self.address)

    def wire_to(self, address: str) -> Wire:
        """A connection as the broker and its name server take it."""
        return Wire(address, tls=self.encryption, account=self.account)

    def create_topic(self, topic: str, queues: int = 8) -> str:
        """Creates a topic and waits until the name server hands out its route."""
        with self.wire() as broker, self.wire_to(self.name_server) as name_server:
            broker.create_topic(topic, queues)
            wait_until(
                lambda: name_server.call(ROUTE, {"topic": topic}).code == SUCCESS,
                10,
                f"route of {topic}",
            )
        return topic

    def resident_bytes(self) -> int:
        """Resident memory of all processes, touched pages of the store's maps among it."""
        return sum(_resident_bytes(child.process.pid) for child in self.children)


class OurBroker(Broker):
    """`aerobee serve` with its embedded name server."""

    kind = "our"
    # An interpreter and what it runs; a test may have either changed.
    interpreter: str = sys.executable
    entry: tuple[str, ...] = ("-m", "aerobee.cli")

    def write_config(self) -> Path:
        config = self.root / "broker.conf"
        settings = {**self.shape.settings(self.store), **self.name_server_settings}
        if self.registers_at is not None:
            settings["namesrvAddr"] = self.registers_at
        config.write_text(_properties(settings))
        return config

    def _launch(self) -> None:
        argv = [
            self.interpreter, *self.entry, "serve", "-c", str(self.write_config()),
            "--port", str(self.port), "--http-port", "0",
        ]  # fmt: skip
        if self.registers_at is None:
            argv += ["--nameserver-port", str(self.name_server_port)]
        self.children = [Child(argv, self.root / "serve.log", {"HOME": str(self.root)})]


class EncryptedBroker(OurBroker):
    """Ours, which takes nothing but TLS, set up by RocketMQ's own file."""

    kind = "our encrypted"

    def __init__(self, root: Path, tls: dict[str, str] | None = None, **options: object) -> None:
        """`tls`: further lines of the file."""
        super().__init__(root, **options)  # type: ignore[arg-type]
        self.encryption = client()
        self.name_server_settings |= encrypting(root, tls or {})


class SealedBroker(EncryptedBroker):
    """An encrypted broker that asks for a certificate of an authority and for an account, name
    server and all."""

    kind = "our sealed"

    def __init__(
        self, root: Path, authority: Authority, accounts: str, account: tuple[str, str]
    ) -> None:
        ours, users = authority.pair("broker"), authority.pair("user")
        tls = {
            "tls.server.certPath": str(ours.certificate),
            "tls.server.keyPath": str(ours.key),
            "tls.server.need.client.auth": "require",
            "tls.server.authClient": "true",
            "tls.server.trustCertPath": str(authority.certificate),
            # For the name server in it.
            "tls.client.certPath": str(ours.certificate),
            "tls.client.keyPath": str(ours.key),
        }
        super().__init__(root, tls, shape=StoreShape(extra=guarding(root / "home", accounts)))
        self.name_server_settings["namesrvAclEnable"] = "true"
        self.encryption = client(authority, users)
        self.account = account


class JavaBroker(Broker):
    """The real name server and broker, with the flags that JDK 17 needs for a clean stop."""

    kind = "Java"
    version = JAVA_BROKER
    heap = ("-Xms256m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m")
    flags = (
        "--add-opens=java.base/java.nio=ALL-UNNAMED",
        "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
        "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    )
    compiler: tuple[str, ...] = SHORT_LIVED_JAVA
    # Otherwise each start makes a key of RSA and a certificate that no test asks for, half of its
    # time.
    tls: tuple[str, ...] = ("-Dtls.server.mode=disabled",)

    def _launch(self) -> None:
        home = self._write_home()
        if self.registers_at is None:
            self.children.append(self._launch_name_server(home))
        config = self.write_config()
        self.children.append(self._java("broker", self.heap, "broker.BrokerStartup", config, home))

    def launch_name_server(self) -> Child:
        """Start the name server alone, at `name_server`; whoever asks for it ends it."""
        return self._launch_name_server(self._write_home())

    def _launch_name_server(self, home: Path) -> Child:
        config = self.root / "namesrv.conf"
        config.write_text(
            _properties(
                {
                    "listenPort": str(self.name_server_port),
                    "kvConfigPath": str(self.root / "namesrv" / "kvConfig.json"),
                    "configStorePath": str(self.root / "namesrv" / "namesrv.properties"),
                    **self.name_server_settings,
                }
            )
        )
        heap = ("-Xms64m", "-Xmx64m")
        return self._java("namesrv", heap, "namesrv.NamesrvStartup", config, home)

    def write_config(self) -> Path:
        config = self.root / "broker.conf"
        settings = {
            **self.shape.settings(self.store),
            "listenPort": str(self.port),
            "namesrvAddr": self.name_server,
        }
        config.write_text(_properties(settings))
        return config

    def _java(self, name: str, heap: tuple[str, ...], main: str, config: Path, home: Path) -> Child:
        argv = [
            "java", *heap, *self.compiler, *self.flags, *self.tls, "-cp",
            str(CACHE / "java" / f"broker-{self.version}" / "*"), f"-Duser.home={self.root}",
            f"org.apache.rocketmq.{main}", "-c", str(config),
        ]  # fmt: skip
        return Child(argv, self.root / f"{name}.log", {"ROCKETMQ_HOME": str(home)})

    def _write_home(self) -> Path:
        """The part of a server's home folder that it does not start without: its log settings."""
        home = self.root / "home"
        (home / "conf").mkdir(parents=True, exist_ok=True)
        for name in ("broker", "namesrv"):
            for file in (f"logback_{name}.xml", f"rmq.{name}.logback.xml"):  # 4.9 and 5
                (home / "conf" / file).write_text(_LOGBACK)
        return home


def _write_accounts(home: Path, accounts: str) -> None:
    (home / "conf").mkdir(parents=True, exist_ok=True)
    (home / "conf" / "plain_acl.yml").write_text(accounts)


def guarding(home: Path, accounts: str) -> dict[str, str]:
    """Settings of a broker of ours that asks for these accounts, whose file is written."""
    _write_accounts(home, accounts)
    return {"aclEnable": "true", "rocketmqHome": str(home)}


def encrypting(root: Path, tls: dict[str, str]) -> dict[str, str]:
    """Settings of a broker that takes nothing but TLS, by a tls.properties that is written; `tls`
    has its further lines."""
    file = root / "tls.properties"
    file.write_text(_properties({**TLS_PROPERTIES, **tls}))
    return {"tls.server.mode": "enforcing", "tls.config.file": str(file)}


class GuardedBroker(OurBroker):
    """Ours with accounts; the tests' own requests are an administrator's."""

    def __init__(self, root: Path, accounts: str, account: tuple[str, str]) -> None:
        super().__init__(root, StoreShape(extra=guarding(root / "home", accounts)))
        self.account = account


class GuardedJavaBroker(JavaBroker):
    """The real one with the same accounts."""

    kind = "guarded Java"

    def __init__(self, root: Path, accounts: str, account: tuple[str, str]) -> None:
        super().__init__(root, StoreShape(extra={"aclEnable": "true"}))
        self.accounts = accounts
        self.account = account

    def _write_home(self) -> Path:
        home = super()._write_home()
        _write_accounts(home, self.accounts)
        return home


class SecuredJavaBroker(JavaBroker):
    """A Java broker that asks for signed requests, and takes TLS beside plain connections."""

    kind = "secured Java"
    access_key, secret_key = "interop-writer", "interop-hidden-key"

    def __init__(self, root: Path, **options: object) -> None:
        super().__init__(root, **options)  # type: ignore[arg-type]
        self.shape.extra["aclEnable"] = "true"
        self.tls = (f"-Dtls.config.file={root / 'tls.properties'}",)

    def _write_home(self) -> Path:
        home = super()._write_home()
        (home / "conf" / "plain_acl.yml").write_text(
            f"accounts:\n- accessKey: {self.access_key}\n  secretKey: {self.secret_key}\n"
            "  admin: true\n  defaultTopicPerm: PUB|SUB\n  defaultGroupPerm: PUB|SUB\n"
        )
        (self.root / "tls.properties").write_text(_properties(TLS_PROPERTIES))
        return home


_LOGBACK = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %p %t %logger{20} - %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""


def _properties(settings: dict[str, str]) -> str:
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def _resident_bytes(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024
