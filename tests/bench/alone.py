"""A measurement that has its folder for itself, and is interrupted only where it may be.

measured() is common to the commands: obstacles to measuring and ends of a measurement are printed
in a line, with a status of its own.
"""

import argparse
import contextlib
import fcntl
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.bench.loads import LoadFailed, Lost, StartFailed

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class CannotMeasure(Exception):
    """There is nothing to measure; the text tells the user why, and what to do about it."""


@contextlib.contextmanager
def alone(cache: Path, free_bytes_min: int) -> Iterator[Path]:
    """A folder for the stores in `cache`, removed at the end. Raises CannotMeasure.

    Nobody else measures in this tree meanwhile, and there is room for the stores.
    """
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / "run"
    with (cache / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CannotMeasure(
                "another comparison goes on in this tree, and two would measure each other"
            ) from None
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
        free = shutil.disk_usage(cache).free
        if free < free_bytes_min:
            raise CannotMeasure(
                f"{cache} has {free >> 20} MiB free; the stores may take {free_bytes_min >> 20} MiB"
            )
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def interrupts_later() -> Iterator[None]:
    """An interrupt that comes inside is raised at the end: the work inside is done whole."""
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _frame: came.append(number))
        for number in INTERRUPTS
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


def measured(
    name: str,
    compare: Callable[[argparse.Namespace, Path], None],
    options: argparse.Namespace,
    cache: Path,
    free_bytes_min: int,
) -> int:
    """Has `compare` measure in a folder of `cache`; the status of the command `name`."""
    # Every way of ending this process unwinds it, so that its servers end too.
    for number in INTERRUPTS:
        signal.signal(number, signal.default_int_handler)
    try:
        with alone(cache, free_bytes_min) as folder:
            compare(options, folder)
    except CannotMeasure as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    except (StartFailed, LoadFailed, Lost) as error:
        print(f"{name}: failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    return 0
