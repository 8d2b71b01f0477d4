"""`make bench-secured`: the cost of accounts and TLS, beside a broker without either.

    python -m tests.bench.cases.secured [--turns 15] [--secs 1] [--loads P2,P11] [--dry]

Three brokers of the working tree are up: the first takes every request, the second has accounts and
its clients sign, the third speaks TLS alone. Each gets the same number of requests in its turn; the
extra cost of a message is the difference of the processor times of one round, and the median of
those is printed. turns.py has the rest. The generator is compiled with OpenSSL (Debian:
libssl-dev).
"""

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from tests.bench import report
from tests.bench.alone import CannotMeasure, measured
from tests.bench.cases.stalls import KEEP
from tests.bench.loads import CACHE, LOADS, Load, build, calibrate, compile_program, generate
from tests.bench.servers import OurServer, flush_of, running, shape
from tests.bench.turns import Rounds, Turn, add_turn_options, check_turns, equal_requests, rounds
from tests.interop.brokers import encrypting, guarding
from tests.tls.authority import client

PROGRAM = "rmqload-secured"
DEFAULT_LOADS = "P2,P11"
#: An account with rights that are looked up, as most have; the other is the benchmark's own.
SENDER = ("bench-sender", "bench-hidden-key")
OWNER = ("bench-owner", "owner-hidden-key")
ACCOUNTS = f"""\
accounts:
- accessKey: {SENDER[0]}
  secretKey: {SENDER[1]}
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
- accessKey: {OWNER[0]}
  secretKey: {OWNER[1]}
  admin: true
"""
#: Three stores with what some turns write, and the segments made ahead.
FREE_BYTES_MIN = 9 << 30


class PlainServer(OurServer):
    """Takes every request."""

    kind = "plain"
    #: Options of the generator, beside the load's.
    words: ClassVar[dict[str, float | str]] = {}

    def __init__(self, folder: Path, load: Load) -> None:
        settings = shape(flush_of(load))
        settings.extra = dict(KEEP)
        super().__init__(folder / self.kind, settings)

    def work(self, load: Load, **size: float) -> list[dict[str, Any]]:
        return [generate(self.port, self.topic, load.words, PROGRAM, **self.words, **size)]


class AccountsServer(PlainServer):
    """Lets in what is signed by an account with the right."""

    kind = "accounts"
    words: ClassVar[dict[str, float | str]] = {"access": SENDER[0], "secret": SENDER[1]}
    account = OWNER

    def __init__(self, folder: Path, load: Load) -> None:
        super().__init__(folder, load)
        self.shape.extra |= guarding(self.root / "home", ACCOUNTS)


class EncryptedServer(PlainServer):
    """Takes nothing but TLS."""

    kind = "TLS"
    words: ClassVar[dict[str, float | str]] = {"tls": 1}

    def __init__(self, folder: Path, load: Load) -> None:
        super().__init__(folder, load)
        self.encryption = client()
        self.name_server_settings |= encrypting(self.root, {})


KINDS = (PlainServer, AccountsServer, EncryptedServer)


@contextlib.contextmanager
def servers(load: Load, folder: Path) -> Iterator[Sequence[PlainServer]]:
    """One of each kind on an empty store, with what the load needs; all is removed after."""
    every = [kind(folder, load) for kind in KINDS]
    with running(every, folder):
        for server in every:
            server.take_up(load)
        yield every


def measure(load: Load, turns: int, secs: float, folder: Path) -> Rounds:
    """Rounds of a turn of each kind, in their order."""
    with servers(load, folder) as every:
        plain, *others = every
        requests = 0
        for other in others:
            requests = equal_requests(other, plain, load, requests, secs)
        return rounds(every, range(turns), load, requests)


HEAD = (
    "| # | load | broker | CPU us a message | more than plain | messages/s | rate against plain "
    "| p50 us | p99 us |\n" + "|---" * 9 + "|"
)


def rows(load: Load, found: Rounds) -> Iterator[str]:
    """The page's lines of a load."""
    columns = list(zip(*found, strict=True))
    for kind, column in zip(KINDS, columns, strict=True):
        cells = (
            load.name,
            load.what,
            kind.kind,
            report.middle([turn.cpu_us for turn in column]),
            more(column, columns[0]) if kind is not PlainServer else "-",
            report.middle([turn.messages_per_s for turn in column]),
            f"{against(column, columns[0]):.2f}",
            report.middle([turn.p50_us for turn in column]),
            report.middle([turn.p99_us for turn in column]),
        )
        yield f"| {' | '.join(cells)} |"


def more(secured: Sequence[Turn], plain: Sequence[Turn]) -> str:
    """us of processor a message, with the middle half of the rounds."""
    differences = sorted(one.cpu_us - two.cpu_us for one, two in zip(secured, plain, strict=True))
    quarter = len(differences) // 4
    low, high = differences[quarter], differences[-1 - quarter]
    return f"**{median(differences):+.2f}** ({low:+.2f} to {high:+.2f})"


def against(secured: Sequence[Turn], plain: Sequence[Turn]) -> float:
    """The median of the rates' ratios."""
    return median(
        one.messages_per_s / two.messages_per_s for one, two in zip(secured, plain, strict=True)
    )


def compare(options: argparse.Namespace, folder: Path) -> None:
    """Prints the table, and replaces the page's."""
    check_turns(options.turns, options.secs)
    wanted = options.loads.upper().split(",")
    loads = [load for load in LOADS if load.name in wanted and not load.sync]
    if len(loads) != len(set(wanted)):
        raise CannotMeasure(f"--loads {options.loads}: there are P1 to P7 and P10 to P12")
    build()
    compile_program(PROGRAM, "rmqload", "-DSECURED", "-lssl", "-lcrypto")
    before = calibrate()
    lines = [
        line
        for load in loads
        for line in rows(load, measure(load, options.turns, options.secs, folder))
    ]
    heading = report.heading("make bench-secured", [before, calibrate()])
    text = "\n".join([heading, "", HEAD, *lines])
    if not options.dry:
        report.replace_table("secured", text)
    print(text)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bench-secured", description=(__doc__ or "").partition("\n\n")[0]
    )
    add_turn_options(parser, "each")
    parser.set_defaults(turns=15)
    parser.add_argument("--loads", default=DEFAULT_LOADS)
    parser.add_argument("--dry", action="store_true", help="print the table only")
    options = parser.parse_args()
    return measured("bench-secured", compare, options, CACHE, FREE_BYTES_MIN)


if __name__ == "__main__":
    sys.exit(main())
