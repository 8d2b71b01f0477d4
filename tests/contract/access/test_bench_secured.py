"""`aerobee bench` against brokers that ask for accounts or take nothing but TLS."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import aerobee.testing
from aerobee.cli.bench.bench_topics import PREFIX
from aerobee.cli.main import main
from aerobee.client.blocking_roles import Admin
from aerobee.client.options import ClientOptions
from aerobee.testing import RunningBroker
from tests.ports import free_port
from tests.tls.authority import Authority

SHORT = ("--warm-up", "0", "--duration", "1", "--processes", "1", "--timeout", "30")
ADMIN, USER, SENDER, READER = "administrator", "bench-user", "only-sends", "only-reads"
SECRET, OTHER_SECRET = "never-to-be-shown", "also-never-shown"
ACCOUNTS = f"""\
accounts:
- accessKey: {ADMIN}
  secretKey: {SECRET}
  admin: true
- accessKey: {USER}
  secretKey: {SECRET}
  topicPerms:
  - measured=PUB|SUB
  groupPerms:
  - TOOLS_CONSUMER=SUB
- accessKey: {SENDER}
  secretKey: {SECRET}
  topicPerms:
  - measured=PUB
- accessKey: {READER}
  secretKey: {SECRET}
  topicPerms:
  - measured=SUB
"""
MODES = [
    ("send", "--connections", "2", "--in-flight", "4"),
    ("send", "--connections", "2", "--rate", "200", "--processes", "2"),
    ("batch", "--batch", "10", "--connections", "2"),
    ("pull", "--messages", "100", "--connections", "2"),
    ("e2e", "--rate", "200", "--connections", "2", "--consumers", "2"),
]


class Place(NamedTuple):
    """A running broker, the files for it, and the words with which a command is served there."""

    running: RunningBroker
    folder: Path
    words: tuple[str, ...]
    told: tuple[bool, bool]  # whether the document says signed, encrypted
    options: ClientOptions

    def credentials(self, account: str) -> tuple[str, str]:
        return ("--credentials", str(self.folder / f"{account}.yml"))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def accounts_of(home: Path) -> dict[str, Any]:
    """Settings of a broker with accounts; their credentials lie in its home."""
    (home / "conf").mkdir()
    (home / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    for name in (ADMIN, USER, SENDER, READER):
        (home / f"{name}.yml").write_text(f"accessKey: {name}\nsecretKey: {SECRET}\n")
    (home / "wrong.yml").write_text(f"accessKey: {ADMIN}\nsecretKey: {OTHER_SECRET}\n")
    (home / "unknown.yml").write_text(f"accessKey: nobody-here\nsecretKey: {OTHER_SECRET}\n")
    return {"acl_enabled": True, "nameserver_acl_enabled": True, "rocketmq_home": str(home)}


def encryption_of(authority: Authority) -> dict[str, Any]:
    pair = authority.pair("broker")
    return {
        "tls_mode": "enforcing",
        "tls_certificate_path": str(pair.certificate),
        "tls_key_path": str(pair.key),
    }


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    home = tmp_path_factory.mktemp("home")
    with aerobee.testing.broker(broker_name="bee", **accounts_of(home)) as running:
        options = ClientOptions(access_key=ADMIN, secret_key=SECRET)
        words = ("--credentials", str(home / f"{ADMIN}.yml"))
        yield Place(running, home, words, (True, False), options)


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("encrypted")
    with aerobee.testing.broker(broker_name="bee", **encryption_of(authority)) as running:
        words = ("--trust-store", str(authority.certificate))
        yield Place(running, folder, words, (False, True), ClientOptions(use_tls=True))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Place]:
    """Accounts and TLS, and a certificate of the client's besides."""
    home = tmp_path_factory.mktemp("both")
    us, user = authority.pair("us"), authority.pair("user")
    settings = {
        **accounts_of(home),
        **encryption_of(authority),
        "tls_client_certificate": "require",
        "tls_trust_path": str(authority.certificate),
        "tls_client_certificate_path": str(us.certificate),
        "tls_client_key_path": str(us.key),
    }
    shown = {"certificate": str(user.certificate), "certificate_key": str(user.key)}
    with aerobee.testing.broker(broker_name="bee", **settings) as running:
        words = (
            *("--credentials", str(home / f"{ADMIN}.yml"), "--tls"),
            *("--certificate", shown["certificate"], "--certificate-key", shown["certificate_key"]),
        )
        options = ClientOptions(access_key=ADMIN, secret_key=SECRET, use_tls=True, **shown)
        yield Place(running, home, words, (True, True), options)


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user who runs the tests may have an account."""
    for name in ("AEROBEE_CREDENTIALS", "ROCKETMQ_HOME"):
        monkeypatch.delenv(name, raising=False)


class Outcome(NamedTuple):
    code: int
    out: str
    err: str
    document: dict[str, Any]

    @property
    def own(self) -> dict[str, Any]:
        """The part of the document beside the benchmark's names."""
        found: dict[str, Any] = self.document["aerobee"]
        return found


