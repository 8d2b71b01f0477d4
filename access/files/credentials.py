"""The keys with which a broker or a tool signs its requests: RocketMQ's conf/tools.yml.

accessKey: rocketmq2
secretKey: "12345678"
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Self

import yaml

from aerobee.access.errors import AccountFileError
from aerobee.access.files.account_nodes import compose
from aerobee.protocol.frames.command import Command
from aerobee.protocol.frames.signature import signed

_MOST_BYTES = 64 << 10


class Credentials(NamedTuple):
    """One account's keys. Shown without the secret one."""

    access_key: str
    secret_key: str

    def __repr__(self) -> str:
        return f"Credentials({self.access_key!r})"

    @classmethod
    def read(cls, path: Path) -> Self:
        """Those of a file. Raises AccountFileError, which holds no key."""
        try:
            with path.open("rb") as file:
                content = file.read(_MOST_BYTES)
        except OSError as error:
            raise AccountFileError(f"{path}: {error.strerror}") from error
        node = compose(str(path), content)
        found = {}
        if isinstance(node, yaml.MappingNode):
            found = {
                key.value: value.value
                for key, value in node.value
                if isinstance(key, yaml.ScalarNode) and isinstance(value, yaml.ScalarNode)
            }
        keys = found.get("accessKey", ""), found.get("secretKey", "")
        if not all(keys):
            raise AccountFileError(f"{path}: accessKey and secretKey must be there")
        return cls(*keys)

    def sign(self, command: Command) -> Command:
        """The request with access key and signature."""
        command.ext = signed(command.ext, command.body, self.access_key, self.secret_key)
        return command
