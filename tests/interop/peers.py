"""The clients as programs with one command line, and what each of them can do."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from tests.interop.brokers import Broker
from tests.interop.kit import CACHE, HERE, HOME, JAVA_CLIENTS
from tests.interop.processes import Child, Dialogue, Line, wait_until
from tests.tls.authority import Pair
from tests.tools import SHORT_LIVED_JAVA

JAVA_FLAGS = (
    "-Xms32m", "-Xmx256m", *SHORT_LIVED_JAVA,
    "--add-opens=java.base/java.nio=ALL-UNNAMED", f"-Duser.home={HOME}",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Peer:
    """One client of one version.

    `ordered` are the modes whose sends leave in order. `broken_on_java` are those that its users
    cannot use with the Java broker (the C++ batch is stored there as one empty message).
    `acknowledges` and `reads_properties`: what the client tells its users. `always` is what each
    command is given besides.
    """

    name: str
    argv: tuple[str, ...]
    modes: tuple[str, ...]
    ordered: frozenset[str] = frozenset({"sync", "batch"})
    broken_on_java: frozenset[str] = frozenset()
    orderly: bool = True
    acknowledges: bool = True
    reads_properties: bool = True
    env: tuple[tuple[str, str], ...] = ()
    needs: str = ""  # the part of setup.sh, where it is not named like the peer
    always: tuple[tuple[str, str], ...] = ()

    def produce(
        self, broker: Broker, log: Path, topic: str, count: int, **options: object
    ) -> Child:
        return self.run(
            "produce", broker, log, topic=topic, count=count, producer=self.name, **options
        )

    def consume(
        self, broker: Broker, log: Path, topic: str, group: str, **options: object
    ) -> Child:
        return self.run("consume", broker, log, topic=topic, group=group, **options)

    def run(self, command: str, broker: Broker, log: Path, **options: object) -> Child:
        """A command that not every client has; test_other_languages.py knows who has which."""
        words = [
            word
            for name, value in {**dict(self.always), **options}.items()
            for word in (f"--{name.replace('_', '-')}", str(value))
        ]
        argv = [*self.argv, command, "--namesrv", broker.name_server, *words]
        log = log / f"{self.name}-{command}-{options['topic']}.log"
        return Child(argv, log, {"HOME": str(HOME), **dict(self.env)}, lines=True)


ALL_MODES = ("sync", "async", "oneway", "batch")


def _java(version: str, name: str = "", main: str = "Peer", *flags: str) -> Peer:
    jars = f"{CACHE}/java/client-{version}/*:{CACHE}/java/peer-{version}"
    argv = ("java", *JAVA_FLAGS, *flags, "-cp", jars, main)
    return Peer(name or f"java-{version}", argv, ALL_MODES, needs=f"java-{version}")


def query(broker: Broker, log: Path) -> Dialogue:
    """The Java reference client, waiting for questions (the language is in Query.java)."""
    argv = [*PEERS["java-4.9.8"].argv, "query", "--namesrv", broker.name_server]
    return Dialogue(argv, log / "query.log", {"HOME": str(HOME)})


def found(java: Dialogue, question: str, patience_s: float = 30) -> list[Line]:
    """The messages that a question to `query` finds. The client waits three seconds for a name
    server, and no longer, so what it could not find is asked for again; each error is printed."""
    messages: list[Line] = []

    def is_answered() -> bool:
        answer = java.ask(question)
        messages[:] = answer.get("found", [])
        if "error" in answer:
            print(f"{question}: {answer['error']}")
        return "error" not in answer

    wait_until(is_answered, patience_s, f"an answer to {question}", 0.2)
    return messages


PEERS: dict[str, Peer] = {
    **{f"java-{version}": _java(version) for version in JAVA_CLIENTS},
    "java-binary": _java("4.9.8", "java-binary", "Peer", "-Drocketmq.serialize.type=ROCKETMQ"),
    "go": Peer("go", (str(CACHE / "go-peer"),), ALL_MODES),
    "cpp": Peer(
        "cpp",
        (str(CACHE / "cpp" / "bin" / "python"), str(HERE / "cpp" / "peer.py")),
        ALL_MODES,
        broken_on_java=frozenset({"batch"}),
    ),
    "node": Peer(
        "node",
        ("node", str(HERE / "node" / "peer.js")),
        ("sync",),
        orderly=False,
        env=(("NODE_PATH", str(CACHE / "node" / "node_modules")),),
    ),
    "rust": Peer(
        "rust",
        (str(CACHE / "rust-peer"),),
        ("oneway",),
        ordered=frozenset({"oneway"}),
        orderly=False,
        acknowledges=False,
        reads_properties=False,
    ),
    "aerobee": Peer("aerobee", (sys.executable, str(HERE / "aerobee_peer.py")), ALL_MODES),
}


#: The peers that speak TLS; docs/security.md says it of each client, and what the others lack.
TLS_PEERS = ("java-4.9.8", "java-4.4.0", "java-5.5.0", "aerobee")


def encrypted(name: str, trusted: Path | None = None, shown: Pair | None = None) -> Peer:
    """One of `TLS_PEERS`, which speaks it: it takes servers whose certificate `trusted` vouches for
    (None: any), and shows a certificate of its own."""
    if name == "aerobee":
        words = {"tls": "yes"}
        if trusted is not None:
            words["trust_store"] = str(trusted)
        if shown is not None:
            words |= {"certificate": str(shown.certificate), "certificate_key": str(shown.key)}
        return replace(PEERS[name], name="aerobee-tls", always=tuple(words.items()))
    flags = {"tls.enable": "true"}
    if trusted is not None:
        # A client in test mode, which is the default, checks nothing, and shows nothing.
        flags |= {"tls.test.mode.enable": "false", "tls.client.authServer": "true"}
        flags["tls.client.trustCertPath"] = str(trusted)
    if shown is not None:
        flags |= {"tls.client.certPath": str(shown.certificate)}
        flags |= {"tls.client.keyPath": str(shown.key)}
    words_of_java = (f"-D{key}={value}" for key, value in flags.items())
    return _java(name.removeprefix("java-"), f"{name}-tls", "Peer", *words_of_java)


def signing(peer: Peer, account: tuple[str, str]) -> Peer:
    """The client with requests that are signed for an account: access key and secret key."""
    access_key, secret_key = account
    keys = (("access_key", access_key), ("secret_key", secret_key))
    return replace(peer, always=(*peer.always, *keys))


LITE_PULL: dict[str, Peer] = {
    version: _java(version, f"lite-{version}", "Lite") for version in ("4.9.8", "5.5.0")
}


def acknowledged(lines: list[Line]) -> list[Line]:
    return [line for line in lines if "ack" in line]
