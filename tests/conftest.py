"""One seed for everything random in a run of the tests: printed first, given back to repeat it."""

import os
import random

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seed", type=int, default=None, help="repeat a run: the seed it printed (or AEROBEE_SEED)"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--seed") is None:
        config.option.seed = int(os.environ.get("AEROBEE_SEED") or random.randrange(10**9))


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed {config.getoption('--seed')}: repeat this run with --seed or AEROBEE_SEED"


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """The run's seed. A test derives its own from it, so that tests do not shift each other."""
    return int(pytestconfig.getoption("--seed"))
