"""Imports take most of the time of a command; here are bounds without a clock.

The goals: `--help` in 0.1 s of processor, a listing in 0.2 s, a daemon ready in 20 times the start
of a bare interpreter. A module in `heavy` costs milliseconds; the number of all bounds the rest.
Where a test fails, `python -X importtime -m aerobee.cli ...` shows who imports which module.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from typing import NamedTuple

import pytest

from aerobee.cli.imports import no_collections
from aerobee.cli.main import main

ROLES = {"aerobee.client.consuming", "aerobee.client.producing", "aerobee.client.public"}
#: Parsers and tools of other commands, and what is for a terminal, a page or a file alone.
OTHERS = {
    *("rich", "lark", "structlog", "prometheus_client", "yaml", "cryptography", "click"),
    *("aerobee.pipeline.jobs.common.job_result", "aerobee.pipeline.launch", "aerobee.cli.store"),
    *("aerobee.cli.bench", "http", "email", "multiprocessing", "unittest", "difflib", "tomllib"),
    *("importlib.metadata", "tempfile", "tarfile"),
    *("shtab", "argparse_manpage", "aerobee.cli.doctor"),
}
#: Modules that an event loop and a client bring.
LOOP = {"asyncio", "ssl", "socket", "logging", "msgspec", "dataclasses", "inspect", "json"}
SERVER = {"uvloop", "h11", "aerobee.store", "aerobee.broker", "aerobee.nameserver"}


class Bound(NamedTuple):
    """The modules that a command must not import, and how many modules it may import."""

    words: str
    modules: int
    heavy: set[str]


BOUNDS = [
    Bound("--help", 110, OTHERS | ROLES | LOOP | SERVER | {"pathlib", "datetime"}),
    Bound("--version", 120, OTHERS | ROLES | LOOP | {"uvloop", "h11", "aerobee.broker"}),
    Bound("topic list --help", 110, OTHERS | ROLES | LOOP | SERVER | {"pathlib", "datetime"}),
    Bound("config show", 140, OTHERS | ROLES | SERVER | LOOP - {"json"}),
    Bound("config check pyproject.toml", 145, OTHERS - {"tomllib", "difflib"} | ROLES | SERVER),
    *(
        Bound(words, 300, OTHERS | ROLES | SERVER | {"hashlib", "hmac", "ctypes"})
        for words in ("topic list", "topic describe a", "group list", "group describe a")
    ),
    Bound("offset show a", 300, OTHERS | ROLES | SERVER | {"hashlib", "hmac"}),
    *(
        Bound(words, 310, OTHERS - {"difflib"} | ROLES | SERVER | {"hashlib", "hmac", "rich"})
        for words in ("status", "client list", "topic explain a")
    ),
    Bound("broker config", 300, OTHERS | ROLES | SERVER | {"hashlib", "hmac"}),
    Bound("shards", 165, OTHERS - {"http", "email"} | ROLES | SERVER | {"asyncio", "msgspec"}),
]
# Nobody listens there, so a client command ends once it has imported what it starts with.
NOBODY = "127.0.0.1:1"
IMPORTED = """
import sys
from aerobee.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print("imported", *sys.modules)
"""
READY = """
import os, signal, sys
from aerobee.cli.imports import no_collections
from aerobee.cli.main import main
def ready(*_):
    print("imported", *sys.modules)
    os.kill(os.getpid(), signal.SIGTERM)
from aerobee.cli import serve
if sys.argv[1] == "serve":
    from aerobee.broker.lifecycle import broker_process as process
    process._say_ready = ready
else:
    serve._say_ready = ready
main(sys.argv[1:])
"""


def test_the_collector_is_as_it_was_once_the_imports_are_done() -> None:
    assert gc.isenabled()
    frozen = gc.get_freeze_count()
    with no_collections():
        assert not gc.isenabled()
        with no_collections():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    assert main(["config", "explain", "listenPort"]) == 0
    # The run's own frozen objects may go meanwhile (tests/conftest.py); none may come.
    assert gc.get_freeze_count() <= frozen, "only a process of its own keeps what it has"


def imported(code: str, words: str, **environ: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", code, *words.split()],
        env=os.environ | environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    last = done.stdout.splitlines()[-1:]
    assert last, done.stderr
    assert last[0].startswith("imported "), done.stderr
    return set(last[0].split())


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: bound.words)
def test_a_command_imports_nothing_that_it_does_not_need(bound: Bound) -> None:
    found = imported(IMPORTED, bound.words, NAMESRV_ADDR=NOBODY)
    assert found & bound.heavy == set()
    assert len(found) <= bound.modules


@pytest.mark.parametrize(
    "bound",
    [
        # All that serves slaves, and a slave, is imported only where the port for slaves opens.
        Bound("serve --dev", 608, OTHERS - {"tempfile"} | {"aerobee.client", "cProfile"}),
        Bound(
            "nameserver --port 0",
            345,
            OTHERS
            | {"aerobee.client", "h11", "aerobee.broker.core", "aerobee.store.message_store"},
        ),
    ],
    ids=lambda bound: bound.words,
)
def test_a_daemon_that_is_ready_has_imported_nothing_that_it_does_not_need(bound: Bound) -> None:
    found = imported(READY, bound.words)
    assert found & bound.heavy == set()
    assert len(found) <= bound.modules
