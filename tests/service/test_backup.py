"""A backup beside a running daemon: what is restored of it is the acknowledged history."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from aerobee.client.blocking_roles import Producer
from aerobee.client.message import Message
from tests.service.kit import Served, aerobee, wait_until
from tests.service.test_damage import TOPIC, body_of, pull_all


def store(*arguments: str) -> dict[str, object]:
    done = subprocess.run(
        [*aerobee(), "store", *arguments, "--json", "-q"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_backup_under_load_is_served_as_the_acknowledged_history(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    daemon = serve().ready()
    acknowledged: list[bytes] = []
    enough = threading.Event()

    def produce() -> None:
        with Producer(f"127.0.0.1:{daemon.name_server_port}") as producer:
            while not enough.is_set():
                body = body_of(len(acknowledged))
                producer.send(Message(TOPIC, body), key="one queue")
                acknowledged.append(body)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        wait_until(lambda: len(acknowledged) > 200, "messages")
        target = str(tmp_path / "target")
        first = store("backup", str(daemon.store), target)
        before = len(acknowledged)
        second = store("backup", str(daemon.store), target)
    finally:
        enough.set()
        thread.join()
    assert int(str(second["mark"])) > int(str(first["mark"]))
    assert store("verify-backup", target)["sound"] is True
    again = tmp_path / "again" / "store"
    assert store("restore", target, str(again))["mark"] == second["mark"]
    assert store("verify", str(again))["sound"] is True
    found = pull_all(serve(folder="again").ready())
    assert len(found) >= before
    assert found == acknowledged[: len(found)]
