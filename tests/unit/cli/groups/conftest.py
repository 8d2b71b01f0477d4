"""A broker for the tests of commands about groups, which says soon that a queue is stuck."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import aerobee.broker.core
from aerobee import testing
from aerobee.cli.main import main
from aerobee.client import blocking_roles
from aerobee.testing import RunningBroker
from tests.ports import free_port
from tests.unit.cli.groups.group_support import Run


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with ExitStack() as stack:
        # It has read these when it runs: other tests see them no more.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(aerobee.broker.core, "STUCK_LOOK_S", 0.05)
            patch.setattr(aerobee.broker.core, "STUCK_S", 0.2)
            broker = stack.enter_context(
                testing.broker(broker_name="bee", http_enabled=True, http_port=free_port())
            )
        yield broker


@pytest.fixture
def run(running: RunningBroker, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a client command against the broker: (exit code, standard output, standard error)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([*arguments, "-n", running.name_server])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def admin(running: RunningBroker) -> Iterator[blocking_roles.Admin]:
    with blocking_roles.Admin(running.name_server) as admin:
        yield admin
