"""Reads the configuration of a running process again, and takes over what may change.

SIGHUP asks for it, and so does a request that changes settings, where that is on
(`remote_settings.py`). Settings declared `live` are read by their parts at each use, so they change
for all of them with one assignment (`Settings.take`); what else differs takes effect at the next
start, and the log says so. A configuration with anything wrong in it changes nothing: all that is
wrong is logged, as a start would print it.

`read` and `judge` may be called on any thread, because they open files; `take` on the thread that
owns the settings.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from aerobee.config.bounds.limits import check_limits
from aerobee.config.errors import ConfigError, raise_all
from aerobee.config.loading.load import Loaded
from aerobee.config.loading.remote_settings import REQUEST
from aerobee.config.model import BY_FULL_KEY, SETTINGS, Settings
from aerobee.config.settings.setting import Setting, Value

log = logging.getLogger("aerobee.config")

#: Reads all sources, with these texts for settings that a request changes, by their own names.
Load: TypeAlias = Callable[[Mapping[str, str]], Loaded]


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

    def __init__(self, settings: Settings, load: Load) -> None:
        """`load` reads all sources as the start did, with what a request asks for. Raises
        ConfigError."""
        self._settings = settings
        self._load = load
        self._warned: tuple[str, ...] = ()

    def read(self) -> Loaded | None:
        """Read the configuration; None, with the reasons in the log, when it is wrong."""
        try:
            return self._load({})
        except ConfigError as error:
            for one in error.errors:
                log.error("configuration not taken, nothing changed: %s", one, extra=_EACH)
            return None

    def judge(self, changes: Mapping[str, str]) -> Loaded:
        """Read the configuration together with a request's changes. Raises ConfigError when one of
        these settings cannot have its value, now and at the next start."""
        loaded = self._load(changes)
        asked = loaded.settings
        raise_all(
            [
                ConfigError(key, text, why, REQUEST)
                for key, text in changes.items()
                if (why := self._why_not(BY_FULL_KEY[key], loaded))
            ]
        )
        settings = [BY_FULL_KEY[key] for key in changes]
        values = {setting.name: asked.value_of(setting) for setting in settings}
        check_limits(self._settings.with_changes(**values))
        return loaded

    def _why_not(self, setting: Setting, loaded: Loaded) -> str:
        """Say why a request's value for this setting cannot be used; "" when it can."""
        if not loaded.settings.remote_config:
            return "admin.remote_config is off in the configuration, and so at the next start"
        origin = loaded.origins[setting.name]
        if origin.source != "remote":
            return f"is set by {origin.text} where the broker was started, which counts more"
        running, asked = self._settings.value_of(setting), loaded.settings.value_of(setting)
        if not Change(setting, running, asked).may_change:
            return "0 is a part that is not there, which only a start of the broker changes"
        return ""

    def take(self, loaded: Loaded, only: Collection[Setting] = SETTINGS) -> list[Change]:
        """Change what may change of these settings; returns that. Says in the log what it did and
        did not."""
        changes = [
            Change(setting, running, asked)
            for setting in only
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
