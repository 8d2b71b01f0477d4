"""Which form of the hot path runs, as AEROBEE_NATIVE wishes, and who is told."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from aerobee.native.form import VARIABLE, is_built
from tests.service.kit import Served, Wire, aerobee, metric, wait_until

Serve = Callable[..., Served]
EX_CONFIG = 78
# A process in which the compiled form does not load, be it there or not.
UNBUILT = (
    "import sys; sys.modules['aerobee.native.requests'] = None\n"
    "from aerobee.cli.main import main; sys.exit(main())"
)


@pytest.mark.parametrize("wish", ["off", "auto", "required"])
def test_log_and_metrics_say_which_form_runs(serve: Serve, wish: str) -> None:
    if wish == "required" and not is_built():
        pytest.skip("the compiled form was not built here")
    form = "compiled" if is_built() and wish != "off" else "plain"
    daemon = serve(environ={VARIABLE: wish}).ready()
    # The log has a thread of its own, which may be late.
    wait_until(lambda: f'"form": "{form}"' in daemon.log, "the log says which form runs")
    with Wire(daemon.port) as wire:
        assert wire.send_message("T", b"by either").code == 0
    page = daemon.get("/metrics")[1].decode()
    (line,) = (line for line in page.splitlines() if line.startswith("aerobee_build_info{"))
    assert f'form="{form}"' in line
    assert metric(daemon, "aerobee_ready") == 1


def test_without_the_compiled_form_auto_runs_the_plain_one(serve: Serve) -> None:
    program = [sys.executable, "-c", UNBUILT]
    daemon = serve(environ={VARIABLE: "auto"}, program=program).ready()
    assert '"form": "plain"' in daemon.log
    warned = "the compiled form is there and does not load, plain Python runs" in daemon.log
    assert warned == is_built()


def test_without_the_compiled_form_required_ends_the_start(serve: Serve) -> None:
    daemon = serve(environ={VARIABLE: "required"}, program=[sys.executable, "-c", UNBUILT])
    assert daemon.wait() == EX_CONFIG
    what = "is there and does not load" if is_built() else "was not built"
    assert f"{VARIABLE}=required, but the compiled form {what}" in daemon.log
    assert "Traceback" not in daemon.log


def test_a_wish_that_is_none_ends_the_start(serve: Serve) -> None:
    daemon = serve(environ={VARIABLE: "yes"})
    assert daemon.wait() == EX_CONFIG
    assert f"aerobee: {VARIABLE} is 'yes', it may be one of auto, off, required" in daemon.log


def version(wish: str) -> str:
    done = subprocess.run(
        [*aerobee(), "--version"],
        env=os.environ | {VARIABLE: wish},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_version_says_which_form_would_run() -> None:
    assert f"({'with' if is_built() else 'without'} the compiled hot path)" in version("auto")
    assert f"(without the compiled hot path: {VARIABLE}=off)" in version("off")
    assert "it may be one of auto, off, required" in version("yes")
