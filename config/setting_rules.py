"""Rules between settings, and inside the texts of some: what a range cannot say.

`apply_rules` runs after all sources are merged and before `Settings.resolve`. It may change values
where RocketMQ does the same (a master's broker id, a broker.conf's haListenPort), and says so.
"""

import ipaddress
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from aerobee.address_list import address_list
from aerobee.config.errors import ConfigError, raise_all
from aerobee.config.model import BY_NAME, SETTINGS

Values = dict[str, Any]

_ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^\s:;,\[\]]+):([0-9]{1,5})")
_HOST: Final = re.compile(r"[^\s;,/]*")
_LEVEL: Final = re.compile(r"[1-9][0-9]{0,8}[smhd]")
# The name of a topic.
_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")
# The pool counts as empty when none is free (store/FORMAT.md 3.5).
_TOO_FEW_BUFFERS: Final = (
    "must be 3 or more to refuse sends while none is free: one is written to, one is ready"
)
_NO_ADDRESS_SERVER: Final = (
    "fetching name servers from an address server is not built; list them in namesrvAddr "
    "(broker.name_servers), or set this to false for the embedded one"
)
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*:[^,:]*")


class Origin(NamedTuple):
    """Where a value came from: `source` is "default", "file", "remote" (changed by a request),
    "environment", "flag" or "rule" (made by a rule of this module); `text` says it for people (path
    and line, a variable's name, the rule); `key` is the name that was used there."""

    source: str
    text: str
    key: str
    syntax: str = ""


DEFAULT: Final = Origin("default", "default", "")


def apply_rules(
    values: Values, origins: dict[str, Origin], refused: Collection[str] = ()
) -> list[str]:
    """Check texts, apply rules; returns warnings. Changes the first two arguments.

    Raises ConfigError, one for all texts that are wrong. `refused` are the names of settings whose
    given value was refused already: what stands in their place is nobody's mistake.
    """
    check = _Checker(values, origins, refused)
    for name in (
        "listen_host",
        "advertised_host",
        "nameserver_host",
        "http_host",
        "ha_host",
        "admin_host",
    ):
        check.matches(name, _HOST, "must be one address or host name")
    if not values["store_path"].strip():
        check.wrong("store_path", "must name a directory")
    if not values["cluster_name"].strip():
        check.wrong("cluster_name", "must be a name")
    check.matches("trace_topic_name", _NAME, "must be a topic name")
    if not all(map(_is_address, address_list(values["name_servers"]))):
        check.wrong("name_servers", "must be host:port, several separated by ';' or ','")
    check.each("delete_hours", ";", _is_hour, "must be hours of the day (00 to 23)")
    check.each("message_delay_levels", " ", _LEVEL.fullmatch, "must be levels such as 10s 5m 2h 1d")
    if not values["message_delay_levels"].strip():
        check.wrong("message_delay_levels", "must have one level at least")
    check.each("metrics_label", ",", _LABEL.fullmatch, "must be k:v,k:v")
    _log_directories(check, values)
    if values["address_server"] and not values["name_servers"].strip():
        # With a list RocketMQ does not ask the address server either.
        check.wrong("address_server", _NO_ADDRESS_SERVER)
    if values["transient_pool_fail_fast"] and values["transient_pool_buffers"] < 3:
        check.wrong("transient_pool_buffers", _TOO_FEW_BUFFERS)
    _ask_for_replication(values, origins)
    _replication(check, values)
    _ask_for_tls(values, origins)
    _files_of_tls(check, values)
    raise_all(check.errors)
    warnings = [
        *_broker_number(values, origins),
        *_master_of_a_slave(values, origins),
        *_ha_port(values, origins),
        *_signs_of_life(values),
        *_names(values),
        *_listening(values, origins),
        *_transient_pool(values),
        *_disk_limits(values),
        *_delay_levels(values),
        *_tls(values, origins),
    ]
    _parts(values, origins)
    return warnings


class _Checker:
    """Checks texts, collects what is wrong and names the key as it was written."""

    def __init__(
        self, values: Values, origins: Mapping[str, Origin], refused: Collection[str]
    ) -> None:
        self._values = values
        self._origins = origins
        self._refused = refused
        self.errors: list[ConfigError] = []

    def matches(self, name: str, pattern: re.Pattern[str], reason: str) -> None:
        if not pattern.fullmatch(self._values[name]):
            self.wrong(name, reason)

    def each(self, name: str, separator: str, fits: Callable[[str], object], reason: str) -> None:
        parts = (part.strip() for part in self._values[name].split(separator))
        if not all(fits(part) for part in parts if part):
            self.wrong(name, reason)

    def wrong(self, name: str, reason: str) -> None:
        if name in self._refused:
            return
        origin = self._origins.get(name, DEFAULT)
        where = "" if origin is DEFAULT else origin.text
        key = origin.key or BY_NAME[name].full_key
        self.errors.append(ConfigError(key, str(self._values[name]), reason, where))


