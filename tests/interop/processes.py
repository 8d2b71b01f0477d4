"""Child processes of the interop tests: started, read line by line, and always ended by their id.

Everything printed is kept in a file of the test's folder, so that a failing test can show what a
broker or a client said; JSON lines on standard output are read by one thread a process.
"""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Line = dict[str, Any]


class Child:
    """A running process with its own log file; ended, at the latest, by `end`."""

    def __init__(
        self,
        argv: list[str],
        log: Path,
        env: dict[str, str] | None = None,
        *,
        stdin: bool = False,
        lines: bool = False,
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.name = log.stem
        self.log = log
        with log.open("ab") as sink:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE if lines else sink,
                stderr=sink,
                env={**os.environ, **(env or {})},
            )
        self.lines: list[Line] = []
        self._arrived = threading.Condition()
        if lines:
            self._reader = threading.Thread(target=self._read, daemon=True)
            self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for raw in self.process.stdout:
            if raw.startswith(b"{"):
                line = json.loads(raw)
                with self._arrived:
                    self.lines.append(line)
                    self._arrived.notify_all()
            else:
                with self.log.open("ab") as sink:
                    sink.write(raw)

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def wait_lines(self, enough: Callable[[list[Line]], bool], timeout_s: float) -> list[Line]:
        """Waits until the lines so far are enough; raises AssertionError with the log otherwise."""
        deadline = time.monotonic() + timeout_s
        with self._arrived:
            while not enough(self.lines):
                left = deadline - time.monotonic()
                if left <= 0 or (not self.running and not self._reader.is_alive()):
                    raise AssertionError(
                        f"{self.name}: {len(self.lines)} lines are not enough\n{self.tail()}"
                    )
                self._arrived.wait(min(left, 0.2))
            return list(self.lines)

    def wait(self, timeout_s: float) -> list[Line]:
        """Waits for a clean exit, and returns every line; raises AssertionError otherwise."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError(f"{self.name} did not end\n{self.tail()}") from None
        if self.process.stdout is not None:
            self._reader.join(10)
        assert code == 0, f"{self.name} ended with {code}\n{self.tail()}"
        return self.lines

    def stop(self, timeout_s: float = 30) -> int:
        """SIGTERM, then waits for the exit code."""
        self.process.terminate()
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError(f"{self.name} ignored SIGTERM\n{self.tail()}") from None

    def end(self) -> None:
        """SIGKILL, if it still runs."""
        if self.running:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def tail(self, size: int = 3000) -> str:
        said = self.log.read_text(errors="replace")[-size:]
        return f"--- {self.log}\n{said}\n--- last lines {self.lines[-3:]}"


class Dialogue(Child):
    """A child that answers each line of its input with one line."""

    def __init__(
        self, argv: list[str], log: Path, env: dict[str, str] | None = None, *, start_s: float = 30
    ) -> None:
        super().__init__(argv, log, env, stdin=True, lines=True)
        self.wait_lines(lambda lines: len(lines) >= 1, start_s)
        self._answered = 1

    def ask(self, question: str, timeout_s: float = 30) -> Line:
        assert self.process.stdin is not None
        self.process.stdin.write(question.encode() + b"\n")
        self.process.stdin.flush()
        self._answered += 1
        return self.wait_lines(lambda lines: len(lines) >= self._answered, timeout_s)[-1]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.wait(30)


def wait_until(
    condition: Callable[[], bool], timeout_s: float, what: str, every_s: float = 0.05
) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"gave up after {timeout_s} s: {what}")
        time.sleep(every_s)
