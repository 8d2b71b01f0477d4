"""UPDATE_BROKER_CONFIG on the wire: the settings of a running broker that a request may change, and
where they are kept. The broker reads a file of its own, as `aerobee serve` does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from aerobee.broker.lifecycle.daemon import Daemon
from aerobee.config.loading.load import Loaded, load_settings
from aerobee.config.loading.reload import Reload
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command
from tests.contract.conftest import Wire

FILE = """\
[admin]
remote_config = {on}
[broker]
listen_port = 0
vip_port_enabled = false
[nameserver]
enabled = false
[http]
enabled = false
[store]
path = "{store}"
commit_log_segment_bytes = 4194304
index_slots = 1000
index_entries = 4000
[retention]
hours = 24
[limits]
max_queues = 3000
"""


@dataclass
class Configured:
    """A daemon that runs, and a connection to it."""

    daemon: Daemon
    wire: Wire
    remote_file: Path
    load: Callable[[], Loaded]

    async def update(self, text: str | bytes) -> Command:
        body = text if isinstance(text, bytes) else text.encode()
        return await self.wire.call(RequestCode.UPDATE_BROKER_CONFIG, {}, body)

    async def told(self) -> dict[str, str]:
        """The answer of GET_BROKER_CONFIG."""
        answer = await self.wire.call(RequestCode.GET_BROKER_CONFIG)
        return dict(line.split("=", 1) for line in answer.body.decode().splitlines())


@asynccontextmanager
async def configured(
    folder: Path, *, on: str = "true", environ: dict[str, str] | None = None
) -> AsyncIterator[Configured]:
    store, file = folder / "store", folder / "aerobee.toml"
    file.write_text(FILE.format(on=on, store=store))

    def load(changes: object = None) -> Loaded:
        return load_settings(file, environ=environ or {}, remote=changes or {})  # type: ignore[arg-type]

    settings = load().settings
    daemon = Daemon(settings, reload=Reload(settings, load))
    await daemon.start()
    try:
        wire = await Wire.to(daemon.addresses.broker)
        yield Configured(daemon, wire, store / "config" / "remote.toml", load)
        wire.caller.close()
    finally:
        await daemon.stop()


async def test_settings_are_changed_at_once_and_for_the_next_start(tmp_path: Path) -> None:
    async with configured(tmp_path) as broker:
        answer = await broker.update("fileReservedTime=48\nlimits.max_topics=500\n")
        assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
        assert (await broker.told())["fileReservedTime"] == "48"
        assert broker.daemon.settings.max_topics == 500
        kept = broker.remote_file.read_text()
        assert "[limits]\nmax_topics = 500\n\n[retention]\nhours = 48\n" in kept
        # The second request keeps what the first one changed.
        assert (await broker.update("cleanFileForciblyEnable = false")).code == 0
        loaded = broker.load()
        assert loaded.origins["retention_hours"].source == "remote"
        assert str(broker.remote_file) in loaded.origins["retention_hours"].text
    async with configured(tmp_path) as broker:
        settings = broker.daemon.settings
        assert (settings.retention_hours, settings.max_topics) == (48, 500)
        assert not settings.clean_forcibly
        # Without the file they are again what the broker's own file says.
        broker.remote_file.unlink()
        await broker.daemon.read_settings_again()
        assert (settings.retention_hours, settings.clean_forcibly) == (24, True)


async def test_the_permission_of_the_broker_counts_at_once_and_is_registered(
    tmp_path: Path,
) -> None:
    async with configured(tmp_path) as broker:
        await broker.wire.send("Drained")
        version = (await broker.told())["brokerPermission"], broker.daemon.core.topics.data_version
        assert version[0] == "6"
        assert (await broker.wire.pull("Drained")).code == ResponseCode.SUCCESS
        assert (await broker.update("brokerPermission=2")).code == ResponseCode.SUCCESS
        assert (await broker.wire.pull("Drained")).code == ResponseCode.NO_PERMISSION
        drained = broker.daemon.core.topics.data_version
        assert drained.counter > version[1].counter  # so name servers hear of it
        assert (await broker.update("brokerPermission=6")).code == ResponseCode.SUCCESS
        assert (await broker.wire.pull("Drained")).code == ResponseCode.SUCCESS
        assert broker.daemon.core.topics.data_version.counter > drained.counter


async def test_a_request_without_settings_changes_nothing(tmp_path: Path) -> None:
    async with configured(tmp_path) as broker:
        assert (await broker.update("# nothing\n")).code == ResponseCode.SUCCESS
        assert not broker.remote_file.exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("storePathRootDir=/elsewhere", "storePathRootDir: cannot be changed by a request"),
        ("rocketmqHome=/elsewhere", "rocketmqHome: cannot be changed by a request"),
        ("brokerIP1=10.0.0.1", "brokerIP1: cannot be changed by a request"),
        ("namesrvAddr=10.0.0.1:9876", "namesrvAddr: cannot be changed by a request"),
        ("maxMessageSize=1000000", "start the broker anew"),
        ("admin.remote_config=false", "admin.remote_config: cannot be changed by a request"),
        ("fileReservedTimes=72", "unknown setting; did you mean fileReservedTime?"),
        ("nonsense=72", "unknown setting; aerobee config explain knows all names"),
        ("fileReservedTime=soon", "retention.hours = soon: must be a whole number of h, 1 to"),
        ("fileReservedTime=-1", "retention.hours = -1: must be"),
        ("deleteWhen=27", "retention.delete_hours = 27: must be hours of the day"),
        ("log.level=LOUD", "log.level = LOUD: must be DEBUG or INFO"),
        ("limits.max_queues_per_topic=4000", "must not be above limits.max_queues = 3000"),
        ("scrub.bytes_per_second=0", "0 is a part that is not there"),
        ("fileReservedTime=\\u00", "cannot be read: line 2"),
        (b"fileReservedTime=72\n" * 4000, "80000 bytes of settings"),
    ],
    ids=lambda value: None if isinstance(value, bytes) else value.partition("=")[0],
)
async def test_a_wrong_setting_refuses_the_whole_request(
    tmp_path: Path, text: str | bytes, said: str
) -> None:
    async with configured(tmp_path) as broker:
        before = await broker.told()
        right = "" if isinstance(text, bytes) else "diskMaxUsedSpaceRatio=80\n"
        answer = await broker.update(text if isinstance(text, bytes) else right + text)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark is not None
        assert said in answer.remark
        assert "nothing was changed" in answer.remark
        assert str(tmp_path) not in answer.remark
        assert await broker.told() == before
        assert not broker.remote_file.exists()


async def test_what_is_fixed_at_the_start_stays(tmp_path: Path) -> None:
    environ = {"AEROBEE__RETENTION__HOURS": "30"}
    async with configured(tmp_path, environ=environ) as broker:
        answer = await broker.update("fileReservedTime=48")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "is set by environment AEROBEE__RETENTION__HOURS" in (answer.remark or "")
        assert broker.daemon.settings.retention_hours == 30
        assert not broker.remote_file.exists()


async def test_what_is_fixed_at_this_start_alone_is_kept_for_others(tmp_path: Path) -> None:
    async with configured(tmp_path) as broker:
        assert (await broker.update("fileReservedTime=48")).code == ResponseCode.SUCCESS
    environ = {"AEROBEE__RETENTION__HOURS": "30"}
    async with configured(tmp_path, environ=environ) as broker:
        assert (await broker.update("limits.max_topics=500")).code == ResponseCode.SUCCESS
        assert broker.daemon.settings.retention_hours == 30
    async with configured(tmp_path) as broker:
        settings = broker.daemon.settings
        assert (settings.retention_hours, settings.max_topics) == (48, 500)


async def test_it_is_off_until_it_is_turned_on(tmp_path: Path) -> None:
    async with configured(tmp_path, on="false") as broker:
        answer = await broker.update("fileReservedTime=48")
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "admin.remote_config is off" in (answer.remark or "")
        assert not broker.remote_file.exists()


async def test_what_cannot_be_written_is_not_changed(tmp_path: Path) -> None:
    async with configured(tmp_path) as broker:
        broker.remote_file.with_name("remote.toml.tmp").mkdir(parents=True)
        answer = await broker.update("fileReservedTime=48")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "nothing was changed: the file of changed settings cannot" in (answer.remark or "")
        assert broker.daemon.settings.retention_hours == 24
