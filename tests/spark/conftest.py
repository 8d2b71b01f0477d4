"""One Spark driver a version for a worker's part of the run, and brokers for it: ours as a daemon,
and Java's.

The newest version runs all tests; the others do in a campaign. The versions that the lakes'
packages support, which are older, run those of tests/spark/tables/test_lake.py.

AEROBEE_SPARK_VERSION (`4.3`, or several with blanks between) narrows the versions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from aerobee.native.form import VARIABLE
from tests import campaign
from tests.interop.brokers import Broker
from tests.interop.conftest import make_broker
from tests.parts import need
from tests.pythons import FORMS
from tests.spark.kit import VERSIONS, Driver, missing, python_of, whole_versions
from tests.spark.tables.lakes import LAKES, Lake
from tests.wheels import build


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out: set[pytest.Item] = set()
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.spark)
            if not _is_run(item):
                left_out.add(item)
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def _is_run(item: pytest.Item) -> bool:
    """Whether it is of this run's size, and its version of PySpark, if it names a version, runs
    it."""
    assert isinstance(item, pytest.Function)
    if item.get_closest_marker("campaign") is not None:
        return campaign.is_full()
    params = item.callspec.params if hasattr(item, "callspec") else {}
    version = params.get("driver") or params.get("version") or params.get("pair", (None,))[0]
    return version in (None, *whole_versions())


def require(version: str) -> None:
    """Skips, or fails in CI, without that version of PySpark."""
    need(f"spark-{version}", missing=lambda: missing(version))


def require_connect(version: str) -> None:
    """Skips, or fails in CI, without that version of PySpark or without Spark Connect's
    packages."""
    need(f"spark-{version}", missing=lambda: missing(version) or _without_connect(version))


def _without_connect(version: str) -> str | None:
    packages = next(python_of(version).parent.parent.glob("lib/python3*/site-packages"))
    if (packages / "grpc").is_dir():
        return None
    return f"PySpark {version}: set up without grpcio (requirements/spark-{version}.txt)"


@pytest.fixture(scope="session")
def driver_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Driver]]:
    """The run's one driver of a version; a test that kills it or its JVM has another from the next
    call on."""
    made: dict[str, Driver] = {}

    def get(version: str) -> Driver:
        if version in made and not made[version].answers():
            made.pop(version).kill()
        if version not in made:
            require(version)
            made[version] = Driver(version, tmp_path_factory.mktemp("spark"))
        return made[version]

    yield get
    with ThreadPoolExecutor() as pool:
        list(pool.map(Driver.close, made.values()))


@pytest.fixture(params=VERSIONS, ids=[f"spark-{one}" for one in VERSIONS])
def driver(request: pytest.FixtureRequest, driver_of: Callable[[str], Driver]) -> Driver:
    """A driver of each version; tests keep apart by topic, view and checkpoint."""
    return driver_of(request.param)


@dataclass(frozen=True, slots=True)
class Pair:
    """The driver that reads, and the broker that it reads from."""

    driver: Driver
    broker: Broker

    @property
    def name_server(self) -> dict[str, str]:
        """The one option that every read has."""
        return {"nameServer": self.broker.name_server}


# Each version from our broker, one of them from Java's: nothing there depends on both at once.
PAIRS = [*((version, "our") for version in VERSIONS), (VERSIONS[0], "java")]


@pytest.fixture(params=PAIRS, ids=[f"spark-{version}-{kind}" for version, kind in PAIRS])
def pair(request: pytest.FixtureRequest, driver_of: Callable[[str], Driver]) -> Pair:
    version, kind = request.param
    return Pair(driver_of(version), request.getfixturevalue(f"{kind}_broker"))


@pytest.fixture
def newest(driver_of: Callable[[str], Driver]) -> Driver:
    """For what does not differ between versions."""
    return driver_of(VERSIONS[0])


@pytest.fixture(scope="session")
def lake_of(
    driver_of: Callable[[str], Driver], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Lake]]:
    """A format's driver, on the newest Spark that its package supports; one for the run."""
    made: dict[str, Lake] = {}

    def get(kind: str) -> Lake:
        if kind == "parquet":
            return Lake(kind, driver_of(VERSIONS[0]))
        if kind not in made:
            need(f"lake-{kind}", missing=lambda: missing(kind))
            folder = tmp_path_factory.mktemp(kind)
            made[kind] = Lake(kind, Driver(kind, folder, conf=LAKES[kind].settings()))
        return made[kind]

    yield get
    for one in made.values():
        one.driver.close()


@pytest.fixture(params=sorted(LAKES))
def lake(request: pytest.FixtureRequest, lake_of: Callable[[str], Lake]) -> Lake:
    """Each format, on the draws that it has (tests/drawing.py)."""
    return lake_of(request.param)


@pytest.fixture
def new_driver(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    """Starts a driver of a test's own, which may be killed (version, **options)."""
    made: list[Driver] = []

    def make(version: str = VERSIONS[0], **options: object) -> Driver:
        require(version)
        folder = tmp_path / f"driver-{len(made)}"
        made.append(Driver(version, folder, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.kill()


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plain one, built from the working tree as it would be published: a job's archive, from
    which nothing compiled can be imported."""
    folder = tmp_path_factory.mktemp("wheel")
    return build("wheel", folder, Path(sys.executable), {VARIABLE: FORMS["plain"]})


@pytest.fixture(scope="session")
def our_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    running = make_broker("our", tmp_path_factory.mktemp("our-broker")).start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def java_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    running = make_broker("java", tmp_path_factory.mktemp("java-broker")).start()
    yield running
    running.kill()  # nobody looks at its files; a clean stop takes it five seconds


@pytest.fixture
def new_broker(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Makes brokers of one test (kind, name, **options), not started; ends those still running."""
    made: list[Broker] = []

    def make(kind: str = "our", name: str = "broker", **options: object) -> Broker:
        made.append(make_broker(kind, tmp_path / name, **options))
        return made[-1]

    yield make
    for one in made:
        one.kill()