class Bench:
    """Runs `aerobee bench` with the result in a file; no output may hold a key."""

    def __init__(self, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._file = file
        self._capsys = capsys

    def __call__(self, server: str, *words: str) -> Outcome:
        self._capsys.readouterr()
        self._file.unlink(missing_ok=True)
        code = main(["bench", *words, *SHORT, "-n", server, "--json", str(self._file)])
        text = self._file.read_text() if self._file.exists() else "{}"
        out, err = self._capsys.readouterr()
        for hidden in (SECRET, OTHER_SECRET, "Traceback"):
            assert hidden not in out + err + text
        return Outcome(code, out, err, json.loads(text))


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bench:
    return Bench(tmp_path / "result.json", capsys)


def topics(place: Place) -> list[str]:
    with Admin(place.running.name_server, place.options) as admin:
        return admin.topics()


def create(place: Place, topic: str) -> None:
    with Admin(place.running.name_server, place.options) as admin:
        admin.create_topic(topic, queues=2)


def check_stored(outcome: Outcome, words: Sequence[str]) -> None:
    """All went well, by the counts of the broker."""
    assert outcome.code == 0, outcome.err
    assert outcome.own["failures"] == []
    totals = outcome.own["totals"]
    if words[0] == "pull":
        assert totals["received"] > 0
        return
    assert totals["acknowledged"] == totals["stored"] > 0
    if words[0] == "e2e":
        assert totals["received"] == totals["acknowledged"]


@pytest.mark.parametrize("words", MODES, ids=lambda words: " ".join(words[:4]))
@pytest.mark.parametrize("kind", ["guarded", "encrypted", "both"])
def test_each_mode_is_served_and_leaves_nothing(
    kind: str, words: tuple[str, ...], bench: Bench, request: pytest.FixtureRequest
) -> None:
    place: Place = request.getfixturevalue(kind)
    outcome = bench(place.running.name_server, *words, *place.words)
    check_stored(outcome, words)
    assert (outcome.own["signed"], outcome.own["encrypted"]) == place.told
    assert outcome.own["brokers"]["bee"]["version"] == "V4_9_8"
    assert [name for name in topics(place) if name.startswith(PREFIX)] == []


# Accounts


def test_an_account_with_rights_measures_a_topic_of_its_own(guarded: Place, bench: Bench) -> None:
    """Most accounts are like this: it is no administrator."""
    create(guarded, "measured")
    server, words = guarded.running.name_server, ("--topic", "measured")
    for mode in (MODES[0], MODES[2], MODES[4]):
        outcome = bench(server, *mode, *words, *guarded.credentials(USER))
        check_stored(outcome, mode)
        assert "broker bee tells its settings to administrators only" in outcome.err
        assert outcome.own["brokers"]["bee"]["version"] == "V4_9_8"
        assert outcome.own["brokers"]["bee"]["flushDiskType"] == "unknown"
    pull = ("pull", "--connections", "2")
    check_stored(bench(server, *pull, *words, *guarded.credentials(USER)), pull)
    check_stored(bench(server, *MODES[0], *words, *guarded.credentials(SENDER)), MODES[0])


def test_a_right_that_is_missing_is_counted_with_what_the_broker_says(
    guarded: Place, bench: Bench
) -> None:
    create(guarded, "measured")
    words = ("send", "--connections", "1", "--topic", "measured")
    outcome = bench(guarded.running.name_server, *words, *guarded.credentials(READER))
    assert outcome.code == 1
    assert outcome.own["totals"]["stored"] == 0
    [failure] = outcome.own["failures"]
    assert "No default permission for topic:measured" in failure["firstRemark"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "No accessKey is configured"),
        (("--credentials", "{folder}/unknown.yml"), "No acl config for"),
        (("--credentials", "{folder}/wrong.yml"), "Check signature failed"),
    ],
)
def test_an_account_that_is_refused_ends_it_with_one_sentence(
    guarded: Place, bench: Bench, words: tuple[str, ...], why: str
) -> None:
    given = [word.format(folder=guarded.folder) for word in words]
    outcome = bench(guarded.running.name_server, "send", *given)
    assert (outcome.code, outcome.out, outcome.document) == (1, "", {})
    [line] = outcome.err.splitlines()
    assert line.startswith(f"aerobee: {guarded.running.broker} answered ")
    assert why in line


