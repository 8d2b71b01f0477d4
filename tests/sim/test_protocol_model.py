"""Sequences of requests, restarts and kills against a model; `protocol_model.py` has the story."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from tests import campaign
from tests.crash.power_cuts.recorded_disk import memory_folder
from tests.sim.protocol_model import (
    STEPS,
    GoesBack,
    LosesAnOffset,
    LosesASend,
    ProtocolModel,
    Server,
)

_CONTROL_SEQUENCES = 40


@pytest.fixture
def folder() -> Iterator[Path]:
    with memory_folder() as made:
        yield made


def hold(server: Server, sequences: int, *phases: Phase) -> None:
    """Run this number of sequences; raises the first error of a rule."""
    machine = type("Sequence", (ProtocolModel,), {"server": server})
    try:
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=sequences,
                stateful_step_count=STEPS,
                database=None,
                phases=phases,
                suppress_health_check=list(HealthCheck),
                print_blob=False,
                report_multiple_bugs=False,
            ),
        )
    finally:
        server.close()


def test_the_daemon_does_what_the_model_does(folder: Path, seed: int) -> None:
    print(f"seed {seed}")
    server = Server(folder)
    hold(server, campaign.size("protocol model"), Phase.generate, Phase.shrink)
    campaign.note(
        "protocol model",
        server.sequences,
        requests=server.requests,
        restarts=server.restarts,
        kills=server.kills,
    )
    assert server.sequences >= campaign.size("protocol model")
    assert server.kills
    assert server.restarts


@pytest.mark.parametrize(
    ("name", "liar"),
    [
        ("an acked send is not stored", LosesASend),
        ("a commit is not made", LosesAnOffset),
        ("a kill takes messages back", GoesBack),
    ],
)
def test_a_daemon_that_lies_is_caught(folder: Path, name: str, liar: type[Server]) -> None:
    caught = 0
    try:
        hold(liar(folder), _CONTROL_SEQUENCES, Phase.generate)
    except (AssertionError, ValueError, Flaky):  # a liar does not lie alike each time
        caught = 1
    campaign.note_control("protocol model", name, caught, 1)
    assert caught
