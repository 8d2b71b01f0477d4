"""`aerobee config convert`: a RocketMQ broker.conf as our TOML, and what became of each key.

The TOML read again gives the settings that the file gives. It holds the values that count: where a
rule makes another value of what the file says, such as the port for slaves, which RocketMQ always
takes to be listenPort + 1, the rule's value stands there. Keys without effect here are left out and
reported. A value that does not parse is left out as well: RocketMQ ignores it and runs with its
default, and this broker would refuse to start with it.
"""

import argparse
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

from aerobee.cli.documents.configuration import Conversion, ConvertedKey
from aerobee.cli.documents.document import print_document
from aerobee.cli.printing.output import OK, CommandFailed, say, show
from aerobee.config.errors import ConfigError
from aerobee.config.loading.load import Loaded, load_settings
from aerobee.config.loading.value_sources import Given, read_file
from aerobee.config.model import BY_FULL_KEY, BY_ROCKETMQ_KEY
from aerobee.config.settings.setting import Setting, toml_value
from aerobee.nearest_name import nearest_name

# Report lines in this order: those that want a look come first.
State = Literal["taken", "no_effect", "unknown", "wrong"]
_STATES: Final[tuple[State, ...]] = ("wrong", "unknown", "no_effect", "taken")
# The beginnings of the loader's warnings about keys without effect.
_OF_IDLE: Final = ("accepted, without", "has no effect here: derived")
_HEAD: Final = """\
# Made from {file} by aerobee config convert.
# aerobee config explain KEY says what a setting means.
"""


def convert(parsed: argparse.Namespace) -> int:
    """Print the TOML on standard output and the report on standard error; `--json`: both in one
    document. Raises ConfigError for a file that a broker would not start with for another reason
    than a value that RocketMQ ignores."""
    path = Path(parsed.config)
    content = read_file(path, None)
    if content.format == "toml" and content.given:
        raise CommandFailed(f"{path} is TOML already: aerobee config check reads it")
    keys = [_judged(item) for item in read_file(path, "properties").given]
    wrong = {one.key: BY_FULL_KEY[one.setting or ""] for one in keys if one.state == "wrong"}
    loaded = load_settings(
        path,
        environ={},
        overrides=[f"{one.full_key}=false" for one in wrong.values() if one.type is bool],
        format="properties",
        strict=parsed.strict,
        leave_out=wrong,
    )
    toml = toml_text(loaded)
    if parsed.output is not None:
        _write(Path(parsed.output), toml)
    report = Conversion(
        file=str(path),
        toml=toml,
        keys=sorted(keys, key=lambda one: (_STATES.index(one.state), one.line)),
        warnings=_beside_keys(loaded.warnings, keys),
    )
    if parsed.json:
        print_document(report)
    elif parsed.output is None:
        show(*toml.splitlines())
    _say_report(report)
    return OK


def toml_text(loaded: Loaded) -> str:
    """The settings that a file has given, and those that rules made of them, as TOML. Settings
    without effect here are left out, and those of a tls.properties, which is read again."""
    sections: dict[str, list[str]] = {}
    for setting, value, origin in loaded.given():
        is_own = origin.source in ("rule", "flag") or origin.text.startswith(f"{loaded.file}:")
        if setting.effect != "never" and is_own:
            lines = sections.setdefault(setting.section, [])
            lines.append(f"{setting.key} = {toml_value(value)}")
    parts = [_HEAD.format(file=os.path.basename(str(loaded.file)))]
    parts += [f"\n[{name}]\n" + "".join(f"{one}\n" for one in sections[name]) for name in sections]
    return "".join(parts)


def _judged(item: Given) -> ConvertedKey:
    setting = BY_ROCKETMQ_KEY.get(item.key) or BY_FULL_KEY.get(item.key)
    line = int(item.where.rpartition(":")[2])
    if setting is None:
        near = nearest_name(item.key, BY_ROCKETMQ_KEY)
        hint = f": did you mean {near}?" if near else ""
        text = f"is unknown, and ignored here as by RocketMQ{hint}"
        return ConvertedKey(
            key=item.key, line=line, state="unknown", setting=None, nearest=near, text=text
        )
    state, text = _state_of(setting, str(item.value))
    return ConvertedKey(
        key=item.key, line=line, state=state, setting=setting.full_key, nearest=None, text=text
    )


def _state_of(setting: Setting, value: str) -> tuple[State, str]:
    if why := _why_ignored(setting, value):
        shown = "its value" if setting.secret else value
        return "wrong", f"{shown} {why}"
    if setting.effect == "never":
        return "no_effect", f"has no effect here: {setting.reason}"
    return "taken", f"is {setting.full_key}"


def _why_ignored(setting: Setting, value: str) -> str | None:
    """The reason if RocketMQ reads over this value; None if it takes it, right or wrong."""
    try:
        setting.parse(value)
    except ValueError as error:
        if setting.type is bool:
            return f"{error}: RocketMQ takes it as false, and so does the TOML"
        reason = str(error)
    else:
        if not setting.choices or value.lower() in map(str.lower, setting.choices):
            return None
        reason = f"must be {setting.range_text}"
    return f"{reason}: RocketMQ ignores it and runs with {setting.default}, and so does the TOML"


def _beside_keys(warnings: Iterable[str], keys: list[ConvertedKey]) -> list[str]:
    """The warnings that say more than the report, which has unknown keys and idle ones already."""
    told = [f": {one.key}: unknown setting" for one in keys if one.state == "unknown"]
    return [
        warning
        for warning in warnings
        if not any(text in warning for text in told) and not warning.startswith(_OF_IDLE)
    ]


def _say_report(report: Conversion) -> None:
    for one in report.keys:
        if one.state != "taken":
            say(f"{report.file}:{one.line}: {one.key} {one.text}")
    for warning in report.warnings:
        say(f"warning: {warning}")
    counts = {state: sum(one.state == state for one in report.keys) for state in _STATES}
    say(
        f"{report.file}: {counts['taken']} keys taken, {counts['no_effect']} without effect, "
        f"{counts['unknown']} unknown, {counts['wrong']} with a value that RocketMQ ignores"
    )


def _write(path: Path, text: str) -> None:
    """Write a new file that its owner alone may read, for it may hold passwords."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise CommandFailed(f"{path} exists: nothing was written") from None
    except OSError as error:
        raise ConfigError("", "", f"cannot be written: {error.strerror}", str(path)) from None