def _ask_for_replication(values: Values, origins: dict[str, Origin]) -> None:
    """The port for slaves opens when a setting of theirs is named, unless it is closed by name. A
    slave that syncs before others answer reports what is synced."""
    for setting in SETTINGS:
        named = origins.get(setting.name, DEFAULT).source != "default"
        if setting.section == "replication" and named and "ha_enabled" not in origins:
            values["ha_enabled"] = True
            origins["ha_enabled"] = Origin("rule", f"{_names_of(setting.name)} is given", "")
    syncs = values["broker_role"] == "SLAVE" and values["flush_disk_type"] == "SYNC_FLUSH"
    if syncs and "ha_ack_durable" not in origins:
        values["ha_ack_durable"] = True
        origins["ha_ack_durable"] = Origin("rule", "a slave with SYNC_FLUSH", "")


def _replication(check: _Checker, values: Values) -> None:
    role, master = values["broker_role"], values["ha_master_address"]
    if role == "SLAVE" and values["broker_id"] == 0:
        check.wrong("broker_id", "a slave's must be above 0: 0 is its master")
    if role != "ASYNC_MASTER" and not values["ha_enabled"]:
        check.wrong("ha_enabled", f"a {role} needs the port for slaves")
    if is_master_address(master) and not _is_address(master):
        check.wrong("ha_master_address", "must be host:port")
    if values["ha_slave_addresses"]:
        # Few configurations have some, and a module costs each start some time.
        from aerobee.address_patterns import address_patterns

        try:
            address_patterns(values["ha_slave_addresses"])
        except ValueError as error:
            check.wrong("ha_slave_addresses", str(error))


def is_master_address(text: str) -> bool:
    """Whether haMasterAddress names a master: RocketMQ passes over fewer than 6 characters."""
    return len(text) >= 6


def _ask_for_tls(values: Values, origins: dict[str, Origin]) -> None:
    """An operator who gives a certificate wants it used: then RocketMQ's mode is the default."""
    given = origins.get("tls_mode", DEFAULT).source != "default"
    if values["tls_certificate_path"] and not given:
        values["tls_mode"] = "permissive"
        origins["tls_mode"] = Origin("rule", "a certificate is given", "")


def _files_of_tls(check: _Checker, values: Values) -> None:
    for part in ("tls", "tls_client"):
        certificate, key = f"{part}_certificate_path", f"{part}_key_path"
        for name, other in ((certificate, key), (key, certificate)):
            if values[name] and not values[other]:
                check.wrong(name, f"needs {_names_of(other)} beside it")
    if values["tls_mode"] == "disabled":
        return
    if not values["tls_certificate_path"] and not values["tls_test_mode"]:
        check.wrong(
            "tls_mode",
            f"needs a certificate: {_names_of('tls_certificate_path')} and "
            f"{_names_of('tls_key_path')}",
        )
    if values["tls_client_certificate"] == "require" and not values["tls_trust_path"]:
        check.wrong(
            "tls_client_certificate",
            f"needs what clients' certificates are checked against: {_names_of('tls_trust_path')}",
        )


def _tls(values: Values, origins: Mapping[str, Origin]) -> Iterator[str]:
    if values["tls_mode"] == "disabled":
        return
    asked = values["tls_client_certificate"] != "none"
    if not values["tls_certificate_path"]:
        yield (
            "TLS with a certificate that is made at each start, for trying out: it proves nothing "
            f"to clients; give one ({_names_of('tls_certificate_path')})"
        )
    elif values["tls_test_mode"] and origins.get("tls_test_mode", DEFAULT) is not DEFAULT:
        yield "tls.test.mode.enable is ignored: a certificate is given, and counts"
    if asked and not values["tls_trust_path"]:
        yield (
            "clients are asked for no certificate: there is nothing to check one against "
            f"({_names_of('tls_trust_path')})"
        )
    elif asked and not values["tls_check_clients"] and "tls_check_clients" in origins:
        yield "clients' certificates are checked, though tls.server.authClient is false"


def _names_of(name: str) -> str:
    """A setting's names for people: `tls.server.certPath (tls.certificate_path)`."""
    setting = BY_NAME[name]
    return f"{setting.rocketmq_key} ({setting.full_key})"


