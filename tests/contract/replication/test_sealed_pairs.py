"""A master and a slave of ours whose connections are below TLS, and pairs of which one speaks none.

The master fills some segments before its slave comes, so a worker reads the first part of them.
"""

from __future__ import annotations

import json
import random
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aerobee import testing
from aerobee.client.blocking_roles import Producer
from aerobee.client.message import Message
from aerobee.client.options import ProducerOptions
from aerobee.client.producing.sender import SendStatus
from aerobee.store.log.replication import feed
from aerobee.testing import RunningBroker
from tests.ports import free_port
from tests.tls.authority import Authority

WAIT_S = 20.0
SEGMENT = 1 << 21
SMALL, LARGE = 100, 1_500_000


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def takes_tls(authority: Authority, mode: str) -> dict[str, Any]:
    pair = authority.pair("master")
    return {
        "tls_mode": mode,
        "tls_certificate_path": str(pair.certificate),
        "tls_key_path": str(pair.key),
    }


def speaks_tls(authority: Authority) -> dict[str, Any]:
    return {
        "tls_outgoing": True,
        "tls_check_servers": True,
        "tls_client_trust_path": str(authority.certificate),
    }


@contextmanager
def master(path: Path, **settings: Any) -> Iterator[RunningBroker]:
    own: dict[str, Any] = {"broker_role": "SYNC_MASTER", "nameserver_port": free_port()}
    with _broker(path / "master", **own, **settings) as running:
        yield running


@contextmanager
def slave(path: Path, of: RunningBroker, **settings: Any) -> Iterator[RunningBroker]:
    own: dict[str, Any] = {"broker_role": "SLAVE", "broker_id": 1, "name_servers": of.name_server}
    with _broker(path / "slave", **own, **settings) as running:
        yield running


@contextmanager
def _broker(path: Path, **settings: Any) -> Iterator[RunningBroker]:
    common = {
        "ha_listen_port": free_port(),
        "http_enabled": True,
        "http_port": free_port(),
        "commit_log_segment_bytes": SEGMENT,
        "store_path": str(path),
    }
    with testing.broker(**{**common, **settings}) as running:
        yield running


def send(broker: RunningBroker, access: dict[str, Any], *sizes: int) -> set[SendStatus]:
    with Producer(broker.name_server, options=ProducerOptions(**access)) as producer:
        return {producer.send(Message("Sealed", random.randbytes(size))).status for size in sizes}


def log_of(broker: RunningBroker) -> bytes:
    """The log's bytes, zeros of segments that were made ahead included."""
    files = sorted((broker.store_path / "commitlog").iterdir())
    return b"".join(file.read_bytes() for file in files).rstrip(b"\0")


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
def test_a_slave_follows_its_master_below_tls(
    authority: Authority, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "_HOT_BYTES", SEGMENT)
    access = {"use_tls": True, "trust_store": str(authority.certificate)}
    secured = takes_tls(authority, mode)
    with master(tmp_path, **secured) as first:
        early = send(first, access, *[LARGE, SMALL] * 5)
        assert early == {SendStatus.SLAVE_NOT_AVAILABLE}
        with slave(tmp_path, first, **secured, **speaks_tls(authority)) as second:
            until(lambda: send(first, access, SMALL) == {SendStatus.OK})
            assert send(first, access, *[LARGE, SMALL, SMALL] * 3) == {SendStatus.OK}
            assert log_of(second) == log_of(first)
            assert len(log_of(first)) > 8 * LARGE


@pytest.mark.parametrize(
    ("of_master", "of_slave", "reason"),
    [
        ("enforcing", "plain", "does it take nothing but TLS? tls.enable=true speaks it"),
        ("disabled", "sealed", "in the TLS handshake, as one without TLS does"),
        ("enforcing", "stranger", "its certificate is not trusted"),
    ],
)
def test_a_slave_that_cannot_speak_as_its_master_does_says_why(
    authority: Authority, tmp_path: Path, of_master: str, of_slave: str, reason: str
) -> None:
    """The slave's settings name the master: its name server refuses the slave as well."""
    secured = {} if of_master == "disabled" else takes_tls(authority, of_master)
    others = Authority(tmp_path / "others", "others")
    speaks = {"plain": {}, "sealed": speaks_tls(authority), "stranger": speaks_tls(others)}
    # RocketMQ's slaves take the port below for that of clients, and so does ours.
    port = free_port() + 1
    ports = {"listen_port": port - 1, "ha_listen_port": port}
    with master(tmp_path, **ports, **secured) as first:
        follows = {"ha_master_address": f"127.0.0.1:{port}", **speaks[of_slave]}
        with slave(tmp_path, first, **follows) as second:
            until(lambda: reason in reason_of(second, "follows its master"))
            assert not log_of(second)


def reason_of(broker: RunningBroker, name: str) -> str:
    """The reason of a note of readiness, "" without one."""
    try:
        with urllib.request.urlopen(f"http://{broker.http}/ready", timeout=WAIT_S) as answer:
            page = answer.read()
    except urllib.error.HTTPError as error:
        page = error.read()  # name servers refuse it as well
    checks = json.loads(page)["checks"]
    [found] = [one for one in checks if one["check"] == name]
    return str(found.get("reason", "")) if not found["ok"] else ""
