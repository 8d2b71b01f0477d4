"""Named connections of this user: their file, and the choice that a command makes.

The file is `contexts.toml` in `aerobee` below XDG_CONFIG_HOME (`~/.config`):

    current = "production"

    [contexts.production]
    name_servers = "10.0.0.1:9876;10.0.0.2:9876"
    credentials = "/home/me/.aerobee/production.yml"
    trust_store = "/etc/ssl/broker-authority.pem"

It names files and holds no key and no password. Its owner alone may read it, and it is replaced as
a whole.

A context that is in use by itself counts as a whole or not at all: with -n, or with NAMESRV_ADDR,
the command speaks to other brokers, and the account of the context is not for them. A context that
was named (--context, AEROBEE_CONTEXT) counts for each option that is not given.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from aerobee.cli.printing.output import CONFIGURATION, CommandFailed, say
from aerobee.nearest_name import nearest_name

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_FILE_BYTES_MAX: Final = 1 << 20
_SECRET: Final = re.compile(r"secret|password|access_?key|token", re.IGNORECASE)


class Context(NamedTuple):
    """The options of a connection; a field has the name of its option."""

    name_servers: str
    admin: tuple[str, ...] = ()
    credentials: str | None = None
    tls: bool = False
    trust_store: str | None = None
    certificate: str | None = None
    certificate_key: str | None = None


class Contexts(NamedTuple):
    """The content of the file. `current` is the name of the context in use, None without it."""

    named: Mapping[str, Context]
    current: str | None = None

    def get(self, name: str) -> Context:
        """The context of this name. Raises CommandFailed, with the nearest name."""
        found = self.named.get(name)
        if found is None:
            near = nearest_name(name, self.named)
            hint = f"; did you mean {near}?" if near else ""
            raise CommandFailed(f"there is no context {name}{hint} (aerobee context list)")
        return found


class Chosen(NamedTuple):
    """The context that a command uses, and who says so."""

    name: str
    context: Context
    said_by: str


def contexts_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Where this user's file is, or would be."""
    base = environ.get("XDG_CONFIG_HOME", "")
    # The specification has programs ignore a path that is not absolute.
    folder = Path(base) if os.path.isabs(base) else Path.home() / ".config"
    return folder / "aerobee" / "contexts.toml"


def check_name(name: str) -> str:
    """`name`, if a context may have it. Raises CommandFailed."""
    if _NAME.fullmatch(name) is None:
        raise CommandFailed(
            f"a context's name has letters, digits, _, - and ., 64 at most: not {name}"
        )
    return name


