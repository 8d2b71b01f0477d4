"""Every setting of Aerobee, once: `Settings` holds the values, `SETTINGS` describes them.

`Settings` is flat: one attribute per setting, so that a component reads `settings.listen_port` and
its type is known to the type checker. The attributes are declared in section classes (one noun per
module), which `Settings` only gathers. It is frozen: what was loaded at the start is what runs,
except for the settings declared `live`, which `take` changes for everybody who reads them here.

Two kinds of default depend on the machine (home directory, host name); `resolve()` fills those in,
after every source has been read, so that the declared defaults and the manual are the same
everywhere.
"""

import os
import re
from collections.abc import Mapping
from typing import Any, Final, Self

from aerobee.address_list import address_list
from aerobee.config.settings.access import AccessSettings, AuditSettings
from aerobee.config.settings.broker import BrokerSettings, TopicSettings
from aerobee.config.settings.delivery import DeliverySettings, StageSettings
from aerobee.config.settings.filters import FilterSettings
from aerobee.config.settings.legacy import LegacySettings
from aerobee.config.settings.limits import LimitSettings
from aerobee.config.settings.replication import ReplicationSettings
from aerobee.config.settings.retention import RetentionSettings, ScrubSettings
from aerobee.config.settings.service import (
    AdminSettings,
    HttpSettings,
    LogSettings,
    MetricsSettings,
    NameServerSettings,
    ShardSettings,
)
from aerobee.config.settings.setting import Section, Setting, Value
from aerobee.config.settings.store import RECORD_OVERHEAD_BYTES, StoreSettings
from aerobee.config.settings.tls import TlsSettings

# Consume queue entries have 20 bytes, so their files are too (store/FORMAT.md 1.2).
_UNIT_BYTES: Final = 20
# An empty address would mean "every interface" to the sockets below; an omission must not do that.
_LOOPBACK: Final = "127.0.0.1"
_TLS_FILES: Final = (
    *("tls_config_file", "tls_certificate_path", "tls_key_path", "tls_trust_path"),
    *("tls_client_certificate_path", "tls_client_key_path", "tls_client_trust_path"),
)
_NOT_IN_A_NAME: Final = re.compile(r"[^%|a-zA-Z0-9_-]")


