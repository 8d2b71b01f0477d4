"""Runs of hostile inputs against a target, and the corpus: inputs that once showed something new.

`python -m tests.fuzz.runs --seed N --count N` runs some by hand and prints what it finds;
`--keep` writes what is new of its kind into `corpus/`. A run begins with the corpus. An input whose
kind (`target.signature`) is new in this run becomes one of those that are bent further. With
`--accounts` the broker asks for them (`guarded.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.crash.power_cuts.recorded_disk import memory_folder
from tests.fuzz.grammar import Grammar
from tests.fuzz.seeds import ACCOUNT_SEEDS, BROKER_SEEDS, NAME_SERVER_SEEDS
from tests.fuzz.target import Judge, Target, signature

CORPUS = Path(__file__).with_name("corpus")
_BROKER = BROKER_SEEDS + ACCOUNT_SEEDS
PORTS = {"broker": _BROKER, "vip": _BROKER, "name server": NAME_SERVER_SEEDS}
BATCH = 40
#: Larger ones are made again by any run, and would fill the repository.
_KEPT_BYTES = 800
_POOL = 3_000


@dataclass
class Result:
    """The observations of a run."""

    inputs: int = 0
    answered: int = 0
    closed: int = 0
    kinds: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    answers: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def corpus() -> list[tuple[str, bytes]]:
    """Port and bytes of each input kept; a file is a port's, an input a line."""
    found = []
    for path in sorted(CORPUS.glob("*.base64")):
        port = path.stem.replace("-", " ")
        found += [(port, base64.b64decode(line)) for line in path.read_text().splitlines()]
    return found


def keep(result: Result) -> int:
    """Write the run's kinds that the corpus has not; how many there were."""
    by_port: dict[str, list[bytes]] = {}
    for port, data in corpus():
        by_port.setdefault(port, []).append(data)
    known = {data for inputs in by_port.values() for data in inputs}
    new = [one for one in result.kinds.values() if len(one[1]) <= _KEPT_BYTES]
    count = 0
    for port, data in new:
        if data not in known:
            by_port.setdefault(port, []).append(data)
            count += 1
    for port, inputs in by_port.items():
        text = "".join(base64.b64encode(data).decode() + "\n" for data in sorted(inputs, key=len))
        (CORPUS / f"{port.replace(' ', '-')}.base64").write_text(text)
    return count


class Plan(NamedTuple):
    """The plan of a run: a grammar for each port, the port of each of ten batches, and the inputs
    that go first."""

    grammars: Callable[[random.Random], Mapping[str, Grammar]]
    turns: Sequence[str]
    first: Callable[[], Iterable[tuple[str, bytes]]]


def _grammars(rng: random.Random) -> dict[str, Grammar]:
    return {port: Grammar(rng, seeds) for port, seeds in PORTS.items()}


#: The plan for a broker that everybody may ask for everything.
OPEN = Plan(_grammars, ("broker",) * 6 + ("vip",) + ("name server",) * 3, corpus)


async def run(
    judge: Judge, seed: int, count: int, *, stop_at: int = 5, plan: Plan = OPEN
) -> Result:
    """Run `count` inputs; ends early when `stop_at` of them were wrong."""
    rng = random.Random(f"fuzz {seed}")
    result = Result()
    grammars = plan.grammars(rng)
    pool: dict[str, list[bytes]] = {port: [] for port in grammars}
    begin: dict[str, list[bytes]] = {port: [] for port in grammars}
    for port, data in plan.first():
        begin[port].append(data)
        pool[port].append(data)
    while result.inputs < count and len(result.wrong) < stop_at:
        port = next((name for name, left in begin.items() if left), "") or rng.choice(plan.turns)
        inputs, begin[port] = begin[port][:BATCH], begin[port][BATCH:]
        while len(inputs) < BATCH:
            if pool[port] and rng.random() < 0.2:
                inputs.append(grammars[port].bent(rng.choice(pool[port])))
            else:
                inputs.append(grammars[port].next())
        for heard in await judge.batch(port, inputs, rng):
            result.inputs += 1
            result.answered += sum(1 for one in heard.answers if one.is_response)
            result.closed += heard.broken
            result.answers.update(one.code for one in heard.answers if one.is_response)
            kind = signature(port, heard)
            if kind is not None and kind not in result.kinds:
                result.kinds[kind] = (port, heard.data)
                if len(pool[port]) < _POOL:
                    pool[port].append(heard.data)
            if heard.wrong:
                text = base64.b64encode(heard.data).decode()
                where = f"{port}, seed {seed}, input {result.inputs}: "
                result.wrong.append(where + "; ".join(heard.wrong) + f"\n  base64 {text[:4_000]}")
    return result


async def _by_hand(seed: int, count: int, flush: str, *, accounts: bool) -> Result:
    with memory_folder() as folder:
        if not accounts:
            async with Target(folder, flush_disk_type=flush) as target:
                return await run(Judge(target), seed, count)
        from tests.fuzz.guarded import SIGNED, Doorkeeper, GuardedTarget

        async with GuardedTarget(folder, flush_disk_type=flush) as guarded:
            await guarded.furnish()
            return await run(Doorkeeper(guarded), seed, count, plan=SIGNED)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.runs", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(10**9))
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--flush", default="ASYNC_FLUSH", choices=["ASYNC_FLUSH", "SYNC_FLUSH"])
    parser.add_argument("--accounts", action="store_true", help="a broker that asks for accounts")
    parser.add_argument("--keep", action="store_true", help="add what is new to the corpus")
    asked = parser.parse_args()
    print(f"seed {asked.seed}")
    if asked.accounts and asked.keep:
        parser.error("the corpus is that of a broker without accounts")
    by_hand = _by_hand(asked.seed, asked.count, asked.flush, accounts=asked.accounts)
    result = asyncio.run(by_hand)
    print(
        f"{result.inputs} inputs, {result.answered} answers, {result.closed} closed, "
        f"{len(result.kinds)} kinds, {len(result.wrong)} wrong; codes {dict(result.answers)}"
    )
    print("\n".join(result.wrong))
    if asked.keep:
        print(f"{keep(result)} kept")
    return bool(result.wrong)


if __name__ == "__main__":
    sys.exit(main())
