"""Settings that requests have changed, and the file below the store that keeps them.

Where `admin.remote_config` is on, administrators may change by a request what a reload may change
(`Setting.live`): numbers, switches, times, never a path or a host. The file is ours alone, so that
the broker's own file stays as its operator wrote it; it is TOML with our own names. It counts above
the broker's file and below environment and command line: what is fixed there stays fixed. A line
that is taken out of it is undone by the next reload.

`remote_given` reads it; `remote_text` is its next content. Reading and writing is done on a thread.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from aerobee.config.errors import ConfigError
from aerobee.config.loading.value_sources import Given, read_file
from aerobee.config.model import BY_FULL_KEY
from aerobee.config.settings.setting import toml_value

FILE_NAME: Final = "remote.toml"
#: The place of a value that a request asks for, and that is in no file yet.
REQUEST: Final = "the request"
WHY_NOT: Final = (
    "cannot be changed by a request, only what a reload changes can (docs/operations.md); change "
    "it where the broker is started, and start the broker anew"
)

_HEAD: Final = """\
# Settings that requests have changed (mqadmin updateBrokerConfig, aerobee broker config --set).
# Written by the broker. They count above its configuration file, below its environment and command
# line. To undo one, delete its line and have the broker read its configuration again (SIGHUP).
"""


def remote_file(store_path: str) -> Path:
    """Where the file of the broker with that store is, whether or not it is there."""
    return Path(os.path.abspath(os.path.expanduser(store_path))) / "config" / FILE_NAME


def remote_given(file: Path) -> list[Given]:
    """The settings in the file, none when it is not there. Raises ConfigError when it cannot be
    read, or has a setting that no request may change."""
    if _is_absent(file):
        return []
    given = []
    for item in read_file(file, "toml").given:
        setting = BY_FULL_KEY.get(item.key)
        if setting is None or not setting.live:
            reason = "no request changes it; delete it from this file"
            raise ConfigError(item.key, str(item.value), reason, item.where)
        given.append(item._replace(syntax="remote"))
    return given


def _is_absent(file: Path) -> bool:
    """Whether it is known not to be there. Where nobody may look, reading it says so."""
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def with_changes(given: Iterable[Given], changes: Mapping[str, str]) -> list[Given]:
    """The settings in the file, with other values for those (by their own names) that a request
    changes."""
    kept = [item for item in given if item.key not in changes]
    return [*kept, *(Given(key, text, REQUEST, "remote") for key, text in changes.items())]


def remote_text(values: Mapping[str, object]) -> str:
    """The file's content: these settings by their own names, with values as TOML has them."""
    lines = [_HEAD]
    section = ""
    for name in sorted(values):
        setting = BY_FULL_KEY[name]
        if setting.section != section:
            section = setting.section
            lines.append(f"\n[{section}]\n")
        lines.append(f"{setting.key} = {toml_value(values[name])}\n")
    return "".join(lines)
