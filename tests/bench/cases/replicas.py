"""The cost of a slave: SYNC_MASTER and its slave beside one broker alone, and beside Java's pair.

    python -m tests.bench.cases.replicas [--turns 9] [--secs 1] [--loads P1,P2] [--dry]

Up side by side are a broker of ours without a slave, a pair of ours and a pair of Java's, all with
ASYNC_FLUSH. In each turn of a pair both of its brokers work, so the processor time of a message is
that of both. turns.py has the rest.
"""

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from tests.bench import report
from tests.bench.alone import CannotMeasure, measured
from tests.bench.cases.stalls import KEEP
from tests.bench.loads import CACHE, LOADS, Load, StartFailed, build, calibrate
from tests.bench.servers import BrokerServer, JavaServer, OurServer, running, shape
from tests.bench.turns import Rounds, Turn, add_turn_options, check_turns, rounds, warm_up
from tests.interop.brokers import StoreShape
from tests.interop.processes import wait_until
from tests.ports import free_port

#: The goals: of the rate beside Java's pair and beside one broker, of P1's p50 beside one broker.
JAVA_MIN, ALONE_MIN, P50_MAX = 2.5, 0.65, 2.5
FREE_BYTES_MIN = 20 << 30
_JOIN_S = 60


def _shape(role: str) -> StoreShape:
    of_role = {
        "brokerRole": role,
        "brokerId": "1" if role == "SLAVE" else "0",
        "haListenPort": str(free_port()),
        "brokerIP2": "127.0.0.1",
        # The first report of a Java slave comes after that time.
        "haSendHeartbeatInterval": "500",
    }
    made = shape("ASYNC_FLUSH")
    made.extra = {**KEEP, **of_role}
    return made


class Alone(OurServer):
    """One broker of ours."""

    kind = "ours alone"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "alone", shape("ASYNC_FLUSH"))
        self.shape.extra = dict(KEEP)


class _Pair(BrokerServer):
    """A master, which is this server, and its slave."""

    slave: BrokerServer
    slave_kind: type[BrokerServer]

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "master", _shape("SYNC_MASTER"))
        self._slave_root = folder / "slave"

    def come_up(self) -> None:
        super().come_up()
        self.slave = self.slave_kind(
            self._slave_root, _shape("SLAVE"), registers_at=self.name_server
        )
        self.slave.come_up()
        with self.wire() as wire:

            def joined() -> bool:
                return wire.send("bench-joined", 0, b"joined").code == 0

            try:
                wait_until(joined, _JOIN_S, "a send is on both brokers", 0.1)
            except AssertionError as error:
                raise StartFailed(f"{self.kind}: {error}\n{self.last_words()}") from None

    def pids(self) -> list[int]:
        return [self.pid, self.slave.pid]

    def kill(self) -> None:
        if hasattr(self, "slave"):
            self.slave.kill()
        super().kill()


class OurPair(_Pair, OurServer):
    """Both of ours."""

    kind = "our pair"
    slave_kind = OurServer


class JavaPair(_Pair, JavaServer):
    """Both of Java's."""

    kind = "Java's pair"
    slave_kind = JavaServer


KINDS: tuple[type[Alone | OurPair | JavaPair], ...] = (Alone, OurPair, JavaPair)


@contextlib.contextmanager
def servers(load: Load, folder: Path) -> Iterator[Sequence[BrokerServer]]:
    """One of each kind on an empty store, with the load's topic; all is removed after."""
    every: list[BrokerServer] = [kind(folder / kind.__name__) for kind in KINDS]
    with running(every, folder):
        for server in every:
            server.take_up(load)
        yield every


def measure(load: Load, options: argparse.Namespace, folder: Path) -> Rounds:
    """Rounds of a turn of each kind, in their order."""
    with servers(load, folder) as every:
        for kind in warm_up(every, load, options.secs, options.warm_up):
            print(f"{load.name}: {kind} was not level after its warm-up", flush=True)
        return rounds(every, range(options.turns), load, secs=options.secs)


HEAD = "| # | brokers | messages/s | p50 us | p99 us | CPU us a message |\n" + "|---" * 6 + "|"


def rows(load: Load, found: Rounds) -> Iterator[str]:
    """The page's lines of a load."""
    columns = list(zip(*found, strict=True))
    for kind, column in zip(KINDS, columns, strict=True):
        cells = (
            load.name,
            kind.kind,
            report.middle([turn.messages_per_s for turn in column]),
            report.middle([turn.p50_us for turn in column]),
            report.middle([turn.p99_us for turn in column]),
            report.middle([turn.cpu_us for turn in column]),
        )
        yield f"| {' | '.join(cells)} |"


def verdicts(load: Load, found: Rounds) -> Iterator[str]:
    """A line for each comparison."""
    alone, ours, java = zip(*found, strict=True)
    to_java, to_one = [_ratio(ours, other, "messages_per_s") for other in (java, alone)]
    longer = _ratio(ours, alone, "p50_us")
    yield f"- {load.name}, messages/s: our pair / Java's {to_java:.2f} (goal of P2: {JAVA_MIN})"
    yield f"- {load.name}, messages/s: our pair / alone {to_one:.2f} (goal of P2: {ALONE_MIN})"
    yield f"- {load.name}, p50: our pair / alone {longer:.2f} (goal of P1: {P50_MAX} at most)"


def _ratio(these: Sequence[Turn], those: Sequence[Turn], figure: str) -> float:
    return median(
        getattr(one, figure) / getattr(two, figure) for one, two in zip(these, those, strict=True)
    )


def compare(options: argparse.Namespace, folder: Path) -> None:
    """Prints the table, and replaces the page's."""
    check_turns(options.turns, options.secs)
    wanted = options.loads.upper().split(",")
    loads = [load for load in LOADS if load.name in wanted and not load.sync and not load.pulls]
    if len(loads) != len(set(wanted)):
        raise CannotMeasure(f"--loads {options.loads}: there are P1 to P7, P10 and P12")
    build()
    before = calibrate()
    lines, words = [], []
    for load in loads:
        found = measure(load, options, folder)
        lines += rows(load, found)
        words += verdicts(load, found)
        print("\n".join(words), flush=True)
    heading = report.heading("python -m tests.bench.cases.replicas", [before, calibrate()])
    text = "\n".join([heading, "", HEAD, *lines, "", *words])
    if not options.dry:
        report.replace_table("replicas", text)
    print(text)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="replicas", description=(__doc__ or "").partition("\n\n")[0]
    )
    add_turn_options(parser, "each")
    parser.add_argument("--loads", default="P1,P2")
    parser.add_argument("--warm-up", type=float, default=20, help="seconds, for each (20)")
    parser.add_argument("--dry", action="store_true", help="print the table only")
    options = parser.parse_args()
    return measured("replicas", compare, options, CACHE, FREE_BYTES_MIN)


if __name__ == "__main__":
    sys.exit(main())
