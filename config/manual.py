"""Makes `default.toml`, the manual of all settings, from their declarations.

    python -m aerobee.config.manual            writes config/default.toml
    python -m aerobee.config.manual --check    exits 1 when it is out of date

Every setting stands there as a comment with its default, so that the file shipped is also a valid
configuration that changes nothing: take the `#` off what is to change.
"""

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from aerobee.config.model import SECTIONS
from aerobee.config.settings.setting import Setting, toml_value

MANUAL: Final = Path(__file__).with_name("default.toml")

_WIDTH: Final = 100
_HEAD: Final = """\
# Aerobee: every setting, with its default. Made by `python -m aerobee.config.manual`.
#
# This file is TOML, as it is a configuration that changes nothing. Copy it, take the `#` off what
# you change, and start with `aerobee serve -c FILE`. A RocketMQ broker.conf is accepted in its
# place; "RocketMQ:" names its key, "Aerobee:" a key that RocketMQ lacks. Stronger than any file
# are the environment (AEROBEE__SECTION__KEY, such as AEROBEE__BROKER__LISTEN_PORT) and the flags of
# the command line (--set section.key=value). `aerobee config show --origin` tells what counts and
# why.
#
# SIGHUP (systemctl reload) makes a running broker read it again: what can be changed while it runs
# says so here, the rest is logged and takes effect at the next start.
#
# One thing is not a setting, since it is decided before any is read: the environment's
# AEROBEE_NATIVE, which form of the hot path runs. auto (the default): the compiled one where it was
# built; off: plain Python; required: the compiled one, or no start.
"""
_EFFECTS: Final = {"now": "", "later": "not in effect yet", "never": "accepted without effect"}


def manual() -> str:
    """The whole text of `default.toml`."""
    parts = [_HEAD]
    for section in SECTIONS:
        parts.append(f"\n{_comment(_purpose(section))}\n[{section.section}]\n")
        parts.extend(_entry(setting) for setting in section.settings)
    return "".join(parts)


def _entry(setting: Setting) -> str:
    lines = [_comment(setting.reason)]
    if facts := "; ".join(_facts(setting)):
        lines.append(_comment(f"({facts})"))
    lines.append(f"#{setting.key} = {toml_value(setting.default)}")
    return "\n" + "\n".join(lines) + "\n"


def _facts(setting: Setting) -> Iterator[str]:
    allowed = [part for part in (setting.unit, setting.range_text) if part]
    if allowed and setting.type is not bool:
        yield ", ".join(allowed)
    if setting.rocketmq_key:
        yield f"{setting.key_of}: {setting.rocketmq_key}"
    if setting.live:
        yield "can be changed while it runs"
    if _EFFECTS[setting.effect]:
        yield _EFFECTS[setting.effect]


def _purpose(section: type) -> str:
    return (section.__doc__ or "").split("\n\n")[0]


def _comment(text: str) -> str:
    flat = " ".join(text.split())
    return textwrap.fill(
        flat,
        _WIDTH,
        initial_indent="# ",
        subsequent_indent="# ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def write_or_check(path: Path, text: str, module: str, arguments: list[str]) -> int:
    """Write what `python -m MODULE` makes, or with `--check` compare it; the exit code."""
    if "--check" not in arguments:
        path.write_text(text, encoding="utf-8")
        return 0
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return 0
    print(f"{path} is out of date: run python -m {module}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(write_or_check(MANUAL, manual(), "aerobee.config.manual", sys.argv[1:]))
