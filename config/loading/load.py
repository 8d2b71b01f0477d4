"""From files, environment and flags to `Settings`: who wins, what is refused, what is said.

Precedence: flags and `--set` > environment `AEROBEE__SECTION__KEY` > what requests have changed
(`remote_settings.py`) > file > tls.properties > `NAMESRV_ADDR` and `ROCKETMQ_HOME` > default. The
two variables are RocketMQ's: there they are defaults that a broker.conf overrides, so they are
here.

An unknown key in our own syntaxes (TOML, environment, --set) stops the start with the nearest known
name: it is a typing error. In a broker.conf it is a warning, because RocketMQ ignores such keys and
files of other versions have them; `strict` makes it an error. A value that does not parse stops the
start everywhere. RocketMQ keeps its default silently then, and people find out months later.
"""

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from aerobee.config.bounds.limits import check_limits
from aerobee.config.errors import ConfigError, raise_all
from aerobee.config.loading import value_sources
from aerobee.config.loading.remote_settings import remote_file, remote_given, with_changes
from aerobee.config.loading.value_sources import FileContent, FileFormat, Given
from aerobee.config.model import BY_FULL_KEY, BY_NAME, BY_ROCKETMQ_KEY, SETTINGS, Settings
from aerobee.config.setting_rules import (
    DEFAULT,
    Origin,
    Values,
    apply_rules,
    loopback_by_omission,
    unused_accounts,
)
from aerobee.config.settings.legacy import DERIVED_PATHS
from aerobee.config.settings.setting import Setting, Value
from aerobee.nearest_name import nearest_name

_SOURCES: Final = {
    "properties": "file",
    "toml": "file",
    "remote": "remote",
    "environment": "environment",
    "set": "flag",
    "flag": "flag",
}
# The names of settings that a syntax takes, the first that knows a key wins.
_NAMES: Final[Mapping[str, tuple[Mapping[str, Setting], ...]]] = {
    "properties": (BY_ROCKETMQ_KEY, BY_FULL_KEY),
    "toml": (BY_FULL_KEY,),
    "remote": (BY_FULL_KEY,),
    "environment": (BY_FULL_KEY,),
    "set": (BY_FULL_KEY, BY_ROCKETMQ_KEY, BY_NAME),
    "flag": (BY_NAME,),
}
# Keys that mean something else to a name server alone: RocketMQ's has a file and a port of its own.
_OF_NAME_SERVERS: Final[Mapping[str, Setting]] = {"listenPort": BY_NAME["nameserver_port"]}
_REDACTED: Final = "***"
#: Where RocketMQ looks for the settings of encryption.
TLS_PROPERTIES: Final = Path("/etc/rocketmq/tls.properties")


class Loaded(NamedTuple):
    """Settings and how they came about.

    `origins` has an entry for every attribute. `warnings` are lines for people; `idle` are the
    given settings without effect ("later" and "never"), already mentioned in `warnings`.
    `remote_file` is where changes of requests are kept, None where they are not looked at.
    """

    settings: Settings
    origins: Mapping[str, Origin]
    warnings: tuple[str, ...]
    idle: tuple[Setting, ...]
    file: Path | None
    format: FileFormat | None
    remote_file: Path | None = None

    def given(self) -> list[tuple[Setting, Value, Origin]]:
        """Every setting that was given or that a rule changed, in the model's order."""
        return [
            (setting, self.settings.value_of(setting), self.origins[setting.name])
            for setting in SETTINGS
            if self.origins[setting.name].source != "default"
        ]


