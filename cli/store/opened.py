"""Parts that all commands for a store at rest share: settings, the lock, exit codes of errors.

Exit codes of `aerobee store`: 0 sound or done, 1 damage found, 2 usage, 3 could not (no store
there, a broker runs on it, no permission, a size that is no file's), 78 configuration.
"""

import argparse
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final

from aerobee.cli.printing.output import CommandFailed, quieten_logs, show
from aerobee.config.errors import ConfigError
from aerobee.config.loading.load import load_settings
from aerobee.config.model import Settings
from aerobee.native.form import NativeError, chosen
from aerobee.pipeline.jobs.common.job_result import size_text
from aerobee.store.disk.files import Files, is_full, is_refused
from aerobee.store.disk.lock import StoreLock
from aerobee.store.errors import StoreError
from aerobee.store.log.compiled import Compiled

SOUND: Final = 0
DAMAGED: Final = 1
COULD_NOT: Final = 3

Command = Callable[[argparse.Namespace], int]


def settings_of(parsed: argparse.Namespace) -> tuple[Settings, frozenset[str]]:
    """The settings for `DIR`, and the names of those that are given."""
    loaded = load_settings(
        parsed.config,
        flags={"store_path": parsed.directory},
        overrides=parsed.set,
        format=parsed.format,
        strict=parsed.strict,
    )
    given = frozenset(name for name, origin in loaded.origins.items() if origin.source != "default")
    return loaded.settings, given


def compiled_form() -> Compiled | None:
    """The compiled form of reading a log, by the same choice as a broker's. Raises ConfigError."""
    try:
        form = chosen()
    except NativeError as error:
        # The text names the variable and its value.
        raise ConfigError("", "", str(error)) from None
    return None if form is None else form.store


def on_store(command: Command) -> Command:
    """A command that what the store or the system refuses ends with a text and exit code 3."""

    @wraps(command)
    def run(parsed: argparse.Namespace) -> int:
        # The store logs what it does; here the command's own report says it.
        quieten_logs()
        try:
            return command(parsed)
        except StoreError as error:
            raise CommandFailed(str(error), COULD_NOT) from error
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            raise CommandFailed(_refusal(parsed, error), COULD_NOT) from error

    return run


@contextmanager
def locked_to_read(settings: Settings) -> Iterator[None]:
    """Keep brokers out while the store is read. Raises StoreInUse or OSError."""
    lock = StoreLock(Files(), settings.store_path)
    try:
        lock.take_to_read()
        yield
    finally:
        lock.release()


def save_table(path: str, content: Mapping[str, Any]) -> None:
    """Write one of the broker's tables as the broker does, with a backup of what was there."""
    from aerobee.broker.tables.files.state_file import JsonStateFile, pretty

    JsonStateFile(path).save(pretty(content))


def below(root: str, path: str) -> str:
    """The path as seen from the store's directory, if it lies in there."""
    return os.path.relpath(path, root) if path.startswith(root + os.sep) else path


def print_aside(what: str, root: str, aside: str | None) -> None:
    """Where the command has put what it did not delete, if anything."""
    if aside is not None:
        show(f"{what} in {below(root, aside)}; remove it when all is well")


def _refusal(parsed: argparse.Namespace, error: OSError) -> str:
    where = error.filename or parsed.directory
    text = f"{where}: {error.strerror or error}"
    if is_refused(error):
        text += " (run this as the user the broker runs as, or as root)"
    if is_full(error):
        text += _room_needed(parsed)
    return text


def _room_needed(parsed: argparse.Namespace) -> str:
    """Advice about a full disk: how much the command takes, and whether it can take less."""
    if parsed.command == "store truncate":
        return (
            ". What is cut is copied to lost+found first, so as much has to be free as is cut; "
            "with --discard no copy is kept. Then run the same command again"
        )
    used = 0
    for name in ("consumequeue", "consumequeue_ext", "index"):
        for directory, _, files in os.walk(os.path.join(parsed.directory, name)):
            used += sum(os.stat(os.path.join(directory, file)).st_blocks * 512 for file in files)
    return (
        ". New queues and a new index are made beside the old ones, and what is overwritten in the "
        f"log is copied to lost+found first: about {size_text(used)} have to be free, or more if "
        "much is damaged. Then run the same command again"
    )
