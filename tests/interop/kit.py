"""Where the peers brought by setup.sh lie, and which of them are here."""

import shutil
from pathlib import Path

from tests.parts import need

HERE = Path(__file__).parent
CACHE = HERE.parent.parent / ".cache" / "interop"
HOME = CACHE / "home"  # clients write their logs below their user's home
JAVA_BROKER = "4.9.7"
JAVA_SLAVE = "5.3.3"  # a broker of RocketMQ 5, which takes our log
JAVA_CLIENTS = ("4.9.8", "4.4.0", "5.5.0")
FEATURE_CLIENTS = ("4.9.8", "5.5.0")

#: The needs by peer: the part of setup.sh that brings it, the stamp of that, a tool that it needs.
NEEDS = {
    "java-broker": ("java", f"jars-broker-{JAVA_BROKER}", "java"),
    "java-slave": ("java5", f"jars-broker-{JAVA_SLAVE}", "java"),
    **{f"java-{version}": ("java", f"peer-{version}", "java") for version in JAVA_CLIENTS},
    **{f"features-{one}": ("java", f"features-{one}", "java") for one in FEATURE_CLIENTS},
    "go": ("go", "go", ""),
    "node": ("node", "node", "node"),
    "cpp": ("cpp", "cpp", ""),
    "rust": ("rust", "rust", ""),
}


def require(peer: str) -> None:
    """Skips or fails the test when a peer is not here."""
    if peer in NEEDS:
        part, _, _ = NEEDS[peer]
        need(part, missing=lambda: missing(peer))


def missing(peer: str) -> str | None:
    """The reason why a peer cannot be used, in one line; None when it is ready."""
    if peer not in NEEDS:
        return None
    _, stamp, tool = NEEDS[peer]
    if tool and shutil.which(tool) is None:
        return f"{peer}: no {tool} on this machine"
    if not (CACHE / "stamps" / stamp).exists():
        return f"{peer}: not set up, run tests/interop/setup.sh"
    return None
