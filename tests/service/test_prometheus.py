"""Claims about the scrape, made with a real Prometheus and the files in deploy/."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.service.kit import Served, Wire, tool, wait_until

PACKAGE = "prometheus"
PROJECT = Path(__file__).parents[2]
DEPLOY = PROJECT / "deploy"
#: Rules, and `promtool`'s cases for them.
ALERT_TESTS = {"alerts.yml": "alerts_test.yml", "alerts-streams.yml": "alerts_streams_test.yml"}
NAMES = re.compile(r"\b(?:aerobee|rocketmq)_[a-z0-9_]+")


class Prometheus:
    """A server with the shipped configuration, pointed at one daemon and in a hurry."""

    def __init__(self, folder: Path, http_port: int) -> None:
        program = tool("prometheus", PACKAGE)
        self._port = free_port()
        folder.mkdir()
        shutil.copy(DEPLOY / "alerts.yml", folder)
        shipped = (DEPLOY / "prometheus.yml").read_text()
        config = shipped.replace("127.0.0.1:5557", f"127.0.0.1:{http_port}").replace("15s", "1s")
        assert config.count(str(http_port)) == 1
        (folder / "prometheus.yml").write_text(config)
        self._log = (folder / "log").open("wb")
        self.process = subprocess.Popen(
            [
                program,
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{self._port}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        wait_until(self.listens, "prometheus is ready")

    def listens(self) -> bool:
        assert self.process.poll() is None, "prometheus ended"
        try:
            self._get("/-/ready")
        except OSError:
            return False
        return True

    def api(self, path: str, **query: str) -> dict[str, object]:
        answer = json.loads(self._get(f"/api/v1/{path}?{urllib.parse.urlencode(query)}"))
        assert answer["status"] == "success", answer
        data: dict[str, object] = answer["data"]
        return data

    def value(self, expression: str) -> float | None:
        """The one value of an instant query, None when there is no such series yet."""
        result = self.api("query", query=expression)["result"]
        assert isinstance(result, list)
        return float(result[0]["value"][1]) if result else None

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self._log.close()

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=10) as answer:
            body: bytes = answer.read()
            return body


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Callable[[Served], Prometheus]]:
    started: list[Prometheus] = []

    def start(daemon: Served) -> Prometheus:
        started.append(Prometheus(tmp_path / "prometheus", daemon.http_port))
        return started[-1]

    yield start
    for server in started:
        server.close()


def promtool(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [tool("promtool", PACKAGE), *arguments]
    return subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=60, check=False
    )


def test_prometheus_scrapes_what_clients_did(
    serve: Callable[..., Served], prometheus: Callable[[Served], Prometheus]
) -> None:
    daemon = serve().ready()
    with Wire(daemon.port) as wire:
        for number in range(7):
            answer = wire.send_message("ScrapedTopic", b"body %d" % number)
            assert answer.code == 0, answer.remark
    server = prometheus(daemon)
    expression = 'rocketmq_messages_in_total{topic="ScrapedTopic",message_type="normal"}'
    wait_until(lambda: server.value(expression) == 7, expression)
    assert server.value("aerobee_ready") == 1
    assert server.value("process_resident_memory_bytes") is not None
    assert server.value('aerobee_store_mark_bytes{mark="written"}') != 0
    targets = server.api("targets")["activeTargets"]
    assert isinstance(targets, list)
    assert [target["lastError"] for target in targets] == [""]


def test_every_alert_can_be_evaluated(
    serve: Callable[..., Served], prometheus: Callable[[Served], Prometheus]
) -> None:
    server = prometheus(serve().ready())

    def rules() -> list[dict[str, str]]:
        groups = server.api("rules")["groups"]
        assert isinstance(groups, list)
        return [rule for group in groups for rule in group["rules"]]

    wait_until(lambda: rules() and all(r["health"] != "unknown" for r in rules()), "rules ran")
    assert [rule["name"] for rule in rules() if rule["health"] != "ok"] == []
    assert [rule["name"] for rule in rules() if rule["state"] == "firing"] == []


def test_alerts_ask_only_for_families_that_exist(serve: Callable[..., Served]) -> None:
    _, page = serve().ready().get("/metrics")
    families = set(re.findall(r"^# TYPE (\S+) ", page.decode(), re.MULTILINE))
    rules = (DEPLOY / "alerts.yml").read_text()
    asked = {name.removesuffix("_bucket") for name in NAMES.findall(rules)}
    assert asked
    assert asked - families == set()


def test_manual_lists_the_families_there_are(serve: Callable[..., Served]) -> None:
    with_pool = ("flushDiskType=ASYNC_FLUSH", "transientStorePoolEnable=true")
    options = [word for setting in with_pool for word in ("--set", setting)]
    _, page = serve(*options).ready().get("/metrics")
    families = re.findall(r"^# HELP (\S+) (.*)\n# TYPE \S+ (\S+)$", page.decode(), re.MULTILINE)
    ours = {
        (name, kind, text)
        for name, text, kind in families
        if name.startswith(("aerobee_", "rocketmq_"))
    }
    manual = (PROJECT / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(\S+)` \| (\w+) \| .*? ?\| (.*) \|$", manual, re.MULTILINE)
    assert sorted(ours - set(rows)) == []
    assert sorted(set(rows) - ours) == []


def test_page_is_accepted_by_promtool(serve: Callable[..., Served]) -> None:
    daemon = serve().ready()
    _, page = daemon.get("/metrics")
    result = promtool("check", "metrics", text=page.decode())
    # 1 is a page that cannot be read; 3 is remarks on names, and RocketMQ's are as they are.
    assert result.returncode in (0, 3), result.stderr
    remarks = [line for line in result.stderr.splitlines() if not line.startswith("rocketmq_")]
    assert remarks == []


def test_shipped_files_are_accepted_by_promtool() -> None:
    assert promtool("check", "config", str(DEPLOY / "prometheus.yml")).returncode == 0
    for rules in ALERT_TESTS:
        result = promtool("check", "rules", str(DEPLOY / rules))
        assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(("rules", "cases"), ALERT_TESTS.items())
def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path, rules: str, cases: str) -> None:
    shutil.copy(DEPLOY / rules, tmp_path)
    shutil.copy(Path(__file__).with_name(cases), tmp_path)
    result = promtool("test", "rules", str(tmp_path / cases))
    assert result.returncode == 0, result.stdout + result.stderr


def test_what_is_shipped_for_streams_asks_for_metrics_of_their_listener() -> None:
    listener = (PROJECT / "pipeline" / "listener.py").read_text()
    names = re.findall(r'(?:gauge|counter)\(\s*"(\w+)"', listener)
    kept = {f"aerobee_stream_{name}" for name in names}
    dashboard = json.loads((DEPLOY / "dashboard-streams.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked.append((DEPLOY / "alerts-streams.yml").read_text())
    found = {one.removesuffix("_total") for one in re.findall(r"aerobee_stream_\w+", str(asked))}
    assert found <= kept
    assert len(found) >= 6
