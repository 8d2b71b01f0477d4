"""The one error of this folder: what somebody configured cannot be used."""

from typing import ClassVar


class ConfigError(Exception):
    """A setting, a file or a relation between settings that stops the start.

    `key` is the name as it was written, `value` its text ("" when there is none), `reason` says
    what was wanted, `where` is "path:line", an environment variable or a flag ("" when the value
    is a default).
    """

    EXIT_CODE: ClassVar[int] = 78  # EX_CONFIG of sysexits.h; systemd does not restart on it

    def __init__(self, key: str, value: str, reason: str, where: str = "") -> None:
        self.key = key
        self.value = value
        self.reason = reason
        self.where = where
        super().__init__(str(self))

    def __str__(self) -> str:
        subject = f"{self.key} = {self.value}" if self.value else self.key
        text = f"{subject}: {self.reason}" if subject else self.reason
        return f"{self.where}: {text}" if self.where else text
