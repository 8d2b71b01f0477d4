"""Settings that change while the broker runs: by SIGHUP, or by a request of an administrator.

Both read the whole configuration, which opens files, and both end with changes that belong to the
loop. So each change is done on a thread for changes, one after the other: a later change reads the
values that an earlier one wrote, and is taken over after it.

The change of a request is judged as if it were in its file already, then written there, and taken
over last. A refused request has changed nothing; a change that was answered with success survives a
crash.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from aerobee.broker.background.loop_workers import LoopCalls
from aerobee.config.errors import ConfigError, raise_all
from aerobee.config.loading.load import Loaded
from aerobee.config.loading.properties_file import PropertiesSyntaxError, parse_properties
from aerobee.config.loading.reload import Reload
from aerobee.config.loading.remote_settings import REQUEST, WHY_NOT, remote_given, remote_text
from aerobee.config.model import BY_FULL_KEY, BY_NAME, BY_ROCKETMQ_KEY, SETTINGS
from aerobee.config.settings.setting import Setting
from aerobee.file_replacement import replace_file
from aerobee.nearest_name import nearest_name

log = logging.getLogger("aerobee.config")

_NAMES: Final = {**BY_NAME, **BY_FULL_KEY, **BY_ROCKETMQ_KEY}
_NOT_KEPT: Final = "a broker for development keeps no changes of requests"


class LiveSettings:
    """The changes of a broker's settings. Called on its loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, reload: Reload, changed: Callable[[], None]
    ) -> None:
        """`changed` is called on the loop after settings have changed."""
        self._loop = loop
        self._on_loop = LoopCalls(loop)
        self._reload = reload
        self._changed = changed
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="aerobee-settings")

    def read_again(self) -> asyncio.Future[None]:
        """Take over the present configuration; its faults are in the log."""
        return self._loop.run_in_executor(self._thread, self._read_again)

    def change(self, body: bytes) -> asyncio.Future[None]:
        """Change settings as a request asks, by lines `key=value`. The future has the ConfigError
        of an impossible change, or the OSError of the file: nothing has changed then."""
        return self._loop.run_in_executor(self._thread, self._change, body)

    async def close(self) -> None:
        """Wait for the change under way; later ones are dropped."""
        # On another thread: the change under way may have to wait for the loop.
        end = partial(self._thread.shutdown, cancel_futures=True)
        await self._loop.run_in_executor(None, end)

    # --- on the thread

    def _read_again(self) -> None:
        loaded = self._reload.read()
        if loaded is not None:
            self._on_loop(partial(self._take, loaded, SETTINGS))

    def _change(self, body: bytes) -> None:
        changes = requested(body)
        if not changes:
            return
        loaded = self._reload.judge(changes)
        if loaded.remote_file is None:
            raise ConfigError(next(iter(changes)), "", _NOT_KEPT, REQUEST)
        settings = {key: BY_FULL_KEY[key] for key in changes}
        values = {item.key: item.value for item in remote_given(loaded.remote_file)}
        values |= {key: loaded.settings.value_of(setting) for key, setting in settings.items()}
        loaded.remote_file.parent.mkdir(exist_ok=True)
        replace_file(loaded.remote_file, remote_text(values).encode())
        self._on_loop(partial(self._take, loaded, settings.values()))

    # --- on the loop

    def _take(self, loaded: Loaded, only: Collection[Setting]) -> None:
        if self._reload.take(loaded, only):
            self._changed()


def setting_named(name: str) -> Setting | None:
    """The setting of a name, RocketMQ's or ours; None if there is no such setting."""
    return _NAMES.get(name)


def requested(body: bytes) -> Mapping[str, str]:
    """The settings that a request names, by our names, with the texts it wants for them. Raises
    ConfigError for a setting that does not exist, or that no request changes."""
    try:
        entries = parse_properties(body).entries
    except PropertiesSyntaxError as error:
        raise ConfigError("", "", f"the lines of settings cannot be read: {error}") from None
    changes: dict[str, str] = {}
    errors = []
    for key, value, _line in entries:
        setting = _NAMES.get(key)
        if setting is None:
            near = nearest_name(key, [name for name, one in _NAMES.items() if one.live])
            hint = f"did you mean {near}?" if near else "aerobee config explain knows all names"
            errors.append(ConfigError(key, value, f"unknown setting; {hint}", REQUEST))
        elif not setting.live:
            errors.append(ConfigError(key, "", WHY_NOT, REQUEST))
        else:
            changes[setting.full_key] = value.strip()
    raise_all(errors)
    return changes