def load_settings(
    file: str | Path | None = None,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Iterable[str] = (),
    format: FileFormat | None = None,
    strict: bool = False,
    remote: Mapping[str, str] | None = None,
    name_server: bool = False,
    leave_out: Collection[str] = (),
) -> Loaded:
    """Read all sources and check everything. Raises ConfigError, one for all that is wrong.

    `flags` are values of named flags by attribute name (None: not given); `overrides` are
    "KEY=VALUE" texts; `environ` defaults to the process's. With `remote` the file of what requests
    have changed is read too, and these values (by names such as "limits.max_topics") count as
    though they stood there: a broker's start gives none. `name_server`: they are those of a name
    server alone, whose port is RocketMQ's `listenPort`. Limits are checked too, except for how many
    files may be open, which only the daemon needs to know.
    """
    environment = os.environ if environ is None else environ
    path = None if file is None else Path(file)
    content = None if path is None else value_sources.read_file(path, format)
    below = value_sources.from_rocketmq_environment(environment)
    if content is not None:
        # Where a name server's file has its port by both names, ours counts.
        taken = [item for item in content.given if item.key not in leave_out]
        below += sorted(taken, key=lambda item: not (name_server and item.key in _OF_NAME_SERVERS))
    above = [
        *value_sources.from_environment(environment),
        *value_sources.from_overrides(overrides),
        *value_sources.from_flags(flags or {}),
    ]
    merge = _Merge(strict, name_server)
    if content is not None:
        merge.warnings += content.warnings
    if (tls := _tls_properties([*below, *above])) is not None:
        merge.warnings += tls.warnings
        merge.take(tls.given)
    merge.take(below)
    remote_file = None
    if remote is not None:
        remote_file = merge.take_remote([*below, *above], remote)
    merge.take(above)
    merge.warnings += value_sources.misspelt_environment(environment)
    try:
        rule_warnings = merge.apply_rules()
        settings = Settings(**merge.values).resolve()
        _check_limits(settings, merge.origins)
    except ConfigError as error:
        error.warnings = tuple(merge.warnings)
        raise
    if settings.max_message_bytes != merge.values["max_message_bytes"]:
        rule_warnings.append(
            f"messages are limited to {settings.max_message_bytes} bytes, to fit commit log "
            f"segments of {settings.commit_log_segment_bytes} bytes"
        )
    idle = tuple(s for s in SETTINGS if s.effect != "now" and _was_asked(s, merge.origins))
    warnings = [
        *merge.warnings,
        *rule_warnings,
        *unused_accounts(merge.values, merge.origins, name_server=name_server),
        *_idle_report(idle, merge.origins),
    ]
    if content is not None and content.format == "properties":
        warnings += loopback_by_omission(merge.values, merge.origins)
    origins = {setting.name: merge.origins.get(setting.name, DEFAULT) for setting in SETTINGS}
    file_format = content.format if content else None
    return Loaded(settings, origins, tuple(warnings), idle, path, file_format, remote_file)


def _tls_properties(others: Iterable[Given]) -> FileContent | None:
    """The file that the others name, or RocketMQ's own if they ask for TLS and it exists. Raises
    ConfigError."""
    alone = _Merge(strict=False)
    alone.take(others)
    values = alone.values
    if values["tls_config_file"]:
        return value_sources.read_tls_properties(Path(values["tls_config_file"]).expanduser())
    if values["tls_mode"] == "disabled" and not values["tls_outgoing"]:
        return None
    return value_sources.read_tls_properties(TLS_PROPERTIES) if TLS_PROPERTIES.exists() else None


class _Merge:
    """Values and errors so far; sources are taken weakest first.

    A wrong value leaves what was there, so that the rest can still be checked.
    """

    def __init__(self, strict: bool, name_server: bool = False) -> None:
        self.values: Values = {setting.name: setting.default for setting in SETTINGS}
        self.origins: dict[str, Origin] = {}
        self.warnings: list[str] = []
        self._errors: list[ConfigError] = []
        self._refused: set[str] = set()
        self._strict = strict
        self._own_names = _OF_NAME_SERVERS if name_server else {}

    def take(self, given: Iterable[Given]) -> None:
        for item in given:
            try:
                self._take(item)
            except ConfigError as error:
                self._errors.append(error)

    def take_remote(self, others: Iterable[Given], changes: Mapping[str, str]) -> Path:
        """Take what requests have changed, and these changes, if the `others` allow requests to;
        where that is kept."""
        alone = _Merge(strict=False)
        alone.take(others)
        file = remote_file(alone.values["store_path"])
        if not alone.values["remote_config"]:
            if os.path.exists(file):
                self.warnings.append(f"{file} is not read: admin.remote_config is off")
            return file
        try:
            given = with_changes(remote_given(file), changes)
        except ConfigError as error:
            self._errors.append(error)
            return file
        self.warnings += [
            f"{origin.text}: {origin.key} does not count: a request has changed it ({item.where})"
            for item in given
            if (origin := self.origins.get(BY_FULL_KEY[item.key].name)) is not None
        ]
        self.take(given)
        return file

    def apply_rules(self) -> list[str]:
        """Apply the rules to the values; raises everything that is wrong, in them or before."""
        warnings: list[str] = []
        try:
            warnings = apply_rules(self.values, self.origins, self._refused)
        except ConfigError as error:
            self._errors.extend(error.errors)
        raise_all(self._errors)
        return warnings

    def _take(self, item: Given) -> None:
        setting = _find(item, self._own_names)
        if setting is None:
            self._unknown(item)
            return
        self.values[setting.name] = self._value(setting, item)
        source = _SOURCES[item.syntax]
        self.origins[setting.name] = Origin(source, item.where, item.key, item.syntax)

    def _unknown(self, item: Given) -> None:
        reason = f"unknown setting{_hint(item)}"
        if item.syntax != "properties" or self._strict:
            raise ConfigError(item.key, "", reason, item.where)
        self.warnings.append(f"{item.where}: {item.key}: {reason}; it is ignored")

    def _value(self, setting: Setting, item: Given) -> Value:
        """The parsed, checked value; a ValueError becomes a ConfigError that names the place."""
        is_text = isinstance(item.value, str)
        typed = item.syntax == "toml" or (item.syntax in ("flag", "remote") and not is_text)
        try:
            asked = setting.accept(item.value) if typed else setting.parse(str(item.value))
            value = setting.check(asked)
        except ValueError as error:
            self._refused.add(setting.name)
            text = _REDACTED if setting.secret else str(item.value)
            raise ConfigError(item.key, text, str(error), item.where) from None
        if value != asked and not isinstance(value, str):
            self.warnings.append(
                f"{item.where}: {item.key} = {asked} is outside {setting.range_text}: "
                f"{value} is used, as RocketMQ does"
            )
        return value


