"""`aerobee config`: what counts, where it comes from, whether a file is right."""

import argparse
import sys
import textwrap
from collections.abc import Iterable

from aerobee.cli.printing.output import OK, CommandFailed, print_json, print_table, say
from aerobee.cli.printing.output import show as show_lines
from aerobee.config.errors import ConfigError
from aerobee.config.loading.load import Loaded, load_settings
from aerobee.config.model import SETTINGS, Settings
from aerobee.config.settings.setting import Setting, Value
from aerobee.nearest_name import nearest_name

_HIDDEN = "***"

# The settings that mqbroker -m prints, those that have a counterpart.
_IMPORTANT = (
    "broker_name",
    "cluster_name",
    "broker_id",
    "advertised_host",
    "name_servers",
    "listen_port",
    "broker_permission",
    "default_topic_queues",
    "auto_create_topic",
    "auto_create_group",
    "store_path",
    "commit_log_path",
    "flush_disk_type",
    "broker_role",
    "max_message_bytes",
)


def show(parsed: argparse.Namespace) -> int:
    """Every setting with its value; `--origin` adds unit, source and effect."""
    loaded = load_settings(
        parsed.config, overrides=parsed.set, format=parsed.format, strict=parsed.strict, remote={}
    )
    _warn(loaded.warnings)
    shown = [
        setting
        for setting in _asked(parsed.key) or SETTINGS
        if not parsed.changed or loaded.origins[setting.name].source != "default"
    ]
    if parsed.changed and not shown:
        what = "none of these settings" if parsed.key else "no setting"
        say(f"{what} is changed by a file, the environment or a flag: the defaults count")
    if parsed.json:
        print_json([_fields(setting, loaded) for setting in shown])
    elif parsed.origin:
        print_table(
            ("setting", "value", "unit", "from", "effect"),
            [
                (
                    setting.full_key,
                    _text(setting, loaded.settings),
                    setting.unit,
                    loaded.origins[setting.name].text,
                    "" if setting.effect == "now" else setting.effect,
                )
                for setting in shown
            ],
        )
    else:
        print_table(
            ("setting", "value"),
            [(setting.full_key, _text(setting, loaded.settings)) for setting in shown],
        )
    if sys.stderr.isatty():
        say("as files, environment and flags say; a running broker may have been started otherwise")
    return OK


def explain(parsed: argparse.Namespace) -> int:
    """Say what settings mean: unit, range, default, RocketMQ's name."""
    show_lines(*"\n\n".join(map(_explanation, _asked(parsed.key))).split("\n"))
    return OK


def _asked(keys: list[str]) -> list[Setting]:
    """The settings of these names. Raises CommandFailed for an unknown name."""
    known = {name.lower(): setting for setting in SETTINGS for name in _names(setting)}
    found = []
    for key in keys:
        setting = known.get(key.lower())
        if setting is None:
            near = nearest_name(key, known)
            hint = f"; did you mean {known[near].full_key}?" if near else ""
            raise CommandFailed(f"there is no setting {key!r}{hint}")
        found.append(setting)
    return found


def _names(setting: Setting) -> tuple[str, ...]:
    names = (setting.full_key, setting.key, setting.rocketmq_key, *setting.aliases)
    return tuple(name for name in names if name)


def _explanation(setting: Setting) -> str:
    default = str(setting.default)
    facts = [
        f"default {default.lower() if isinstance(setting.default, bool) else default or 'empty'}"
        + (f" {setting.unit}" if setting.unit else ""),
        setting.range_text,
        f"{setting.key_of}'s {setting.rocketmq_key}" if setting.rocketmq_key else "",
        "" if setting.effect == "now" else f"takes effect: {setting.effect}",
    ]
    reason = textwrap.fill(
        " ".join(setting.reason.split()), 96, initial_indent="  ", subsequent_indent="  "
    )
    return f"{setting.full_key}: {', '.join([fact for fact in facts if fact])}\n{reason}"


def check(parsed: argparse.Namespace) -> int:
    """Read a file as `serve` would, without the environment; says what it found."""
    try:
        loaded = load_settings(
            parsed.config, environ={}, format=parsed.format, strict=parsed.strict
        )
        loaded = _with_master_checked(loaded)
    except ConfigError as error:
        if parsed.json:
            errors = [str(one) for one in error.errors]
            print_json({"ok": False, "errors": errors, "warnings": list(error.warnings)})
        _warn(error.warnings)
        raise
    _warn(loaded.warnings)
    given = loaded.given()
    ok = not (parsed.strict and loaded.warnings)
    if parsed.json:
        print_json(
            {
                "ok": ok,
                "errors": [],
                "file": str(loaded.file),
                "format": loaded.format,
                "settings": len(given),
                "warnings": list(loaded.warnings),
            }
        )
    else:
        say(
            f"{loaded.file}: {loaded.format}, {len(given)} settings, "
            f"{len(loaded.warnings)} warnings"
        )
    return OK if ok else ConfigError.EXIT_CODE


def _with_master_checked(loaded: Loaded) -> Loaded:
    """These settings, with a warning if a slave may be given itself as its master. Raises
    ConfigError if it certainly is."""
    if not loaded.settings.starts_as_slave or not loaded.settings.ha_master_address:
        return loaded
    # Few files have such a slave, and the import costs each other check some time.
    from aerobee.broker.cluster.registration.master_address import check_master_of_file

    try:
        found = check_master_of_file(loaded.settings)
    except ConfigError as error:
        error.warnings = loaded.warnings
        raise
    return loaded._replace(warnings=(*loaded.warnings, *found))


def print_as_broker_conf(loaded: Loaded, *, important: bool) -> int:
    """`-p` and `-m` of mqbroker: RocketMQ's keys with the values that count, as a broker.conf."""
    for setting in SETTINGS:
        if setting.rocketmq_key and (not important or setting.name in _IMPORTANT):
            show_lines(f"{setting.rocketmq_key}={_text(setting, loaded.settings)}")
    return OK


def _warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        say(f"warning: {warning}")


def _value(setting: Setting, settings: Settings) -> Value:
    value = settings.value_of(setting)
    return _HIDDEN if setting.secret and value else value


def _text(setting: Setting, settings: Settings) -> str:
    value = _value(setting, settings)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _fields(setting: Setting, loaded: Loaded) -> dict[str, object]:
    origin = loaded.origins[setting.name]
    return {
        "setting": setting.full_key,
        "value": _value(setting, loaded.settings),
        "default": setting.default,
        "unit": setting.unit,
        "range": setting.range_text,
        "source": origin.source,
        "origin": origin.text,
        "rocketmq_key": setting.rocketmq_key,
        "effect": setting.effect,
    }