def test_who_may_make_no_topic_is_told_so(guarded: Place, bench: Bench) -> None:
    for words in ((), ("--topic", "others")):
        outcome = bench(guarded.running.name_server, "send", *words, *guarded.credentials(USER))
        assert outcome.code == 1
        *_, last = outcome.err.splitlines()
        assert "Need admin permission" in last
        assert last.endswith("(administrators make topics: --topic names one that is there)")
        assert "deleted" not in outcome.err
        assert "Check signature" not in outcome.err


def test_the_environment_names_an_account_as_well(
    guarded: Place, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AEROBEE_CREDENTIALS", str(guarded.folder / f"{ADMIN}.yml"))
    outcome = bench(guarded.running.name_server, *MODES[0])
    check_stored(outcome, MODES[0])
    assert outcome.own["signed"]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_no_process_shows_the_key_to_others(guarded: Place) -> None:
    """Neither the command nor those of the generator, while they sign."""
    command = (
        *(sys.executable, "-m", "aerobee.cli", "bench", "send", "--warm-up", "0"),
        *("--duration", "1h", "--processes", "2", "-n", guarded.running.name_server),
    )
    process = subprocess.Popen(
        [*command, *guarded.words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if " s, publish " in line:
                break
        shown = {pid: _shown(pid) for pid in (process.pid, *_children(process.pid))}
    finally:
        process.terminate()
        out, err = process.communicate(timeout=120)
    assert len(shown) == 3
    assert not [pid for pid, text in shown.items() if SECRET.encode() in text]
    assert SECRET not in out + err
    assert process.returncode == 130, err


def _children(pid: int) -> list[int]:
    return [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


def _shown(pid: int) -> bytes:
    files = (Path(f"/proc/{pid}/{name}") for name in ("cmdline", "environ"))
    return b"".join(file.read_bytes() for file in files)


def test_topics_are_made_at_the_port_of_administrators(bench: Bench) -> None:
    port = free_port()
    with aerobee.testing.broker(broker_name="bee", admin_port=port) as running:
        outcome = bench(running.name_server, *MODES[0], "--admin", f"127.0.0.1:{port}")
        check_stored(outcome, MODES[0])
        assert outcome.own["brokers"]["bee"]["flushDiskType"] == "ASYNC_FLUSH"
        outcome = bench(running.name_server, *MODES[0])
    assert outcome.code == 1
    *_, last = outcome.err.splitlines()
    assert "aerobee --admin" in last


# TLS


def test_what_does_not_trust_the_broker_ends_it_with_one_sentence(
    encrypted: Place, bench: Bench, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path / "others", "stranger").certificate
    outcome = bench(encrypted.running.name_server, "send", "--trust-store", str(stranger))
    [line] = outcome.err.splitlines()
    assert outcome.code == 3
    assert "its certificate is not trusted: " in line
    assert "is a broker running?" not in line


def test_a_file_that_is_no_certificate_ends_it_with_one_sentence(
    encrypted: Place, bench: Bench, tmp_path: Path
) -> None:
    file = tmp_path / "empty.pem"
    file.write_text("")
    outcome = bench(encrypted.running.name_server, "send", "--trust-store", str(file))
    [line] = outcome.err.splitlines()
    assert outcome.code == 2
    assert f"trust store '{file}' cannot be read as a PEM file" in line


def test_a_plain_command_at_a_broker_of_tls_is_told_what_may_help(
    encrypted: Place, bench: Bench
) -> None:
    outcome = bench(encrypted.running.name_server, "send")
    [line] = outcome.err.splitlines()
    assert outcome.code == 3
    assert "--tls" in line


def test_a_broker_that_takes_no_tls_is_said_to_be_one(guarded: Place, bench: Bench) -> None:
    outcome = bench(guarded.running.name_server, "send", "--tls", *guarded.words)
    [line] = outcome.err.splitlines()
    assert outcome.code == 3
    assert "it closed the connection in the TLS handshake, as one without TLS does" in line


def test_a_client_without_the_certificate_that_is_asked_for_is_told_so(
    both: Place, bench: Bench
) -> None:
    outcome = bench(both.running.name_server, "send", "--tls", *both.credentials(ADMIN))
    [line] = outcome.err.splitlines()
    assert outcome.code == 3
    assert "certificate" in line
