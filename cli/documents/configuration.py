"""Documents about configuration."""

from __future__ import annotations

from typing import Literal

from aerobee.cli.documents.document import Document


class ConvertedKey(Document, frozen=True, kw_only=True):
    """A key of a broker.conf, and its fate."""

    key: str
    #: The line of the file.
    line: int
    #: taken: it stands in the TOML. no_effect: known, and without effect here. unknown: neither
    #: RocketMQ 4.9 nor this broker has such a key. wrong: RocketMQ ignores a value that does not
    #: parse, so it runs with the default; this broker would refuse to start.
    state: Literal["taken", "no_effect", "unknown", "wrong"]
    #: The setting of ours; null for an unknown key.
    setting: str | None
    #: The nearest known key, of an unknown one.
    nearest: str | None
    #: A sentence for people.
    text: str


class Conversion(Document, frozen=True, kw_only=True):
    """The answer of `aerobee config convert`."""

    file: str
    #: The settings in TOML, secrets included.
    toml: str
    keys: list[ConvertedKey]
    #: Warnings about the file, beside its keys.
    warnings: list[str]
