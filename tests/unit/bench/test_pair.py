"""Messages of `make pair` and its needs of the surroundings; tests/bench has it run."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import pair
from tests.bench.alone import CannotMeasure, alone, interrupts_later
from tests.bench.loads import LOADS, Lost, cpu_seconds, refuse_errors
from tests.bench.pair import chosen, summary
from tests.bench.report import remarks
from tests.bench.turns import Turn

P2 = next(load for load in LOADS if load.name == "P2")
SPINNING = """
import threading, time
def spin():
    while time.thread_time() < 0.1: pass
for _ in range(2):
    ended = threading.Thread(target=spin); ended.start(); ended.join()
print("spun", flush=True)
input()
"""


def test_report_of_a_load_has_medians_ratios_and_verdicts() -> None:
    found = [(Turn(9_000, 22.0, 1), Turn(10_000, 20.0, 1))] * 9
    assert summary(P2, found, 1234).splitlines() == [
        "P2  send, 64 connections, 128 B: 9 pairs of 1,234 requests",
        "    processor time  22.0 / 20.0 us a message: "
        "1.100 (1.100-1.100), 99 % 1.100-1.100: dearer by 10 %",
        "    rate            9,000 / 10.0 k messages/s: "
        "0.900 (0.900-0.900), 99 % 0.900-0.900: slower by 10 %",
    ]


def test_ratio_is_the_median_of_the_pairs_and_not_the_ratio_of_medians() -> None:
    """While the machine changes its pace, only what ran side by side can be compared."""
    found = [(Turn(1000 / pace, 10 * pace, 1), Turn(1000 / pace, 10 * pace, 1)) for pace in (1, 2)]
    found = [*found * 6, (Turn(900, 10.0, 1), Turn(1000, 9.0, 1))]
    processor, rate = summary(P2, found, 1).splitlines()[1:]
    assert processor.endswith("1.000 (1.000-1.111), 99 % 1.000-1.000: level")
    assert rate.endswith("1.000 (0.900-1.000), 99 % 1.000-1.000: level")


def test_loads_are_chosen_by_name_each_once() -> None:
    assert [load.name for load in chosen("p11, P2 P2,P8")] == ["P11", "P2", "P8"]


@pytest.mark.parametrize(("names", "words"), [("P2,P77", "no load P77;"), (" ,", "is named;")])
def test_load_that_does_not_exist_is_refused(names: str, words: str) -> None:
    with pytest.raises(CannotMeasure, match=words):
        chosen(names)


def test_default_loads_exist() -> None:
    assert len(chosen(pair.DEFAULT_LOADS)) == 5


def state(wall: float, processor: float) -> dict[str, float]:
    return {"python_loop_ms": wall, "python_loop_cpu_ms": processor}


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (state(11.5, 10.9), []),
        (state(10.0, 9.2), []),
        (
            state(12.6, 12.5),
            ["The machine became slower meanwhile: the loop takes 1.25 of what it took."],
        ),
        (
            state(5.1, 5.0),
            ["The machine became quicker meanwhile: the loop takes 0.50 of what it took."],
        ),
        (state(15.0, 10.0), ["Others wanted the processors too: the rates say little."]),
    ],
)
def test_state_of_the_machine_is_said_when_it_spoils_figures(
    after: dict[str, float], words: list[str]
) -> None:
    assert list(remarks(state(10.1, 10.0), after)) == words


def test_refused_requests_end_the_run() -> None:
    refuse_errors(P2, {"errors": 0})
    with pytest.raises(Lost, match="P2: 3 errors, code 14"):
        refuse_errors(P2, {"errors": 3, "last_error_code": 14})


def test_processor_time_is_that_of_all_threads_and_of_ended_ones() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", SPINNING], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"spun\n"
        own = int(Path(f"/proc/{child.pid}/schedstat").read_text().split()[0]) / 1e9
        assert 0.2 <= cpu_seconds(child.pid) - own < 0.4
        child.communicate(b"\n")


def test_two_comparisons_at_once_are_refused(tmp_path: Path) -> None:
    with alone(tmp_path, 0), pytest.raises(CannotMeasure, match="another"), alone(tmp_path, 0):
        pass
    with alone(tmp_path, 0):
        pass  # the lock goes with its owner


def test_stores_are_removed_at_the_end_and_those_of_a_killed_run_at_the_start(
    tmp_path: Path,
) -> None:
    (tmp_path / "run" / "left").mkdir(parents=True)
    with alone(tmp_path, 0) as folder:
        assert not folder.exists()
        folder.mkdir()
    assert not folder.exists()


def test_full_disk_is_said_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(CannotMeasure, match="MiB free"), alone(tmp_path, 1 << 60):
        pass


def test_interrupt_waits_for_the_end_of_what_has_to_be_done_whole() -> None:
    done = []

    def interrupted() -> None:
        with interrupts_later():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("all of it")

    # A run in the background begins with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert done == ["all of it"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("words", "said_then"),
    [
        (["--pairs", "8", "--base", "HEAD"], "9 pairs at least"),
        (["--secs", "0", "--base", "HEAD"], "9 pairs at least"),
        ([], "say which commit"),
        (["--base", "no-such"], "is no commit here"),
    ],
)
def test_what_cannot_be_compared_is_said_in_one_line(
    words: list[str],
    said_then: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(pair, "CACHE", tmp_path)
    monkeypatch.setattr(sys, "argv", ["pair", *words])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert pair.main() == 2
    error = capsys.readouterr().err
    assert error.startswith("pair: ")
    assert said_then in error
    assert error.count("\n") == 1