def read_contexts(path: Path) -> Contexts:
    """The file's contexts, none where it does not exist. Raises CommandFailed, which names the
    line or the key that is wrong and never its value."""
    try:
        with path.open("rb") as file:
            content = file.read(_FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return Contexts({})
    except OSError as error:
        raise _broken(path, f"cannot be read: {error.strerror}") from None
    if len(content) > _FILE_BYTES_MAX:
        raise _broken(path, "is larger than 1 MiB")
    import tomllib  # commands without a context do without

    try:
        document = tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise _broken(path, "is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise _broken(path, f"is not TOML: {error}") from None
    return _contexts_of(path, document)


def _contexts_of(path: Path, document: dict[str, Any]) -> Contexts:
    named, current = document.pop("contexts", {}), document.pop("current", None)
    if document:
        raise _broken(path, f"has an unknown key {sorted(document)[0]}: current and contexts are")
    if not isinstance(named, dict) or not all(isinstance(one, dict) for one in named.values()):
        raise _broken(path, "has something else than tables [contexts.NAME] below contexts")
    for name in named:
        if _NAME.fullmatch(name) is None:
            raise _broken(path, f"has a context named {name!r}, which none may be named")
    contexts = Contexts(
        {name: _context_of(path, name, fields) for name, fields in sorted(named.items())}, current
    )
    if current is not None and (not isinstance(current, str) or current not in named):
        raise _broken(path, f"has current = {current!r}, and no context of that name")
    return contexts


def _context_of(path: Path, name: str, fields: dict[str, Any]) -> Context:
    for key, value in fields.items():
        if key not in Context._fields:
            raise _broken(path, f"has an unknown key {key} in [contexts.{name}]{_hint(key)}")
        texts = value if key == "admin" else [value]
        if key == "tls":
            is_right, wanted = isinstance(value, bool), "true or false"
        else:
            is_right = isinstance(texts, list) and all(
                isinstance(one, str) and one for one in texts
            )
            wanted = "a list of texts" if key == "admin" else "a text"
        if not is_right:
            raise _broken(path, f"needs {wanted} as {key} in [contexts.{name}]")
    if "name_servers" not in fields:
        raise _broken(path, f"has no name_servers in [contexts.{name}]")
    return Context(**{**fields, "admin": tuple(fields.get("admin", ()))})


def _hint(key: str) -> str:
    if _SECRET.search(key):
        return ": keys and passwords stand in the file that credentials names, and not here"
    near = nearest_name(key, Context._fields)
    return f"; did you mean {near}?" if near else ""


def _broken(path: Path, what: str) -> CommandFailed:
    return CommandFailed(
        f"{path} {what}: correct the file, or remove it and name the contexts anew (aerobee "
        "context add)",
        CONFIGURATION,
    )


def toml_of(contexts: Contexts) -> str:
    """The file's text."""
    from aerobee.config.settings.setting import toml_value

    lines = [
        "# The contexts of aerobee: see `aerobee context`. No key and no password belongs here."
    ]
    if contexts.current is not None:
        lines.append(f"current = {toml_value(contexts.current)}")
    for name, context in contexts.named.items():
        lines += ["", f'[contexts."{name}"]']
        for key, value in context._asdict().items():
            if key == "admin" and value:
                lines.append(f"admin = [{', '.join(map(toml_value, value))}]")
            elif value and key != "admin":
                lines.append(f"{key} = {toml_value(value)}")
    return "\n".join(lines) + "\n"


@contextmanager
def changing(path: Path) -> Iterator[None]:
    """Keep other commands from changing the file meanwhile; its folder is made."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise _broken(path, f"cannot be written: {error.strerror}") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def write_contexts(path: Path, contexts: Contexts) -> None:
    """Replace the file; its owner alone may read it. Raises CommandFailed."""
    from aerobee.file_replacement import replace_file

    try:
        replace_file(path, toml_of(contexts).encode(), mode=0o600)
    except OSError as error:
        raise _broken(path, f"cannot be written: {error.strerror}") from None


def choose(parsed: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Chosen | None:
    """The context for a command with these arguments; None if it uses none. Raises
    CommandFailed."""
    for name, said_by in (
        (getattr(parsed, "context", None), "--context"),
        (environ.get("AEROBEE_CONTEXT"), "AEROBEE_CONTEXT"),
    ):
        if name:
            return Chosen(name, read_contexts(contexts_path(environ)).get(name), said_by)
    if getattr(parsed, "name_servers", None) or environ.get("NAMESRV_ADDR"):
        return None
    contexts = read_contexts(contexts_path(environ))
    if contexts.current is None:
        return None
    return Chosen(contexts.current, contexts.get(contexts.current), "aerobee context use")


def apply_context(parsed: argparse.Namespace) -> None:
    """Give a command's connection options that were not given the values of its context."""
    if "name_servers" not in vars(parsed) or (chosen := choose(parsed)) is None:
        return
    for key, value in chosen.context._asdict().items():
        if value and not getattr(parsed, key, None):
            setattr(parsed, key, list(value) if key == "admin" else value)
    if chosen.said_by != "--context" and sys.stderr.isatty():
        say(f"context {chosen.name}, by {chosen.said_by}: {parsed.name_servers}")
