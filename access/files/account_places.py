"""Where RocketMQ keeps files of accounts, below its home."""

from __future__ import annotations

from pathlib import Path
from typing import Final

DEFAULT_FILE: Final = "conf/plain_acl.yml"
FOLDER: Final = "conf/acl"
#: mqadmin's own keys, which a broker and our commands sign with as well.
TOOLS_FILE: Final = "conf/tools.yml"


def tools_file(home: str | None) -> Path | None:
    """The file of keys below a home; None if there is no home, or no such file in it. A file that
    this user may not look for is named, so that reading it says why it cannot be read."""
    if not home:
        return None
    path = Path(home) / TOOLS_FILE
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return path
    return path
