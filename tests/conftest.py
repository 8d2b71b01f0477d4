"""One seed for everything random in a run of the tests, printed first, given back to repeat it; and
how long each suite took, printed last."""

import os
import random
from collections import Counter

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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Where the time of a whole run goes."""
    times: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for one in reports:
            if isinstance(one, pytest.TestReport):
                times["/".join(one.fspath.split("/")[:2])] += one.duration
    if len(times) > 2:
        terminalreporter.section("time of each suite")
        for suite, seconds in times.most_common():
            minutes, rest = divmod(round(seconds), 60)
            terminalreporter.write_line(f"{minutes:3}:{rest:02} {suite}")


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """The run's seed. A test derives its own from it, so that tests do not shift each other."""
    return int(pytestconfig.getoption("--seed"))