class Settings(
    BrokerSettings,
    TopicSettings,
    StoreSettings,
    NameServerSettings,
    ShardSettings,
    HttpSettings,
    MetricsSettings,
    LogSettings,
    AdminSettings,
    LimitSettings,
    RetentionSettings,
    ScrubSettings,
    StageSettings,
    DeliverySettings,
    FilterSettings,
    ReplicationSettings,
    AccessSettings,
    AuditSettings,
    TlsSettings,
    LegacySettings,
):
    """All values, after loading. Attribute names are those of the section classes."""

    def __init__(self, **values: Value) -> None:
        if not values.keys() <= DEFAULTS.keys():
            unknown = ", ".join(values.keys() - DEFAULTS.keys())
            raise TypeError(f"there is no setting {unknown}")
        vars(self).update(DEFAULTS)
        vars(self).update(values)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name}: settings are not changed, `take` excepted")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = (f"{one.name}={self.value_of(one)!r}" for one in SETTINGS if not one.secret)
        return f"Settings({', '.join(shown)})"

    @classmethod
    def for_tests(cls, **changes: Any) -> Self:
        """The defaults with `changes`, resolved; ranges are not checked, so that a test may be
        faster or smaller than an operator should be. No scrub, which reads when it likes; a scrub
        that is asked for has a processor of its own."""
        usual = {"scrub_bytes_per_second": 0, "scrub_processor_percent": 100}
        return cls(**(usual | changes)).resolve()

    def with_changes(self, **changes: Any) -> Self:
        """A copy with `changes`, resolved, unchecked."""
        return self._changed(**changes).resolve()

    def _changed(self, **changes: Value) -> Self:
        return type(self)(**vars(self) | changes)

    def resolve(self) -> Self:
        """Fill in what depends on the machine or another setting; doing it twice is harmless."""
        tls: dict[str, Any] = {name: _absolute(getattr(self, name)) for name in _TLS_FILES}
        unit_bytes = -self.consume_queue_segment_bytes % _UNIT_BYTES
        return self._changed(
            store_path=_absolute(self.store_path),
            commit_log_path=_absolute_list(self.commit_log_path),
            read_only_commit_log_paths=_absolute_list(self.read_only_commit_log_paths),
            nameserver_kv_path=_absolute(self.nameserver_kv_path),
            broker_name=self.broker_name or default_broker_name(),
            listen_host=self.listen_host or _LOOPBACK,
            admin_host=self.admin_host or _LOOPBACK,
            nameserver_host=self.nameserver_host or self.listen_host or _LOOPBACK,
            max_message_bytes=self._fitting_message_bytes(),
            consume_queue_segment_bytes=self.consume_queue_segment_bytes + unit_bytes,
            ha_listen_port=self.ha_listen_port or _next_port(self.listen_port),
            **tls,
        )

    def _fitting_message_bytes(self) -> int:
        """The default message size shrinks with the segments; a chosen one is checked instead."""
        if self.max_message_bytes != StoreSettings.max_message_bytes:
            return self.max_message_bytes
        room = self.commit_log_segment_bytes - RECORD_OVERHEAD_BYTES
        return max(1, min(self.max_message_bytes, room))

    def take(self, values: Mapping[str, Value]) -> None:
        """Change live settings of this very object, which all parts share. On the thread that owns
        it; others see each value as it was or as it is."""
        for name, value in values.items():
            assert BY_NAME[name].live, name
            vars(self)[name] = value

    @property
    def name_server_list(self) -> tuple[str, ...]:
        """The addresses of `name_servers`, without repeats."""
        return address_list(self.name_servers)

    @property
    def kv_file(self) -> str:
        """The file of the name server's key-value table; below the store unless a path is set."""
        default = os.path.join(self.store_path, "namesrv", "kvConfig.json")
        return self.nameserver_kv_path or default

    @property
    def commit_log_directories(self) -> tuple[str, ...]:
        """The directories of `commit_log_path`; commitlog below the store when it is empty."""
        return _parts(self.commit_log_path) or (os.path.join(self.store_path, "commitlog"),)

    @property
    def read_only_commit_log_directories(self) -> tuple[str, ...]:
        """The directories of `read_only_commit_log_paths`."""
        return _parts(self.read_only_commit_log_paths)

    @property
    def sync_flush(self) -> bool:
        """Whether sends are answered only after their bytes are durable."""
        return self.flush_disk_type == "SYNC_FLUSH"

    @property
    def transient_pool_effective(self) -> bool:
        """Whether segments are written in the transient pool (store/FORMAT.md 4.3)."""
        return self.transient_pool_enabled and not self.sync_flush and not self.starts_as_slave

    @property
    def replicates(self) -> bool:
        """Whether the port for slaves opens."""
        return self.ha_enabled or self.broker_role != "ASYNC_MASTER"

    @property
    def answers_wait(self) -> bool:
        """Whether answers of success wait for a sync, or for slaves."""
        return self.sync_flush or self.waits_for_slaves

    @property
    def waits_for_slaves(self) -> bool:
        """Whether an answer of success promises copies on slaves."""
        return self.sync_master and self.in_sync_replicas > 1

    @property
    def starts_as_slave(self) -> bool:
        """Whether the broker begins as a slave; it may become a master while it runs."""
        return self.broker_role == "SLAVE"

    @property
    def sync_master(self) -> bool:
        """Whether an answer to a send promises copies on slaves."""
        return self.broker_role == "SYNC_MASTER"

    @property
    def takes_tls(self) -> bool:
        """Whether any port takes TLS."""
        return self.tls_mode != "disabled"

    @property
    def client_ports(self) -> int:
        """How many ports clients connect to; each has connections and buffers of its own."""
        return 1 + bool(self.vip_port_enabled) + bool(self.admin_port)

    def value_of(self, setting: Setting) -> Value:
        """The value of one described setting."""
        value: Value = getattr(self, setting.name)
        return value


SECTIONS: Final[tuple[type[Section], ...]] = Settings.__bases__
SETTINGS: Final[tuple[Setting, ...]] = tuple(
    setting for section in SECTIONS for setting in section.settings
)
DEFAULTS: Final[Mapping[str, Value]] = {setting.name: setting.default for setting in SETTINGS}
BY_NAME: Final = {setting.name: setting for setting in SETTINGS}
BY_FULL_KEY: Final = {setting.full_key: setting for setting in SETTINGS}
BY_ROCKETMQ_KEY: Final = {
    key: setting for setting in SETTINGS for key in (setting.rocketmq_key, *setting.aliases) if key
}


def _next_port(port: int) -> int:
    """The port for slaves where none is set; 0 (any free one) beside a port of 0."""
    return min(port + 1, 65_535) if port else 0


def _absolute(path: str) -> str:
    """The whole path that a path means now: the store must not move with the process. "" stays as
    it is."""
    return os.path.abspath(os.path.expanduser(path)) if path else ""


def _parts(paths: str) -> tuple[str, ...]:
    return tuple(path.strip() for path in paths.split(",") if path.strip())


def _absolute_list(paths: str) -> str:
    return ",".join(_absolute(path) for path in _parts(paths))


def default_broker_name() -> str:
    """The host's name, made fit to be a topic name, because every broker has a topic of its own."""
    return _NOT_IN_A_NAME.sub("-", os.uname().nodename) or "DEFAULT_BROKER"
