"""Running `aerobee store ...` by its entry point: in this process, or as one of its own."""

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from aerobee.cli.main import main


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


def store(*arguments: str | Path) -> Done:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(["store", *map(str, arguments)])
        except SystemExit as ended:  # argparse, for usage
            code = int(ended.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


def store_process(*arguments: str | Path) -> Done:
    done = subprocess.run(
        [sys.executable, "-m", "aerobee.cli", "store", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)