def _log_directories(check: _Checker, values: Values) -> None:
    """A log needs directories of its own, each named once, and at least one takes new segments."""
    root = _real(values["store_path"])
    taken = {os.path.join(root, name) for name in ("config", "consumequeue", "index")}
    names = ("commit_log_path", "read_only_commit_log_paths")
    lists = {
        name: [_real(part) for part in values[name].split(",") if part.strip()] for name in names
    }
    everything = {path for paths in lists.values() for path in paths}
    for name, paths in lists.items():
        if len(set(paths)) < len(paths):
            check.wrong(name, "names a directory twice")
        if any(root == path or _inside(root, path) for path in paths):
            check.wrong(name, "must not be the store directory, nor hold it")
        if taken & set(paths):
            check.wrong(name, "names a directory that holds other store files")
        if any(_inside(path, other) for path in paths for other in everything):
            check.wrong(name, "names a directory inside of another one")
    writable, read_only = (set(lists[name]) for name in names)
    if writable and writable <= read_only:
        check.wrong("read_only_commit_log_paths", "leaves no directory for new segments")


def _real(text: str) -> str:
    return os.path.abspath(os.path.expanduser(text.strip()))


def _inside(path: str, other: str) -> bool:
    return path != other and os.path.commonpath((path, other)) == other


def _is_address(text: str) -> bool:
    match = _ADDRESS.fullmatch(text)
    return match is not None and 0 < int(match[2]) <= 65_535


def _is_hour(text: str) -> bool:
    return text.isdecimal() and len(text) <= 2 and int(text) <= 23


def _broker_number(values: Values, origins: dict[str, Origin]) -> Iterator[str]:
    """RocketMQ forces every master to 0."""
    number = values["broker_id"]
    if number != 0 and values["broker_role"] != "SLAVE":
        values["broker_id"] = 0
        origins["broker_id"] = Origin("rule", "a master is always 0", "")
        yield f"broker id {number} is ignored: a master is always 0"


# Ends a warning about the port of haMasterAddress.
_MEANT = ": is it the master's port for slaves (haListenPort), mostly listenPort + 1 there?"


def _master_of_a_slave(values: Values, origins: Mapping[str, Origin]) -> Iterator[str]:
    """Warnings about a slave that cannot find its master, and about an address that nobody asks."""
    is_slave, master = values["broker_role"] == "SLAVE", values["ha_master_address"]
    if master and not is_master_address(master):
        yield f"haMasterAddress {master} is ignored: it has fewer than 6 characters"
    if not is_slave:
        return
    if not values["broker_name"]:
        yield (
            "a slave has the name of its master, and this one has the host's: set brokerName "
            "(broker.name), and brokerClusterName (broker.cluster_name) where the master has one"
        )
    if is_master_address(master):
        port = master.rpartition(":")[2]
        of_names = [one.rpartition(":")[2] for one in address_list(values["name_servers"])]
        # No port of a pair is certain: the master may have other numbers than this slave.
        if port in of_names:
            yield f"haMasterAddress {master} has the port of a name server (namesrvAddr){_MEANT}"
        elif port == str(values["listen_port"]):
            yield f"haMasterAddress {master} has the port for clients (listenPort){_MEANT}"
    if not values["name_servers"].strip() and not is_master_address(master):
        yield (
            "nobody tells this slave where its master is, unless that one registers here: set "
            "namesrvAddr (broker.name_servers) or haMasterAddress (replication.ha_master_address)"
        )


def _ha_port(values: Values, origins: dict[str, Origin]) -> Iterator[str]:
    """4.9.8 overwrites haListenPort with listenPort + 1 after reading its broker.conf."""
    if origins.get("ha_listen_port", DEFAULT).syntax == "properties":
        asked, values["ha_listen_port"] = values["ha_listen_port"], 0
        origins["ha_listen_port"] = Origin("rule", "listenPort + 1 in a broker.conf", "")
        if asked not in (0, values["listen_port"] + 1):
            yield f"haListenPort {asked} is ignored: in a broker.conf it is always listenPort + 1"


def _signs_of_life(values: Values) -> Iterator[str]:
    """Each side closes a connection on which the other side says nothing for too long."""
    every, silent = values["ha_heartbeat_interval_ms"], values["ha_housekeeping_interval_ms"]
    if values["ha_enabled"] and every >= silent:
        yield (
            f"haSendHeartbeatInterval {every} is not below haHousekeepingInterval {silent}: "
            "master and slave close their connection whenever there is nothing to copy, if the "
            "other machine has these values too; each machine's haSendHeartbeatInterval has to be "
            "below the haHousekeepingInterval of the other one"
        )


