"""Which of the dear tests a run takes. Any five runs whose seeds follow each other take all.

Clients of other languages, lakes, Spark, the Java broker, kills and negative controls take an hour
of processor together, so `make test` runs a part of them. The *draw* of a run is its seed modulo
five, and the tables here say at which draws a test runs:

- A `Whole` has its draws by name, because its tests share something dear: a client that has to be
  built, a PySpark of their own, a pair of brokers.
- Each test of a `Spread` has draws of its own, one to three, by the checksum of its id. They do not
  change when other tests come or go.

Each has one draw at least, so five seeds that follow each other meet it. A run without a seed takes
the draw behind that of the run before it on this machine (`next_seed`). A machine that ran nothing
before, as in continuous integration, takes the number of commits: five commits meet all.

Only `make test` draws (`pytest --draw=part`). A test that is named runs. A campaign runs all, and
so does `AEROBEE_DRAW=all make test`. `make sixth` takes a sixth of the campaign, by the seed
modulo six (`--draw=sixth`); six runs that follow each other take each sixth.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import random
import re
import subprocess
import zlib
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import campaign

DRAWS, SIXTHS = 5, 6
#: Ids of all tests that pytest has collected, before some are left out.
COLLECTED = pytest.StashKey[list[str]]()
ROOT = Path(__file__).parents[1]
ALL, PART, SIXTH = "all", "part", "sixth"


class Whole(NamedTuple):
    """Tests that run together, at these draws; their ids begin with one of the patterns."""

    name: str
    draws: tuple[int, ...]
    tests: tuple[str, ...]
    #: The part that set-up scripts bring for them alone.
    part: str = ""


class Spread(NamedTuple):
    """Tests of which each runs at `often` draws of five, which its id decides."""

    often: int
    tests: tuple[str, ...]


_CLIENT = r"tests/interop/.*\[(.*-)?"
_SPARK = r"tests/spark/(\w+/)?test_"
_INTEROP = r"tests/interop/(\w+/)?test_"
_CRASH = r"tests/crash/(\w+/)?test_"

#: The first row with a pattern that fits a test counts; a test without one always runs. The rows
#: are dealt so that each draw takes about as long as the others.
WHOLE: tuple[Whole, ...] = (
    Whole("go", (1, 3), (rf"{_CLIENT}go\]",), "go"),
    Whole("node", (1, 3), (rf"{_CLIENT}node\]",), "node"),
    Whole("cpp", (2,), (rf"{_CLIENT}cpp\]",), "cpp"),
    Whole("rust", (4,), (rf"{_CLIENT}rust\]",), "rust"),
    Whole("java-4.4.0", (1,), (rf"{_CLIENT}4\.4\.0\]",)),
    Whole("java-5.5.0", (2,), (rf"{_CLIENT}5\.5\.0\]",)),
    Whole("accounts beside Java", (2, 3), (f"{_INTEROP}access",)),
    Whole("features of Java", (0, 2), (f"{_INTEROP}java_features",)),
    Whole("mqadmin", (1, 4), (f"{_INTEROP}mqadmin",)),
    Whole("store tools beside Java", (0, 3), (f"{_INTEROP}store_tools",)),
    Whole("SQL beside Java", (1, 4), (f"{_INTEROP}sql_filter",)),
    Whole("bench of a Java broker", (3,), (f"{_INTEROP}bench",)),
    Whole("stores that cross", (1, 3), (f"{_INTEROP}store_crossing",)),  # Go writes into them
    # Waits of half a minute, in which clients ask for no routes.
    # Go reads too: they run where it is brought.
    Whole("a master of RocketMQ 5's slave dies", (3,),
          (rf"{_INTEROP}failover.*consumers.*\[ours-java5\]",), "java5"),
    Whole("slaves of RocketMQ 5", (2,), (rf"{_CLIENT}java5\]",), "java5"),
    Whole("our master dies", (1,), (rf"{_INTEROP}failover.*consumers.*\[ours-ours\]",)),
    Whole("a master of Java's slave dies", (1,),
          (rf"{_INTEROP}failover.*consumers.*\[ours-java\]",)),
    Whole("Java's master dies", (0,), (rf"{_INTEROP}failover.*consumers.*\[java-ours\]",), "go"),
    # Two minutes, of which half are waits for delays.
    Whole("from Java to ours and back", (4,), (f"{_INTEROP}runbook",)),
    Whole("lag beside Java", (1,), (f"{_INTEROP}lag",)),
    Whole("our client at Java", (0, 4), (f"{_INTEROP}our_client",)),
    Whole("contract of Java", (1, 3), (r"tests/contract/programs/test_client.py::\w+\[java",)),
    Whole("delta", (0,), (rf"{_SPARK}lake.*\[delta\]", rf"{_SPARK}lake.py::test_a(_delta|vro)"),
          "lake-delta"),
    Whole("iceberg", (2,), (rf"{_SPARK}lake.*\[iceberg\]",), "lake-iceberg"),
    Whole("archive on S3", (4,), (f"{_SPARK}archive_s3",), "s3"),
    Whole("Spark from a wheel", (0,), (f"{_SPARK}registration",)),
    Whole("change data", (1,), (f"{_SPARK}change_data",)),
    Whole("Spark Connect", (1,), (f"{_SPARK}connect",)),
    Whole("Spark cluster", (3,), (f"{_SPARK}cluster",)),
    Whole("worked example", (3,), (f"{_SPARK}example",)),
    Whole("declarative pipelines", (4,), (f"{_SPARK}declarative",)),
    Whole("pages of Spark", (4,), (rf"{_SPARK}pages.py::test_(jobs|shells|what)",)),
    # Two runs of real brokers at each draw.
    Whole("links that fail", (0, 3), (rf"{_CRASH}links.py::.*\[(cuts|one way)\]",)),
    Whole("links that are slow", (1,), (rf"{_CRASH}links.py::.*\[(slow|standing still)\]",)),
    Whole("kills of master and slave", (2, 4), (rf"{_CRASH}links.py::.*\[(kills|full disk)\]",)),
    # Two builds of the compiled form.
    Whole("kills at compiled steps", (2, 4), (f"{_CRASH}compiled_steps",)),
    Whole("wheels", (0,), ("tests/service/test_wheels",)),
)  # fmt: skip
SPREAD: tuple[Spread, ...] = (
    # These need nothing dear.
    Spread(5, (rf"{_SPARK}(pages|traps.py::test_each)", f"{_INTEROP}hostile")),
    Spread(1, (_SPARK,)),
    Spread(2, (_INTEROP,)),
    # Negative controls: a rule is broken on purpose, and somebody has to notice.
    Spread(2, (rf"{_CRASH}power_cut_controls", r"tests/sim/.*control",
               rf"{_CRASH}.*(control|caught|noticed)")),
    Spread(2, (rf"{_CRASH}(kill_points|kill_tools|full_disk)",
               rf"{_CRASH}(staging_crash|slow_disk)",
               "tests/budget/test_budget.py::test_the_largest_request",
               r"tests/contract/(\w+/)?test_bench_secured")),
    # A run that does not draw takes a part of these by chance (the mark `drawn`).
    Spread(1, (rf"{_CRASH}(resources|bit_flip)",)),
    Spread(2, (rf"{_CRASH}few_rights",)),
    # `make check` runs these in both forms of the hot path; this is the plain one.
    Spread(2, (r"tests/contract/.*\[(.*-)?off[]-]",)),
    # A judge and a log of blocks are quick to try.
    Spread(5, (rf"{_CRASH}(checker|judge|block_log|transaction_judge)",)),
    Spread(3, (_CRASH, r"tests/sim/(\w+/)?test_(storage_model|nth_call|broker_model|clocks)",
               r"tests/service/test_(damage|systemd|shards)")),
)  # fmt: skip
#: Tests whose full size differs, and which need no part that `make test` does not bring.
_CAMPAIGN = (
    r"tests/(sim|native|fuzz|crash)/",
    r"tests/contract/(\w+/)?test_bit_maps",
    r"tests/service/test_tls_crowd",
    r"tests/unit/(store/recovery/test_random_stores|remoting/(\w+/)?test_tls_records)",
)


class Drawn(NamedTuple):
    """The choice of a run: all tests, a part or a sixth, by its seed."""

    kind: str
    seed: int

    @property
    def draw(self) -> int:
        return self.seed % DRAWS

    def takes(self, test: str) -> bool:
        """Whether a test runs, by its id."""
        if self.kind == SIXTH:
            return _fits(test, _CAMPAIGN) and sixth_of(test) == self.seed % SIXTHS
        return self.kind == ALL or self.draw in draws_of(test)

    def names(self) -> list[str]:
        """Names of the rows of `WHOLE` that run."""
        return [row.name for row in WHOLE if self.kind == ALL or self.draw in row.draws]

    def parts_left_out(self) -> set[str]:
        """Parts of the set-up scripts that no test needs."""
        if self.kind == ALL:
            return set()
        parts = {row.part for row in WHOLE if row.part}
        return parts - {row.part for row in WHOLE if self.draw in row.draws}

    def __str__(self) -> str:
        if self.kind == SIXTH:
            return f"sixth {self.seed % SIXTHS} of 0 to {SIXTHS - 1} of the campaign"
        if self.kind == ALL:
            return "nothing is drawn, all is taken"
        return f"draw {self.draw} of 0 to {DRAWS - 1} takes {', '.join(self.names())}"


#: The choice of this run, which tests/conftest.py makes before it collects.
drawn = Drawn(ALL, 0)


def set_drawn(kind: str, seed: int) -> None:
    """The run takes all, its part, or its sixth; a campaign that is not a sixth takes all."""
    global drawn
    drawn = Drawn(ALL if kind == PART and campaign.is_full() else kind, seed)


def takes(name: str) -> bool:
    """Whether this run takes what has that name, for tests that have several of them inside.

    What no `Whole` names is always taken. Clients have the names of tests/interop/peers.py.
    """
    return name in drawn.names() or name not in {row.name for row in WHOLE}


def draws_of(test: str) -> frozenset[int]:
    """The draws at which a test runs."""
    for row in WHOLE:
        if _fits(test, row.tests):
            return frozenset(row.draws)
    for spread in SPREAD:
        if _fits(test, spread.tests):
            first = zlib.crc32(test.encode())
            # Two steps apart, so that of two draws in a row each has other tests.
            return frozenset((first + 2 * step) % DRAWS for step in range(spread.often))
    return frozenset(range(DRAWS))


def sixth_of(test: str) -> int:
    """The sixth of the campaign that has the test."""
    return zlib.crc32(test.encode()) // DRAWS % SIXTHS


def _fits(test: str, patterns: tuple[str, ...]) -> bool:
    return any(re.match(pattern, test) for pattern in patterns)


# --- the seed of a run that was given none --------------------------------------------------------

_TURNS = DRAWS * SIXTHS  # after so many runs both have come round


def next_seed() -> int:
    """A seed whose draw and sixth are the ones behind those of the last run on this machine."""
    return random.randrange(10**7) * _TURNS + _next_turn(_record(), ROOT)


def _record() -> Path:
    """The turn of the last run, for all clones on the machine."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "aerobee" / "last-turn"


def _next_turn(record: Path, root: Path) -> int:
    """One more than the record says, or the number of commits. Runs at the same time have different
    ones, because the record is locked meanwhile."""
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        file = record.open("a+")
    except OSError:
        return _commits(root) % _TURNS
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        last = file.read().strip()
        turn = (int(last) + 1 if last.isdecimal() else _commits(root)) % _TURNS
        file.truncate(0)
        file.write(f"{turn}\n")
        file.flush()
    return turn


def _commits(root: Path) -> int:
    """How many commits led here; by chance where there is no history."""
    command = ["git", "-C", str(root), "rev-list", "--count", "HEAD"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return random.randrange(_TURNS)
    return int(said)


def main() -> None:
    """Print the seed of a run with these options of pytest."""
    parser = argparse.ArgumentParser(prog="python -m tests.drawing", description=__doc__)
    parser.add_argument("--seed", type=int)
    given = parser.parse_known_args()[0].seed
    known = os.environ.get(campaign.SEED_VARIABLE)
    print(given if given is not None else int(known) if known else next_seed())


if __name__ == "__main__":
    main()
