"""mqadmin of RocketMQ 5: one process a command."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.interop.kit import CACHE, JAVA_SLAVE
from tests.interop.peers import JAVA_FLAGS

#: Peers that bring the tools of a release, by the folder of their jars.
TOOLS = {f"broker-{JAVA_SLAVE}": "java-slave", "client-5.5.0": "java-5.5.0"}


def mqadmin(jars: str, folder: Path, *words: str) -> str:
    """The output of one command, by the program of RocketMQ's tools."""
    done = subprocess.run(
        [
            "java", *JAVA_FLAGS, f"-Duser.home={folder}", f"-Drocketmq.home.dir={folder}",
            "-cp", f"{CACHE}/java/{jars}/*",
            "org.apache.rocketmq.tools.command.MQAdminStartup", *words,
        ],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
