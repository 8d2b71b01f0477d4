"""A server of S3 for a test: S3Proxy over a directory, with one bucket."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from tests.interop.processes import Child, wait_until
from tests.parts import need
from tests.ports import free_port
from tests.spark.kit import ROOT
from tests.tools import SHORT_LIVED_JAVA

JARS = ROOT / ".cache" / "s3"
BUCKET = "lake"
KEY, SECRET = "key", "topsecret"
_START_S = 120


class S3Server:
    """Where one listens."""

    def __init__(self, port: int) -> None:
        self.host = f"127.0.0.1:{port}"

    def uri(self, path: str) -> str:
        """For pyarrow."""
        return (
            f"s3://{KEY}:{SECRET}@{BUCKET}/{path}?scheme=http&endpoint_override={self.host}"
            "&region=us-east-1"
        )

    def of_spark(self) -> dict[str, str]:
        """Settings of a driver."""
        settings = {
            "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
            "fs.s3a.endpoint": f"http://{self.host}",
            "fs.s3a.endpoint.region": "us-east-1",
            "fs.s3a.path.style.access": "true",
            "fs.s3a.access.key": KEY,
            "fs.s3a.secret.key": SECRET,
        }
        jars = ",".join(str(path) for path in sorted((JARS / "client").glob("*.jar")))
        found = {f"spark.hadoop.{name}": value for name, value in settings.items()}
        return found | {"spark.jars": jars}


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """A server over an empty directory in `folder`, until the end of the block."""
    need("s3", missing=_missing)
    port = free_port()
    (folder / "data" / BUCKET).mkdir(parents=True)
    (folder / "server.conf").write_text(
        f"s3proxy.authorization=aws-v2-or-v4\ns3proxy.endpoint=http://127.0.0.1:{port}\n"
        f"s3proxy.identity={KEY}\ns3proxy.credential={SECRET}\n"
        f"jclouds.provider=filesystem-nio2\njclouds.filesystem.basedir={folder / 'data'}\n"
    )
    # Otherwise it writes down every byte.
    (folder / "log.xml").write_text(
        '<configuration><appender name="log" class="ch.qos.logback.core.ConsoleAppender">'
        "<encoder><pattern>%level %msg%n</pattern></encoder></appender>"
        '<root level="WARN"><appender-ref ref="log"/></root></configuration>'
    )
    argv = ["java", *SHORT_LIVED_JAVA, f"-Dlogback.configurationFile={folder / 'log.xml'}"]
    argv += ["-cp", f"{JARS / 'server'}/*", "org.gaul.s3proxy.Main"]
    child = Child([*argv, "--properties", str(folder / "server.conf")], folder / "s3.log")
    try:
        wait_until(lambda: _answers(port, child), _START_S, "S3 server listens")
        yield S3Server(port)
    finally:
        child.end()


def _missing() -> str | None:
    if shutil.which("java") is None:
        return "an S3 server needs Java: there is none on this machine"
    if not (JARS / ".made-from").exists():
        return "S3 server: not set up, run tests/spark/s3/setup.sh"
    return None


def _answers(port: int, child: Child) -> bool:
    assert child.running, child.tail()
    try:
        urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
    except HTTPError:
        return True  # it wants a signature
    except (URLError, OSError):
        return False
    return True
