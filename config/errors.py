"""The one error of this folder, alone or several at once: what was configured cannot be used."""

from collections.abc import Sequence
from typing import ClassVar


class ConfigError(Exception):
    """A setting, a file or a relation between settings that stops the start.

    `key` is the name as it was written, `value` its text ("" without a value), `reason` says
    what was wanted, `where` is "path:line", an environment variable or a flag ("" when the value
    is a default).
    """

    EXIT_CODE: ClassVar[int] = 78  # EX_CONFIG of sysexits.h; systemd does not restart on it

    #: Warnings of the reading that ended with this error; lines for people.
    warnings: tuple[str, ...] = ()

    def __init__(self, key: str, value: str, reason: str, where: str = "") -> None:
        self.key = key
        self.value = value
        self.reason = reason
        self.where = where
        super().__init__(str(self))

    @property
    def errors(self) -> "tuple[ConfigError, ...]":
        """Everything that is wrong, at least this."""
        return (self,)

    def __str__(self) -> str:
        subject = f"{self.key} = {self.value}" if self.value else self.key
        text = f"{subject}: {self.reason}" if subject else self.reason
        return f"{self.where}: {text}" if self.where else text


class ConfigErrors(ConfigError):
    """Several errors found in one reading; its own attributes are those of the first."""

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        self._errors = tuple(errors)
        first = errors[0]
        super().__init__(first.key, first.value, first.reason, first.where)

    @property
    def errors(self) -> tuple[ConfigError, ...]:
        return self._errors

    def __str__(self) -> str:
        """One line each."""
        return "\n".join(map(str, self._errors))


def raise_all(errors: Sequence[ConfigError]) -> None:
    """Raise nothing without errors, a single error as it is, several joined."""
    if errors:
        raise errors[0] if len(errors) == 1 else ConfigErrors(errors)
