"""Makes docs/limits.md from the declarations of the limits.

python -m aerobee.config.bounds.limits_page            writes docs/limits.md
python -m aerobee.config.bounds.limits_page --check    exits 1 when it is out of date
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from aerobee.config.bounds.client_limits import CLIENT
from aerobee.config.bounds.growth import BOUNDED
from aerobee.config.bounds.limits import PROPERTIES_BYTES_MAX
from aerobee.config.bounds.memory import WorstCase, size_text, worst_cases
from aerobee.config.manual import write_or_check
from aerobee.config.model import Settings

# The folders are linked below aerobee/; the page belongs to the project, not to what is installed.
PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "limits.md"

_METRIC: Final = re.compile(r"\b(?:aerobee|rocketmq|process)_[a-z_]+(?:\{[^}]*\})?")
_HEAD: Final = f"""\
# Limits

Made by `python -m aerobee.config.bounds.limits_page` from `config/`; a test holds it to the code.

Everything that input from outside can make the broker hold has a limit, judged before memory is
spent. This page has all of them: what each bounds, the bytes it allows at worst, what happens when
it is reached, and the metric that shows it. The values are the defaults; `config/default.toml`
says what each setting means, and `aerobee config show` which value counts. Beside these stand the
limits of the protocol: a topic has 127 characters, a group 255, the properties of a message
{PROPERTIES_BYTES_MAX:,} bytes, JSON 32 levels ([reliability.md](reliability.md) 8.2). What the
Python client takes from brokers and name servers: [client.md](client.md#limits).

`aerobee_limit_used_ratio` shows for each limit of a number or of bytes how much of it is used: at 1
it is hit. `deploy/alerts.yml` warns at 0.9.

## Memory

This is what all limits together allow, each filled at once. Real use is a small part of it: a
daemon with a thousand topics and clients takes some 60 MB. At the start the sum is held against
the memory of the machine, or of the control group if that has less; when it is larger, a warning
names the settings to lower, largest first. `aerobee_memory_worst_case_bytes` and
`aerobee_memory_available_bytes` are the two numbers. Mapped files come on top: the kernel takes
their pages back when it needs them. Of shards on one machine each has these limits, and is held
against its part of the memory: what there is, less what their name server may take, divided by
their number (`broker.memory_bytes`).

"times" names what a bound depends on: `client_ports` is 2 with the VIP port, else 1, and one
more with a port for administrators (`admin.port`); what is off counts as 0.

| limit | default | bounds | at worst | when it is reached | metric |
|---|---|---|---|---|---|
"""
_OTHERS: Final = """
## Limits that cost no memory of their own

Their bounds are counted above, or are time.

| limit | default | bounds | when it is reached | metric |
|---|---|---|---|---|
"""
_CLIENT: Final = """
## Our own client

A program that uses `aerobee.client` holds at most this for brokers and name servers.

| limit | value | bounds | when it is reached |
|---|---|---|---|
"""
_KEPT: Final = """
## Where it is kept

Each container of an object or a module that a peer can make grow, below what bounds it; from
`config/bounds/growth.py`, to which a test holds the code. The containers that no peer can make
grow are there too, each with the reason.

| limit | containers |
|---|---|
"""


def page() -> str:
    """The whole text of `docs/limits.md`."""
    # The names that depend on the machine do not count; the ones that only exist when a part is on
    # are shown as the defaults have them.
    settings = Settings().resolve()
    cases = worst_cases(settings)
    rows = sorted((c for c in cases if c.limit.bytes_each), key=lambda c: -c.bytes)
    parts = [_HEAD]
    for case in rows:
        parts.append(
            f"| {_cells(case.name, _value(case), case.limit.holds, _worst(case))}{_end(case)}"
        )
    total = size_text(sum(case.bytes for case in cases))
    parts.append(f"| **all together** | | | **{total}** | | |\n")
    parts.append(_OTHERS)
    for case in cases:
        if not case.limit.bytes_each:
            parts.append(f"| {_cells(case.name, _value(case), case.limit.holds)}{_end(case)}")
    parts.append(_CLIENT)
    parts += [f"| {_cells(*row)} |\n" for row in CLIENT]
    parts.append(_KEPT)
    parts += [f"| {_cells(name, _kept(modules))} |\n" for name, modules in BOUNDED.items()]
    return "".join(parts)


def _kept(modules: Mapping[str, str]) -> str:
    """Names by module: those of classes stand for themselves."""
    return "; ".join(f"`{module}`: {', '.join(names.split())}" for module, names in modules.items())


def _cells(*texts: str) -> str:
    return " | ".join(texts)


def _end(case: WorstCase) -> str:
    return f" | {case.limit.hit} | {_code(case.limit.metric)} |\n"


def _code(metric: str) -> str:
    """Names of metrics as code, words as they are."""
    return _METRIC.sub(r"`\g<0>`", metric)


def _value(case: WorstCase) -> str:
    if case.unit == "bytes":
        return size_text(case.value)
    return f"{case.value:,} {case.unit}".strip()


def _worst(case: WorstCase) -> str:
    """The bytes, and what they are made of where that is not the value itself."""
    factors = [f"times `{name}`" for name in case.limit.times]
    if case.limit.bytes_each > 1 and case.value > 1:
        factors.insert(0, f"{size_text(case.limit.bytes_each)} each")
    made_of = f" ({', '.join(factors)})" if factors else ""
    return f"{size_text(case.bytes) if case.bytes else 'off: 0'}{made_of}"


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page(), "aerobee.config.bounds.limits_page", sys.argv[1:]))
