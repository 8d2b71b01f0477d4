"""Ports, disks, owners and certificates, on real sockets and files."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from aerobee import testing
from aerobee.access.files.account_places import tools_file
from aerobee.cli.doctor.certificates import certificates
from aerobee.cli.doctor.disks import disks, growth_of, mount_of
from aerobee.cli.doctor.files import store_files
from aerobee.cli.doctor.findings import Machine
from aerobee.cli.doctor.ports import ports
from aerobee.cli.doctor.processes import lock_holder
from aerobee.cli.documents.doctor import Finding
from aerobee.client import blocking_roles
from aerobee.client.message import Message
from aerobee.config.model import Settings
from aerobee.store.disk.files import DiskSpace, Files
from tests.ports import free_port
from tests.tls.authority import Authority

HERE = Machine()


def only_port(**settings: object) -> Settings:
    """Settings of a broker with one port."""
    off = {"nameserver_enabled": False, "http_enabled": False, "vip_port_enabled": False}
    return Settings.for_tests(**{**off, "listen_host": "127.0.0.1", **settings})


# --- ports


def test_a_port_is_free_or_taken_by_a_named_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        settings = only_port(listen_port=server.getsockname()[1])
        [taken] = ports(settings, HERE)
        assert taken.state == "fault"
        assert f"process {os.getpid()} (" in taken.text
        [own] = ports(settings, Machine(pid=os.getpid()))
        assert own.state == "ok"
    [free] = ports(settings, HERE)
    assert (free.state, free.subject) == ("ok", f"127.0.0.1:{settings.listen_port}")


def test_a_broker_that_does_not_listen_where_its_settings_say_is_a_fault() -> None:
    [one] = ports(only_port(listen_port=free_port()), Machine(pid=os.getpid()))
    assert (one.state, "nobody listens there" in one.text) == ("fault", True)


def test_an_address_of_another_machine_and_two_parts_on_one_port_are_faults() -> None:
    [one] = ports(only_port(listen_host="192.0.2.1", listen_port=free_port()), HERE)
    assert (one.state, "no address of this machine" in one.text) == ("fault", True)
    port = free_port()
    found = list(ports(only_port(listen_port=port, http_enabled=True, http_port=port), HERE))
    assert found[0].state == "fault"
    assert "is also" in found[0].text


# --- disks


class Fullness(Files):
    def __init__(self, used: int, free: int) -> None:
        self._space = DiskSpace(used, free)

    def disk_space(self, path: str) -> DiskSpace:
        return self._space


@pytest.mark.parametrize(("used", "state"), [(50, "ok"), (80, "warning"), (95, "fault")])
def test_space_is_held_against_the_settings(used: int, state: str, tmp_path: Path) -> None:
    settings = Settings.for_tests(store_path=str(tmp_path))
    found = {one.check: one for one in disks(settings, HERE, files=Fullness(used, 100 - used))}
    assert found["disk space"].state == state
    assert found["inodes"].state in ("ok", "warning")
    assert found["disk full"].state == "unknown", "the log has no segment yet"


@pytest.mark.parametrize(
    ("line", "state", "says"),
    [
        ("/ rw,relatime shared:1 - ext4 /dev/sda1 rw", "ok", "ext4 on /dev/sda1"),
        ("/ rw - ext4 /dev/sda1 rw,nobarrier", "fault", "nobarrier"),
        ("/ ro - ext4 /dev/sda1 rw", "fault", "read-only"),
        ("/ rw - ext4 /dev/sda1 rw,sync", "warning", "the option sync"),
        ("/ rw - tmpfs tmpfs rw", "warning", "it is memory"),
        ("/ rw - nfs4 host:/store rw", "warning", "what the server does"),
        ("/ rw - fuse.sshfs host:/store rw", "warning", "what the server does"),
        ("/ rw - overlay overlay rw", "warning", "container"),
    ],
)
def test_the_file_system_is_judged(line: str, state: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(f"22 1 8:1 / {line}\n")
    (tmp_path / "sys/dev/block/8:1/queue").mkdir(parents=True)
    (tmp_path / "sys/dev/block/8:1/queue/rotational").write_text("0\n")
    settings = Settings.for_tests(store_path=str(tmp_path / "store"))
    [found] = [one for one in disks(settings, Machine(tmp_path)) if one.check == "disk type"]
    assert (found.state, says in found.text) == (state, True)
    assert "no turning disk" in found.text


def test_the_nearest_mount_counts_and_names_with_blanks_are_read(tmp_path: Path) -> None:
    place = tmp_path / "a disk"
    place.mkdir()
    point = str(place).replace(" ", "\\040")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(
        f"1 1 8:1 / / rw - ext4 /dev/a rw\n2 1 8:2 / {point} rw - xfs /dev/b rw\n"
        f"3 1 8:3 / {point}x rw - btrfs /dev/c rw\n"
    )
    found = mount_of(str(place / "store"), Machine(tmp_path))
    assert found is not None
    assert (found.kind, found.point) == ("xfs", str(place))


def test_a_log_that_grows_is_full_at_a_time_that_can_be_told() -> None:
    with testing.broker(commit_log_segment_bytes=64 << 10, max_message_bytes=16 << 10) as running:
        with blocking_roles.Producer(running.name_server, "P") as producer:
            for _ in range(15):
                producer.send(Message("grows", os.urandom(12_000)))
        settings = running.settings
        growth = growth_of(settings, Files())
        assert growth is not None
        assert growth.held_bytes == (2 << 16) or growth.held_bytes == (3 << 16)
        assert growth.rate > 0

        def full_when(free: int) -> Finding:
            files = Fullness(0, free)
            return {one.check: one for one in disks(settings, HERE, files=files)}["disk full"]

        # It has grown for milliseconds only, so the first terabyte is full within days.
        assert full_when(1 << 30).state == "warning"
        assert "sends are refused from about" in full_when(1 << 30).text
        assert full_when(1 << 60).state == "ok"
        assert "never full" in full_when(1 << 60).text


# --- owners and modes


def test_owners_and_modes_of_a_store(tmp_path: Path) -> None:
    settings = Settings.for_tests(store_path=str(tmp_path / "store"))
    [missing] = store_files(settings, HERE)
    assert (missing.check, missing.state) == ("store", "ok")
    config = tmp_path / "store/config"
    config.mkdir(parents=True)
    (config / "topics.json").write_text("{}")
    assert {one.state for one in store_files(settings, HERE)} == {"ok"}
    (config / "topics.json").chmod(0o666)
    (tmp_path / "store/abort").touch()
    found = {one.check: one for one in store_files(settings, HERE)}
    assert found["mode"].state == "warning"
    assert str(config / "topics.json") in found["mode"].text
    assert found["store"].state == "warning", "the last run did not end in order"


def test_a_place_that_cannot_be_looked_into_is_unknown(tmp_path: Path) -> None:
    # Root may look everywhere; no user may look at a name that is too long.
    settings = Settings.for_tests(store_path=str(tmp_path / ("x" * 300)))
    [found] = store_files(settings, HERE)
    assert (found.check, found.state) == ("store", "unknown")
    states = {one.check: one.state for one in disks(settings, HERE)}
    assert states["disk"] == "unknown"
    assert tools_file(str(tmp_path / ("x" * 300))) is not None, "reading it will say why"
    assert tools_file(str(tmp_path)) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_of_another_user_are_a_fault(tmp_path: Path) -> None:
    (tmp_path / "one").touch()
    os.chown(tmp_path / "one", 65534, 65534)
    found = {
        one.check: one for one in store_files(Settings.for_tests(store_path=str(tmp_path)), HERE)
    }
    assert found["owner"].state == "fault"
    assert (found["owner"].remedy or "").startswith("chown -R root: ")


def test_a_file_of_accounts_that_all_may_read_is_a_fault(tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text("accounts: []\n")
    settings = Settings.for_tests(
        store_path=str(tmp_path / "s"), acl_enabled=True, acl_file=str(file)
    )
    (tmp_path / "s").mkdir()
    for mode, state in ((0o644, "fault"), (0o640, "ok")):
        file.chmod(mode)
        found = {one.subject: one.state for one in store_files(settings, HERE)}
        assert found[str(file)] == state


def test_the_process_that_has_a_store_open_is_found() -> None:
    with testing.broker() as running:
        assert lock_holder(HERE, running.store_path) == os.getpid()
    assert lock_holder(HERE, running.store_path) is None


# --- certificates


def secured(authority: Authority, days: int = 365, **settings: object) -> Settings:
    pair = authority.pair("bee", days=days)
    given = {
        "tls_mode": "enforcing",
        "tls_certificate_path": str(pair.certificate),
        "tls_key_path": str(pair.key),
        **settings,
    }
    pair.key.chmod(0o640)
    return Settings.for_tests(**given)


@pytest.mark.parametrize(("days", "state"), [(365, "ok"), (20, "warning"), (-1, "fault")])
def test_the_end_of_a_certificate_is_told(days: int, state: str, tmp_path: Path) -> None:
    settings = secured(Authority(tmp_path), days)
    found = {one.subject: one for one in certificates(settings)}
    assert found[settings.tls_certificate_path].state == state
    assert found[settings.tls_key_path].state == "ok"
    assert found["tls"].state == "ok", "key and certificate fit"


def test_a_certificate_that_does_not_hold_yet_is_a_fault(tmp_path: Path) -> None:
    settings = secured(Authority(tmp_path))
    early = datetime.now(UTC) - timedelta(days=9)
    found = {one.subject: one for one in certificates(settings, lambda: early)}
    assert found[settings.tls_certificate_path].state == "fault"


def test_a_key_that_does_not_fit_and_one_that_all_may_read_are_faults(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    other = authority.pair("other")
    other.key.chmod(0o644)
    settings = secured(authority, tls_key_path=str(other.key))
    found = [one for one in certificates(settings) if one.state == "fault"]
    assert ["is not the key" in found[0].text, "others may read" in found[1].text] == [True, True]
    assert found[1].remedy == f"chmod 640 {other.key}"
