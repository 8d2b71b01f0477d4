"""Reads the configuration of a running process again, and takes over what may change.

SIGHUP asks for it. Settings declared `live` are read by their parts at each use, so they change for
all of them with one assignment (`Settings.take`); what else differs takes effect at the next start,
and the log says so. A configuration with anything wrong in it changes nothing: all that is wrong
is logged, as a start would print it.

`read` may be called on any thread, because it opens files; `take` on the thread that owns the
settings.
"""

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from aerobee.config.errors import ConfigError
from aerobee.config.limits import check_limits
from aerobee.config.load import Loaded
from aerobee.config.model import SETTINGS, Settings
from aerobee.config.settings.setting import Setting, Value

log = logging.getLogger("aerobee.config")


class Change(NamedTuple):
    """One setting that reads differently now."""

    setting: Setting
    running: Value
    asked: Value

    @property
    def may_change(self) -> bool:
        """Whether that is possible without a start. A number of 0 is a part that is not there."""
        if not self.setting.live:
            return False
        is_switch = isinstance(self.running, bool | str)
        return is_switch or bool(self.running) == bool(self.asked)


class Reload:
    """Takes changes of the configuration into the `settings` a process runs with."""

    def __init__(self, settings: Settings, load: Callable[[], Loaded]) -> None:
        """`load` reads all sources as the start did. Raises ConfigError."""
        self._settings = settings
        self._load = load
        self._warned: tuple[str, ...] = ()

    def read(self) -> Loaded | None:
        """What the configuration says now; None, with the reasons in the log, when it is wrong."""
        try:
            return self._load()
        except ConfigError as error:
            for one in error.errors:
                log.error("configuration not taken, nothing changed: %s", one, extra=_EACH)
            return None

    def take(self, loaded: Loaded) -> list[Change]:
        """Change what may change; returns that. Says in the log what it did and did not."""
        changes = [
            Change(setting, running, asked)
            for setting in SETTINGS
            if (running := self._settings.value_of(setting))
            != (asked := loaded.settings.value_of(setting))
        ]
        taken = [change for change in changes if change.may_change]
        values = {change.setting.name: change.asked for change in taken}
        try:
            # The new ones may contradict those that stay, though not those of the file.
            check_limits(self._settings.with_changes(**values))
        except ConfigError as error:
            log.error("configuration not taken, nothing changed: %s", error, extra=_EACH)
            return []
        self._settings.take(values)
        if "log_level" in values:
            logging.getLogger().setLevel(self._settings.log_level)
        for warning in loaded.warnings:
            if warning not in self._warned:
                log.warning("%s", warning, extra=_EACH)
        self._warned = loaded.warnings
        for change in changes:
            _report(change)
        log.info(
            "configuration read again changed=%s needs_restart=%s",
            _names_of(taken),
            _names_of(change for change in changes if not change.may_change),
        )
        return taken


_EACH = {"each": True}


def _names_of(changes: Iterable[Change]) -> str:
    return ",".join(change.setting.full_key for change in changes) or "none"


def _report(change: Change) -> None:
    setting, running, asked = change
    if setting.secret:
        running = asked = "***"
    if change.may_change:
        text = 'setting changed key=%s value="%s" before="%s"'
        log.info(text, setting.full_key, asked, running, extra=_EACH)
    else:
        text = 'setting not changed, it needs a restart key=%s value="%s" configured="%s"'
        log.warning(text, setting.full_key, running, asked, extra=_EACH)