def _was_asked(setting: Setting, origins: Mapping[str, Origin]) -> bool:
    """ROCKETMQ_HOME is set for the sake of other programs; that alone asks for nothing."""
    origin = origins.get(setting.name, DEFAULT)
    return origin.key != "" and origin.text != "environment ROCKETMQ_HOME"


def _find(item: Given, own_names: Mapping[str, Setting]) -> Setting | None:
    """The setting a key means in its syntax, where `own_names` are RocketMQ's keys that mean
    another one here."""
    if item.key in own_names and BY_ROCKETMQ_KEY in _NAMES[item.syntax]:
        return own_names[item.key]
    return next((names[item.key] for names in _NAMES[item.syntax] if item.key in names), None)


def _hint(item: Given) -> str:
    """The name that was probably meant: another syntax's name for it, or the nearest one."""
    elsewhere = BY_ROCKETMQ_KEY.get(item.key) or BY_NAME.get(item.key.rpartition(".")[2])
    if elsewhere is None:
        elsewhere = BY_ROCKETMQ_KEY.get(item.key.rpartition(".")[2])
    if elsewhere is not None and item.syntax != "properties":
        return f"; here it is {elsewhere.full_key}"
    if elsewhere is not None and elsewhere.rocketmq_key:
        return f"; here it is {elsewhere.rocketmq_key}"
    near = _nearest(item)
    return f"; did you mean {near}?" if near else ""


def _nearest(item: Given) -> str | None:
    names = [*BY_FULL_KEY] if item.syntax in ("toml", "environment") else [*BY_ROCKETMQ_KEY]
    if item.syntax == "set":
        names = [*BY_FULL_KEY, *BY_ROCKETMQ_KEY]
    return nearest_name(item.key, names)


def _check_limits(settings: Settings, origins: Mapping[str, Origin]) -> None:
    """Relations between limits, with the place of the setting that breaks one."""
    try:
        check_limits(settings)
    except ConfigError as error:
        origin = origins.get(BY_FULL_KEY[error.key].name, DEFAULT)
        if origin is DEFAULT:
            raise
        raise ConfigError(origin.key, error.value, error.reason, origin.text) from None


def _idle_report(idle: Iterable[Setting], origins: Mapping[str, Origin]) -> list[str]:
    """One line for each kind of given setting without effect."""
    texts = {
        "later": "accepted, not in effect yet (the part they steer is not built)",
        "never": "accepted, without effect here (no counterpart)",
        "derived": "has no effect here: derived from storePathRootDir (store.path)",
    }
    keys: dict[str, list[str]] = {kind: [] for kind in texts}
    for setting in idle:
        kind = "derived" if setting.name in DERIVED_PATHS else setting.effect
        keys[kind].append(origins[setting.name].key)
    return [f"{text}: {', '.join(keys[kind])}" for kind, text in texts.items() if keys[kind]]
