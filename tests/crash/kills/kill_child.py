"""The process that test_kill_points.py kills: writes fifty messages, or only recovers.

    python kill_child.py write DIR FLUSH     python kill_child.py recover DIR

    --at MODULE:FUNCTION:LINE:VISIT   kill itself when it is about to run that line of the function
                                      (counted from 0) for that time: what is no system call
    --ack-early                       negative control: acknowledge before the message is appended

Prints a line for each acknowledged message (queue id, queue offset, log offset, number), one for
each saved state file, `done` at the end.
"""

import argparse
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

from aerobee.broker.tables.files.state_file import JsonStateFile
from aerobee.config.model import Settings
from aerobee.store.message_store import MessageStore
from tests.crash.judges.same_directory import SameDirectory
from tests.unit.store.support import message, small_settings

COUNT = 50
QUEUES = 3
SAVE_EVERY = 12
_NEVER_MS = 3_600_000


def settings_of(directory: Path, flush: str) -> Settings:
    """Nothing happens by itself, so that every run makes the same calls."""
    return small_settings(
        directory,
        flush_disk_type=flush,
        flush_interval_ms=_NEVER_MS if flush == "ASYNC_FLUSH" else 20,
        flush_thorough_interval_ms=_NEVER_MS,
        consume_queue_flush_interval_ms=_NEVER_MS,
    )


def body_of(number: int) -> bytes:
    """The body of a numbered message; everybody can make it again."""
    return b"%04d" % number + bytes((number * 31 + n) % 251 for n in range(number * 37 % 300))


def say(line: str) -> None:
    os.write(1, line.encode() + b"\n")


def code_of(module: str, function: str) -> CodeType:
    """The code of `Class.method` in a module of the package. Raises AttributeError."""
    found: Any = importlib.import_module(f"aerobee.{module}")
    for name in function.split("."):
        found = getattr(found, name)
    code: CodeType = found.__code__
    return code


def lines_of(code: CodeType) -> list[int]:
    """The numbers of a function's lines that run, in order; not that of its head."""
    return sorted({line for _, _, line in code.co_lines() if line} - {code.co_firstlineno})


def kill_at(point: str) -> None:
    """Die when `point` is reached, on whichever thread."""
    module, function, index, visit = point.split(":")
    code = code_of(module, function)
    line = lines_of(code)[int(index)]
    left = int(visit)

    def on_line(frame: FrameType, event: str, _arg: object) -> Callable[..., Any]:
        nonlocal left
        if event == "line" and frame.f_lineno == line:
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
        return on_line

    def on_call(frame: FrameType, _event: str, _arg: object) -> Callable[..., Any] | None:
        return on_line if frame.f_code is code else None

    sys.settrace(on_call)
    threading.settrace(on_call)


def write(directory: Path, flush: str, *, ack_early: bool) -> None:
    store = MessageStore.open(settings_of(directory, flush), files=SameDirectory())
    state = JsonStateFile(directory / "config" / "numbers.json")
    number = saved = 0
    while number < COUNT:
        acks: list[str] = []
        for _ in range(1 + number % 4):
            queue_id = number % QUEUES
            made = message(body_of(number), queue_id=queue_id, unique=f"U{number}", tags="t")
            if ack_early:
                # Where it would go, said before it is there.
                say(f"ack {queue_id} {number // QUEUES} {store.written} {number}")
            result = store.log.put(made)
            if not ack_early:
                acks.append(f"ack {queue_id} {result.queue_offset} {result.log_offset} {number}")
            number += 1
        if flush == "SYNC_FLUSH":
            store.request_flush()
            assert store.wait_durable(store.written, 10)
        for line in acks:
            say(line)
        store.dispatch()
        if number - saved >= SAVE_EVERY:
            saved = number
            state.save(f'{{"number":{number}}}')
            say(f"saved {number}")
            store._queue_flusher.flush(0)
    assert store.close()
    say("done")


def recover(directory: Path) -> None:
    store = MessageStore.open(settings_of(directory, "SYNC_FLUSH"), files=SameDirectory())
    assert store.close()
    say("done")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=("write", "recover"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("flush", nargs="?", default="SYNC_FLUSH")
    parser.add_argument("--at")
    parser.add_argument("--ack-early", action="store_true")
    options = parser.parse_args()
    if options.at:
        kill_at(options.at)
    if options.work == "write":
        write(options.directory, options.flush, ack_early=options.ack_early)
    else:
        recover(options.directory)


if __name__ == "__main__":
    main()