def _names(values: Values) -> Iterator[str]:
    """Names that RocketMQ takes, and its clients and tools work with, so they stop no start."""
    for what in ("broker", "cluster"):
        name = values[f"{what}_name"]
        if name and not _NAME.fullmatch(name):
            text = (
                f"{what} name {name!r} is no legal name of a topic: it works, but clients cannot "
                "send to the topic that brokers have under this name"
            )
            if what == "broker" and not {";", ":"}.isdisjoint(name):
                text += "; order topics, configured as name:queues;..., cannot name this broker"
            yield text


def _listening(values: Values, origins: Mapping[str, Origin]) -> Iterator[str]:
    """A warning when clients cannot reach the address they get, the commonest first mistake."""
    given, listens = values["advertised_host"], values["listen_host"]
    by_default = origins.get("listen_host", DEFAULT).source == "default"
    reachable = not is_loopback(listens or "127.0.0.1")
    if given and not is_loopback(given) and by_default and not reachable:
        yield (
            f"clients are told {given}, but the broker listens on {listens} only: set "
            "bindAddress (broker.listen_host), 0.0.0.0 for every interface"
        )


def loopback_by_omission(values: Values, origins: Mapping[str, Origin]) -> list[str]:
    """For a broker.conf: RocketMQ listens on every interface where ours listens on loopback."""
    if origins.get("listen_host", DEFAULT).source != "default" or values["advertised_host"]:
        return []
    return [
        f"the broker listens on {values['listen_host']} only, as this file has no bindAddress: "
        "RocketMQ listens on every interface then; for other machines set bindAddress=0.0.0.0, "
        "and brokerIP1 to the address clients are told"
    ]


def unused_accounts(
    values: Values, origins: Mapping[str, Origin], *, name_server: bool
) -> list[str]:
    """A warning when a file of accounts is given, and the broker, or the name server alone, has
    not been told to ask for any: it is open, though somebody thinks otherwise."""
    switch = "nameserver_acl_enabled" if name_server else "acl_enabled"
    if not values["acl_file"] or values[switch]:
        return []
    key = origins.get("acl_file", DEFAULT).key or BY_NAME["acl_file"].full_key
    part = "nothing is checked"
    if values["nameserver_acl_enabled"]:
        part = "the broker checks nothing"
    return [f"{key} is given, but {part} until {BY_NAME[switch].rocketmq_key}=true"]


def _transient_pool(values: Values) -> Iterator[str]:
    if values["transient_pool_enabled"] and values["flush_disk_type"] == "SYNC_FLUSH":
        yield "the transient pool is not used with SYNC_FLUSH, which answers after the sync"


def _disk_limits(values: Values) -> Iterator[str]:
    force, refuse = values["disk_force_ratio"], values["disk_warning_ratio"]
    if values["clean_forcibly"] and force > refuse:
        yield (
            f"sends are refused above {refuse:g} of the disk (diskSpaceWarningLevelRatio), before "
            f"the oldest messages are deleted by force above {force:g} "
            "(diskSpaceCleanForciblyRatio)"
        )


def _delay_levels(values: Values) -> Iterator[str]:
    hours = {"s": 1 / 3600, "m": 1 / 60, "h": 1, "d": 24}
    levels = values["message_delay_levels"].split()
    longest = max(levels, key=lambda level: int(level[:-1]) * hours[level[-1]])
    if int(longest[:-1]) * hours[longest[-1]] >= values["retention_hours"]:
        yield (
            f"messages of the delay level {longest} are deleted before they are due: "
            f"retention_hours (fileReservedTime) is {values['retention_hours']}"
        )


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is for this machine alone; "" means all addresses."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _parts(values: Values, origins: dict[str, Origin]) -> None:
    """Port 0 turns a part off. A broker told of other name servers does not start its own, which
    would meet theirs on the same port; asking for it (any [nameserver] setting) brings it back."""
    asked = any(
        origins.get(name, DEFAULT).source != "default"
        for name in ("nameserver_enabled", "nameserver_port", "nameserver_host")
    )
    for part in ("nameserver", "http"):
        if values[f"{part}_port"] == 0:
            values[f"{part}_enabled"] = False
            origins[f"{part}_enabled"] = Origin("rule", f"{part} port is 0", "")
    if values["name_servers"] and not asked:
        values["nameserver_enabled"] = False
        origins["nameserver_enabled"] = Origin("rule", "other name servers are given", "")
