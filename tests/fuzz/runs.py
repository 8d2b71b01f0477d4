"""Runs of hostile inputs against a target, and the corpus: inputs that once showed something new.

`python -m tests.fuzz.runs --seed N --count N` runs some by hand and prints what it finds;
`--keep` writes what is new of its kind into `corpus/`. A run begins with the corpus. An input whose
kind (`target.signature`) is new in this run becomes one of those that are bent further.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.recorded_disk import memory_folder
from tests.fuzz.grammar import Grammar
from tests.fuzz.seeds import BROKER_SEEDS, NAME_SERVER_SEEDS
from tests.fuzz.target import Judge, Target, signature

CORPUS = Path(__file__).with_name("corpus")
PORTS = {"broker": BROKER_SEEDS, "vip": BROKER_SEEDS, "name server": NAME_SERVER_SEEDS}
#: Of ten batches, whose each is.
_TURNS = ("broker",) * 6 + ("vip",) + ("name server",) * 3
BATCH = 40
#: Larger ones are made again by any run, and would fill the repository.
_KEPT_BYTES = 800
_POOL = 3_000


@dataclass
class Result:
    """What a run has seen."""

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


async def run(judge: Judge, seed: int, count: int, *, stop_at: int = 5) -> Result:
    """So many inputs, the corpus first; ends early when `stop_at` of them were wrong."""
    rng = random.Random(f"fuzz {seed}")
    result = Result()
    pool: dict[str, list[bytes]] = {port: [] for port in PORTS}
    begin: dict[str, list[bytes]] = {port: [] for port in PORTS}
    for port, data in corpus():
        begin[port].append(data)
        pool[port].append(data)
    grammars = {port: Grammar(rng, seeds) for port, seeds in PORTS.items()}
    while result.inputs < count and len(result.wrong) < stop_at:
        port = next((name for name, left in begin.items() if left), "") or rng.choice(_TURNS)
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


async def _by_hand(seed: int, count: int, flush: str) -> Result:
    with memory_folder() as folder:
        async with Target(folder, flush_disk_type=flush) as target:
            return await run(Judge(target), seed, count)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.runs", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(10**9))
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--flush", default="ASYNC_FLUSH", choices=["ASYNC_FLUSH", "SYNC_FLUSH"])
    parser.add_argument("--keep", action="store_true", help="add what is new to the corpus")
    asked = parser.parse_args()
    print(f"seed {asked.seed}")
    result = asyncio.run(_by_hand(asked.seed, asked.count, asked.flush))
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
