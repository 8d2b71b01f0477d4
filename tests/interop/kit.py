"""Where the parts brought by setup.sh lie, and which of them are here."""

import os
import shutil
from pathlib import Path

HERE = Path(__file__).parent
CACHE = HERE.parent.parent / ".cache" / "interop"
HOME = CACHE / "home"  # clients write their logs below their user's home
JAVA_BROKER = "4.9.7"
JAVA_CLIENTS = ("4.9.8", "4.4.0", "5.5.0")

STAMPS = {
    "java-broker": (f"jars-broker-{JAVA_BROKER}", "java"),
    **{f"java-{version}": (f"peer-{version}", "java") for version in JAVA_CLIENTS},
    "go": ("go", ""),
    "node": ("node", "node"),
    "cpp": ("cpp", ""),
}


def missing(part: str) -> str | None:
    """What keeps a part from being used, in one line; None when it is ready."""
    if part not in STAMPS:
        return None
    stamp, tool = STAMPS[part]
    if tool and shutil.which(tool) is None:
        return f"{part}: no {tool} on this machine"
    if not (CACHE / "stamps" / stamp).exists():
        return f"{part}: not set up, run tests/interop/setup.sh"
    return None


def must_not_skip() -> bool:
    return os.environ.get("CI") == "true"
