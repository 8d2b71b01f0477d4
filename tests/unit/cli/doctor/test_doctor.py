"""`aerobee doctor` against a running broker and its name servers, and the bundle that it writes."""

from __future__ import annotations

import asyncio
import json
import stat
import tarfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aerobee import testing
from aerobee.cli.doctor.redaction import HIDDEN, Redaction
from aerobee.cli.doctor.registration import differences, is_loopback, registration
from aerobee.cli.doctor.survey import Answered, Survey, Told, answered, route_text, vip_of
from aerobee.cli.main import main
from aerobee.client import blocking_roles
from aerobee.client.errors import ConnectFailed
from aerobee.config.model import Settings
from aerobee.nameserver.server import NameServer
from aerobee.protocol.bodies.routes import BrokerRoute, ClusterInfo, QueueRoute, TopicRoute
from aerobee.testing import RunningBroker
from tests.ports import free_port

WAIT_S = 30.0


@contextmanager
def name_server(folder: Path) -> Iterator[str]:
    """The address of a name server."""
    address: Future[str] = Future()
    stop, holder = asyncio.Event(), []

    async def serve() -> None:
        server = NameServer("127.0.0.1", 0, folder / "kv.json")
        await server.start()
        holder.extend((asyncio.get_running_loop(), server))
        address.set_result(f"127.0.0.1:{server.port}")
        await stop.wait()
        await server.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    where = address.result(WAIT_S)
    try:
        yield where
    finally:
        holder[0].call_soon_threadsafe(stop.set)
        thread.join(WAIT_S)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker that registers at two name servers, with its HTTP port and a topic."""
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    with (
        name_server(one) as first,
        name_server(two) as second,
        testing.broker(
            broker_name="bee",
            nameserver_enabled=False,
            name_servers=f"{first};{second}",
            listen_port=free_port(),
            vip_port_enabled=False,
            http_enabled=True,
            http_port=free_port(),
        ) as broker,
    ):
        with blocking_roles.Admin(broker.name_server) as admin:
            admin.create_topic("orders", queues=2)
        yield broker


@pytest.fixture
def configuration(running: RunningBroker, tmp_path: Path) -> Path:
    """A file with the settings of the running broker."""
    file, settings = tmp_path / "aerobee.toml", running.settings
    file.write_text(
        f"""
        [broker]
        name = "bee"
        listen_host = "127.0.0.1"
        listen_port = {settings.listen_port}
        vip_port_enabled = false
        name_servers = "{settings.name_servers}"
        [store]
        path = "{running.store_path}"
        commit_log_segment_bytes = {settings.commit_log_segment_bytes}
        disk_warning_ratio = 1.0
        [http]
        port = {settings.http_port}
        [retention]
        disk_max_used_percent = 95
        disk_force_ratio = 1.0
        """
    )
    return file


Examined = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture
def examine(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Examined]]:
    def examine(*arguments: str) -> tuple[int, Examined]:
        capsys.readouterr()
        code = main(["doctor", "--json", *arguments])
        document = json.loads(capsys.readouterr().out)
        found = {(one["check"], one["subject"]): one for one in document["findings"]}
        assert document["faults"] == sum(one["state"] == "fault" for one in found.values())
        assert code == (1 if document["faults"] else 0)
        return code, found

    return examine


def test_a_broker_that_runs_well_has_no_fault(
    running: RunningBroker, configuration: Path, examine: Callable[..., tuple[int, Examined]]
) -> None:
    code, found = examine("-c", str(configuration))
    assert code == 0, [one for one in found.values() if one["state"] == "fault"]
    assert found["broker", running.broker]["state"] == "ok"
    assert found["port", running.broker]["text"].startswith("taken by the broker itself")
    for server in running.settings.name_server_list:
        assert found["name server", server]["state"] == "ok"
        assert found["registration", server]["text"] == f"it tells clients {running.broker} for bee"
    # The address is that of loopback, which no client elsewhere reaches.
    assert found["address", running.broker]["state"] == "warning"
    assert found["clock", running.broker]["state"] == "ok"
    together = found["name servers", ";".join(running.settings.name_server_list)]
    assert together["state"] == "ok"
    assert "all tell the same" in together["text"]


def test_a_dead_name_server_is_a_fault_with_its_remedy(
    running: RunningBroker, configuration: Path, examine: Callable[..., tuple[int, Examined]]
) -> None:
    dead = f"127.0.0.1:{free_port()}"
    code, found = examine("-c", str(configuration), "-n", f"{running.settings.name_servers};{dead}")
    assert code == 1
    assert found["name server", dead]["state"] == "fault"
    assert "broker.name_servers" in found["name server", dead]["remedy"]
    assert [key for key, one in found.items() if one["state"] == "fault"] == [("name server", dead)]


def test_a_name_server_without_the_broker_is_found(
    running: RunningBroker,
    configuration: Path,
    tmp_path: Path,
    examine: Callable[..., tuple[int, Examined]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("aerobee.cli.doctor.survey._SETTLE_S", 0.0)
    with name_server(tmp_path) as empty:
        first = running.settings.name_server_list[0]
        code, found = examine("-c", str(configuration), "-n", f"{first};{empty}")
    assert code == 1
    assert found["registration", empty]["state"] == "fault"
    assert found["name servers", "broker bee"]["state"] == "warning"
    assert "it lacks" in found["name servers", empty]["text"]


def test_while_no_broker_runs_its_own_name_server_is_not_a_fault(
    tmp_path: Path, examine: Callable[..., tuple[int, Examined]]
) -> None:
    code, found = examine(
        *("--set", f"store.path={tmp_path / 'store'}", "--set", f"listenPort={free_port()}"),
        *("--set", f"nameserver.port={free_port()}", "--set", f"http.port={free_port()}"),
        *("--set", "broker.vip_port_enabled=false"),
    )
    assert code == 0, [one for one in found.values() if one["state"] == "fault"]
    assert {one["state"] for (check, _), one in found.items() if check == "name server"} == {
        "unknown"
    }


def test_files_of_tls_that_cannot_be_used_are_findings_and_no_end(
    tmp_path: Path, examine: Callable[..., tuple[int, Examined]]
) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nbm90aGluZw==\n-----END CERTIFICATE-----\n")
    code, found = examine(
        *("--set", f"store.path={tmp_path / 'store'}", "--set", f"listenPort={free_port()}"),
        *("--set", "broker.vip_port_enabled=false", "--trust-store", str(broken)),
        *("-n", f"127.0.0.1:{free_port()}"),
    )
    assert code == 1
    assert found["name servers", "none asked"]["state"] == "fault"


def test_people_get_a_table_and_remedies_apart(
    configuration: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "-c", str(configuration)]) == 0
    captured = capsys.readouterr()
    assert "CHECK" in captured.out
    assert captured.out.startswith("broker bee: process ")
    assert "warning, address" in captured.err


# --- differences between name servers, drawn up by hand


def told(address: str = "a:1", *topics: str) -> Told:
    broker = BrokerRoute("bee", "c", {0: address})
    return Told(ClusterInfo({"bee": broker}, {"c": ["bee"]}), frozenset(topics))


def test_other_addresses_topics_and_routes_are_told_by_name() -> None:
    tables = {"n1": told("a:1", "t"), "n2": told("a:1", "t", "u"), "n3": told("b:1", "t", "u")}
    routes = {
        server: TopicRoute((QueueRoute("bee", count, count, 6),), ())
        for server, count in (("n1", 8), ("n2", 8), ("n3", 4))
    }
    found = dict(differences(tables, {"t": {**routes}}))
    assert found["broker bee"] == "n1, n2 tells 0=a:1; n3 tells 0=b:1"
    assert found["n1"] == "it lacks 1 topics that others know: u"
    assert found["topic t"] == "n1, n2 tells bee 8r8w perm 6; n3 tells bee 4r4w perm 6"


def test_the_order_in_a_route_is_no_difference() -> None:
    parts = (QueueRoute("a", 1, 1, 6), QueueRoute("b", 1, 1, 6))
    assert route_text(TopicRoute(parts, ())) == route_text(TopicRoute(parts[::-1], ()))


def judged(**brokers: Answered | ConnectFailed) -> dict[str, str]:
    settings = Settings.for_tests(
        broker_name="bee", listen_port=1, vip_port_enabled=False, listen_host="127.0.0.1"
    )
    at = {"here": "127.0.0.1:1", "told": "10.0.0.9:1"}
    survey = Survey(
        {"n1": told("10.0.0.9:1")}, {}, {at[name]: answer for name, answer in brokers.items()}
    )
    found = registration(survey, settings, is_running=True)
    return {one.text: one.state for one in found if one.check == "address"}


def test_an_address_that_leads_nowhere_or_elsewhere_is_a_fault() -> None:
    here = Answered(1000, 0.0)
    assert list(judged(here=here, told=here).values()) == ["ok"]
    assert list(judged(here=here, told=ConnectFailed("no")).values()) == ["fault"]
    [(text, state)] = judged(here=here, told=Answered(2000, 0.0)).items()
    assert (state, "another broker" in text) == ("fault", True)


def test_a_runtime_table_tells_the_clock() -> None:
    table = {"bootTimestamp": "1000000", "runtime": "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"}
    now = 1000 + 86_400 + 3_600 + 61 + 0.5
    assert answered(table, now - 7) == Answered(1_000_000, 7.0)
    assert answered({"bootTimestamp": "x" * 5000}, now) == Answered(None, None)
    assert answered({"bootTimestamp": "5"}, now) == Answered(5, None)


def test_an_address_that_a_name_server_made_up_is_no_bug() -> None:
    assert vip_of("10.0.0.1:10911") == "10.0.0.1:10909"
    assert [*map(vip_of, ("nonsense", "h:x", "h:2", "h:" + "9" * 5000))] == [None] * 4


def test_addresses_of_loopback() -> None:
    assert [*map(is_loopback, ("127.0.0.9:1", "[::1]:1", "::1:1", "localhost:1"))] == [True] * 4
    assert not is_loopback("10.0.0.1:1")


# --- the bundle

PLANTED = {
    "password": 'pl4nted "password"',
    "access": "planted-access-key",
    "secret": "planted\\secret/key",
    "token": "planted-token-of-a-log",
    "bearer": "cGxhbnRlZA.planted-bearer",
    "environment": "planted-in-environment",
    "private": "cGxhbnRlZCBwcml2YXRlIGtleQ",
    "address": "planted-in-address",
    "option": "planted-option-value",
}


def test_a_bundle_has_no_secret(
    configuration: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home = tmp_path / "home"
    (home / "conf").mkdir(parents=True)
    keys = json.dumps(PLANTED["access"]), json.dumps(PLANTED["secret"])
    (home / "conf/tools.yml").write_text("accessKey: {}\nsecretKey: {}\n".format(*keys))
    (home / "conf/plain_acl.yml").write_text(
        "accounts:\n- accessKey: {}\n  secretKey: {}\n".format(*keys)
    )
    log = tmp_path / "broker.log"
    log.write_text(
        f"refused accessKey={PLANTED['access']} signature=abcdefgh\n"
        f'{{"event": "x", "token": "{PLANTED["token"]}"}}\n'
        f"Authorization: Bearer {PLANTED['bearer']}\n"
        f"-----BEGIN EC PRIVATE KEY-----\n{PLANTED['private']}\n-----END EC PRIVATE KEY-----\n"
        f"seen: {PLANTED['secret']} {PLANTED['environment']} {json.dumps(PLANTED['password'])}\n"
        f"http://me:{PLANTED['address']}@host/ --client-token {PLANTED['option']}\n"
        "the last line\n"
    )
    monkeypatch.setenv("MY_API_TOKEN", PLANTED["environment"])
    monkeypatch.setenv("ROCKETMQ_HOME", str(home))
    monkeypatch.setenv("AEROBEE__TLS__KEY_PASSWORD", PLANTED["password"])
    bundle = tmp_path / "report.tar.gz"
    arguments = ["doctor", "-c", str(configuration), "--bundle", str(bundle), "--log", str(log)]
    assert main(arguments) in (0, 1)
    assert main(arguments) == 1, "no bundle replaces another"
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o600
    with tarfile.open(bundle) as tar:
        texts = {
            member.name.rpartition("/")[2]: tar.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in tar.getmembers()
        }
    assert set(texts) == {
        *("findings.json", "version.txt", "settings.toml", "routes.json", "ready.json"),
        *("metrics.txt", "log.txt"),
    }
    for name, text in texts.items():
        for kind, secret in PLANTED.items():
            for form in {secret, json.dumps(secret)[1:-1], repr(secret)[1:-1]}:
                assert form not in text, (name, kind)
        assert "PRIVATE KEY" not in text
    # And what is no secret is there.
    assert "the last line" in texts["log.txt"]
    assert "rocketmq_" in texts["metrics.txt"]
    assert json.loads(texts["routes.json"])["routes"]["orders"]
    assert json.loads(texts["findings.json"])["broker"] == "bee"
    assert f'key_password = "{HIDDEN}"' in texts["settings.toml"]
    assert "ready" in texts["ready.json"]
    assert not any(secret in "".join(capsys.readouterr()) for secret in PLANTED.values())


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("secretKey: abc", "secretKey: ***"),
        ("tls.key_password='a b'", "tls.key_password='***'"),
        ('"accessKey": "a\\"b", "x": 1', '"accessKey": "***", "x": 1'),
        ("--password hunter2 --topic t", "--password *** --topic t"),
        ("Signature=abc, Topic=t", "Signature=***, Topic=t"),
        ("aGFsZiBhIGtleQ\n-----END PRIVATE KEY-----\nrest", "***\nrest"),
        ("-----BEGIN RSA PRIVATE KEY-----\naGFsZiBhIGtleQ", "***"),
        ("tokens are counted", "tokens are counted"),
        ("credentials_file = '/etc/tools.yml'", "credentials_file = '/etc/tools.yml'"),
        ("key=orders", "key=orders"),
    ],
)
def test_named_secrets_go_and_the_rest_stays(text: str, wanted: str) -> None:
    assert Redaction(()).text(text) == wanted


def test_a_short_secret_does_not_garble_everything() -> None:
    assert Redaction(["a"]).text("a broker") == "a broker"
    assert Redaction(["long-one", "long"]).text("long-one long") == f"{HIDDEN} {HIDDEN}"


def test_a_long_word_takes_no_time_that_grows_with_its_square() -> None:
    text = "token-" * 60_000 + "a" * 300_000 + " --" + "b" * 300_000 + " password=x"
    assert Redaction(["c" * 9]).text(text).endswith("password=***")


def test_values_of_json_are_redacted_by_their_names() -> None:
    value = {"secretKey": "x", "list": [{"password": "y"}, "token=z"], "count": 3}
    assert Redaction(()).value(value) == {
        "secretKey": HIDDEN,
        "list": [{"password": HIDDEN}, f"token={HIDDEN}"],
        "count": 3,
    }
