"""One seed for everything random in a run of the tests, printed first and last, given back to
repeat it; the drawn part of parametrised tests; and what each suite took, of time and processor."""

import gc
import os
import random
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import campaign, drawing, native_builds, parts, schedule


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seed", type=int, default=None, help="repeat a run: the seed it printed (or AEROBEE_SEED)"
    )
    parser.addoption(
        "--draw", choices=[drawing.ALL, drawing.PART, drawing.SIXTH], default=drawing.ALL,
        help="which of the dear tests run: all, or what the seed draws (tests/drawing.py)",
    )  # fmt: skip
    parser.addoption(
        "--begin-within", type=float, metavar="SECONDS", help="a test that begins later is skipped"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """The seed: the one of the process that has started this worker, the asked one, or any."""
    _keep_files_in_memory()
    # Its own limits, 200 ms an example and a second for ten of them to be drawn, fail a test on a
    # machine that does much else.
    slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=slow)
    hypothesis.settings.load_profile("untimed")
    config.addinivalue_line(
        "markers", "drawn(name): of the parameter sets the part that tests/campaign.py draws"
    )
    if os.environ.get(native_builds.VARIABLE):
        native_builds.use(Path(os.environ[native_builds.VARIABLE]))
    config.pluginmanager.register(schedule)
    parts.watch(config)
    seed = getattr(config, "workerinput", {}).get("seed", config.getoption("--seed"))
    if seed is None:
        seed = int(os.environ.get(campaign.SEED_VARIABLE) or random.randrange(10**9))
    # Daemons would warn of a variable that is no setting.
    os.environ.pop(campaign.SEED_VARIABLE, None)
    config.option.seed = seed
    campaign.set_seed(seed)
    drawing.set_drawn(config.getoption("--draw"), seed)
    if config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(seed)


#: A file system in memory, and what must be free there: a whole run has 2 to 4 GB at once.
MEMORY, MEMORY_BYTES = Path("/dev/shm"), 12 << 30
TEMP_ROOT_VARIABLE = "PYTEST_DEBUG_TEMPROOT"


def _keep_files_in_memory() -> None:
    """To make and delete the stores of thousands of tests costs time on a disk: unit tests take a
    sixth less without. Tests that are about a disk make one of their own; campaigns use it."""
    chosen = TEMP_ROOT_VARIABLE in os.environ or campaign.is_full()
    if not chosen and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES:
        os.environ[TEMP_ROOT_VARIABLE] = str(MEMORY)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """A worker of xdist is about to start: it gets the seed of all."""
    node.workerinput["seed"] = node.config.getoption("--seed")


def _headlines(config: pytest.Config) -> list[str]:
    sizes = "full" if campaign.is_full() else "quick"
    seed = config.getoption("--seed")
    repeat = f"repeat this run with --seed or {campaign.SEED_VARIABLE}"
    return [f"{sizes} sizes, seed {seed}: {repeat}", str(drawing.drawn)]


def pytest_report_header(config: pytest.Config) -> list[str]:
    return _headlines(config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The tests that this run takes; of tests marked `drawn` a part of the parameter sets."""
    groups: dict[tuple[str, str], list[pytest.Function]] = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("drawn")
        # A run of a part has draws for these, too.
        if mark is not None and drawing.drawn.kind != drawing.PART:
            assert isinstance(item, pytest.Function)
            what = item.nodeid.removesuffix(item.name) + item.originalname
            groups[mark.args[0], what].append(item)
    config.stash[drawing.COLLECTED] = [item.nodeid for item in items]
    left_out = {item for item in items if not drawing.drawn.takes(item.nodeid)}
    for (name, what), group in groups.items():
        sets = [_values(item) for item in group]
        stays = set(campaign.cover(name, sets, what))
        left_out.update(item for number, item in enumerate(group) if number not in stays)
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Ten thousand collected tests stay to the end. The garbage collector looks at them no more,
    which saves a third of the processor time of unit tests."""
    gc.collect()
    gc.freeze()


def _values(item: pytest.Function) -> dict[str, int]:
    """Which value of each parameter it has. By identity: values need not be hashable, and what the
    decorator was given is the same object in all of a test's parameter sets."""
    return {name: id(value) for name, value in item.callspec.params.items()}


_begun = time.monotonic()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A run that has to end in time begins no more tests."""
    within = item.config.getoption("--begin-within")
    if within is not None and time.monotonic() > _begun + within:
        pytest.skip("not begun in time")


_spent_s = sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the processor's time that this process and children that have ended took since the last
    report: the time of a broker or a driver counts for the test at which it ended."""
    global _spent_s
    report = yield
    before, _spent_s = _spent_s, sum(os.times()[:4])
    # xdist's workers send all members of a report, so this one comes along.
    report.__dict__["processor_s"] = _spent_s - before
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Where the time of a whole run goes, and how it is repeated."""
    times: Counter[str] = Counter()
    processor: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for one in reports:
            if isinstance(one, pytest.TestReport):
                suite = "/".join(one.fspath.split("/")[:2])
                times[suite] += one.duration
                for name in {suite, one.fspath}:
                    processor[name] += getattr(one, "processor_s", 0.0)
    if len(times) > 2:
        summed = ", summed over the workers" if config.getoption("numprocesses", None) else ""
        terminalreporter.section(f"time of each suite{summed}, and what it took of the processor")
        for suite, seconds in times.most_common():
            line = f"{_minutes(seconds)} {_minutes(processor.pop(suite))} {suite}"
            terminalreporter.write_line(line)
        terminalreporter.section("what takes most of the processor")
        for name, seconds in processor.most_common(25):
            terminalreporter.write_line(f"{_minutes(seconds)} {name}")
    _show_measured(terminalreporter)
    for line in _headlines(config):
        terminalreporter.write_line(line)


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes:3}:{rest:02}"


def _show_measured(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the lines that tests recorded as `measured`, at the end of a campaign."""
    lines = [
        str(value)
        for one in terminalreporter.stats.get("passed", [])
        for name, value in one.user_properties
        if name == "measured"
    ]
    if campaign.is_full() and lines:
        terminalreporter.section("measured")
        terminalreporter.write_line("\n".join(lines))


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """The run's seed. A test derives its own from it, so that tests do not shift each other."""
    return int(pytestconfig.getoption("--seed"))
