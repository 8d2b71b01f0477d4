"""Takes secrets out of texts that are given away.

Two nets: every secret that this machine's files and environment are known to hold is taken out
wherever it stands, in each form that it may be written in; and whatever stands after a name such as
password or token is taken out, known or not. Better a word too many than a key.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from aerobee.cli.doctor.files import account_paths, credentials_path
from aerobee.config.model import SETTINGS, Settings

HIDDEN: Final = "***"
# Shorter ones would take half of each text with them; the second net takes these where they are
# named.
_LEAST: Final = 4
_FILE_BYTES_MAX: Final = 8 << 20
# A name that has one of these in it names a secret. The beginning of the name is not looked for:
# that would take a time that grows with the square of a long word.
_WORDS: Final = (
    r"(?:secret|password|passwd|passphrase|token|access[_-]?key|api[_-]?key|signature|"
    r"authorization|cookie)[\w.-]{0,64}"
)
_PRIVATE_KEY: Final = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
# The end of a log may begin within a key.
_END_OF_KEY: Final = re.compile(r"\A.*-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL)
_BEARER: Final = re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]+", re.IGNORECASE)
_USER: Final = re.compile(r"(\b[a-z][a-z0-9+.-]{0,20}://)[^\s/@]+@", re.IGNORECASE)
# name: value, name=value, "name": "value", --name value
_NAMED: Final = re.compile(
    rf"""(?P<name>{_WORDS})(?P<between>["']?\s*[:=]\s*)"""
    rf"""(?P<value>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s,;}}\])"']+)""",
    re.IGNORECASE,
)
_OPTION: Final = re.compile(
    rf"(?P<name>--[\w-]{{0,40}}{_WORDS})(?P<between>\s+)[^\s-]\S*", re.IGNORECASE
)
_IN_ACCOUNTS: Final = re.compile(
    r"""(?:access|secret)Key["']?\s*:\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s#,}]+))""",
    re.IGNORECASE,
)
_SECRET_NAME: Final = re.compile(_WORDS, re.IGNORECASE)


class Redaction:
    """Takes out these secrets, and everything that is named like one."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets for form in _forms(secret) if len(form) >= _LEAST}
        # A long one first: a shorter one may be a part of it.
        self._known = sorted(forms, key=len, reverse=True)

    def text(self, text: str) -> str:
        """The text without secrets."""
        text = _END_OF_KEY.sub(HIDDEN, _PRIVATE_KEY.sub(HIDDEN, text))
        # One after the other: an expression of thousands of accounts would be slower.
        for secret in self._known:
            text = text.replace(secret, HIDDEN)
        text = _BEARER.sub(rf"\1 {HIDDEN}", text)
        text = _USER.sub(rf"\1{HIDDEN}@", text)
        text = _OPTION.sub(rf"\g<name>\g<between>{HIDDEN}", text)
        return _NAMED.sub(_hide_value, text)

    def value(self, value: Any) -> Any:
        """A value of JSON without secrets; they are looked for before it has any escape."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self._member(str(key), one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(one) for one in value]
        return value

    def _member(self, key: str, value: Any) -> Any:
        is_secret = isinstance(value, str) and value and _SECRET_NAME.search(key)
        return HIDDEN if is_secret else self.value(value)


def _hide_value(found: re.Match[str]) -> str:
    quoted = found["value"][:1] if found["value"][:1] in "\"'" else ""
    return f"{found['name']}{found['between']}{quoted}{HIDDEN}{quoted}"


def _forms(secret: str) -> set[str]:
    """How a secret may be written: as it is, in JSON, by Python, in an address, in TOML."""
    return {
        secret,
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        repr(secret)[1:-1],
        quote(secret, safe=""),
    }


def known_secrets(settings: Settings, environ: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Those of the settings, of the files of accounts and keys that they name, and of the
    environment."""
    for setting in SETTINGS:
        if setting.secret and (value := settings.value_of(setting)):
            yield str(value)
    for name, value in environ.items():
        if _SECRET_NAME.search(name) and value:
            yield value
    paths = account_paths(settings)
    if (credentials := credentials_path(settings)) is not None:
        paths.append(credentials)
    if named := environ.get("AEROBEE_CREDENTIALS"):
        paths.append(Path(named))
    for path in paths:
        yield from secrets_of_file(path)


def secrets_of_file(path: Path) -> Iterator[str]:
    """The keys in a file of accounts, however broken the rest of it is."""
    try:
        with path.open("rb") as file:
            text = file.read(_FILE_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return
    for found in _IN_ACCOUNTS.finditer(text):
        written = next(one for one in found.groups() if one is not None)
        yield written
        # Between double quotes YAML has escapes, mostly those of JSON.
        with contextlib.suppress(ValueError):
            yield str(json.loads(f'"{written}"'))
