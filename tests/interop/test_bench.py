"""`aerobee bench` against the real Java broker: its figures are those of messages it holds."""

import json
from pathlib import Path
from typing import Any

import pytest

from aerobee.cli.main import main

from .brokers import Broker

SHORT = ("--warm-up", "0", "--duration", "2", "--processes", "1", "--timeout", "30")


def bench(broker: Broker, file: Path, *words: str) -> dict[str, Any]:
    own = (*SHORT, "-n", broker.name_server, "--json", str(file))
    assert main(["bench", *words, *own]) == 0
    document: dict[str, Any] = json.loads(file.read_text())
    assert document["aerobee"]["failures"] == []
    return document


@pytest.mark.parametrize(
    "words",
    [
        ("send", "--connections", "4", "--in-flight", "4"),
        ("batch", "--batch", "16", "--connections", "2"),
        ("e2e", "--rate", "300", "--connections", "2", "--consumers", "2"),
    ],
    ids=lambda words: words[0],
)
def test_a_java_broker_holds_what_it_acknowledged(
    java_broker: Broker, tmp_path: Path, words: tuple[str, ...]
) -> None:
    document = bench(java_broker, tmp_path / "result.json", *words)
    totals = document["aerobee"]["totals"]
    assert totals["acknowledged"] == totals["stored"] > 0
    assert totals["received"] == (totals["acknowledged"] if words[0] == "e2e" else 0)
    [broker] = document["aerobee"]["brokers"].values()
    assert broker["version"].startswith("V4_9")
    assert broker["flushDiskType"] == "ASYNC_FLUSH"


def test_a_java_broker_is_pulled_from(java_broker: Broker, tmp_path: Path) -> None:
    words = ("pull", "--messages", "500", "--connections", "2")
    document = bench(java_broker, tmp_path / "result.json", *words)
    assert document["aerobee"]["totals"]["received"] > 500
