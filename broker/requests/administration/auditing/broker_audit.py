"""The audit of a broker: its table, its files or journal, and changes that no request asks for."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from aerobee.access.audit.auditing import Auditing
from aerobee.access.audit.making import make_sink
from aerobee.access.audit.recorder import Recorder
from aerobee.broker.requests.administration.auditing.audited import audited_requests
from aerobee.broker.routing.router import known_refusal
from aerobee.broker.tables.tables import Tables
from aerobee.config.model import SETTINGS, Settings
from aerobee.protocol.bodies.audit import SETTINGS_RELOAD

if TYPE_CHECKING:
    # With it comes the library for YAML.
    from aerobee.access.account_service import AccessService


def broker_audit(
    settings: Settings,
    tables: Tables,
    accounts: AccessService | None,
    *,
    check_store: Callable[[], None],
    loop: asyncio.AbstractEventLoop,
    clock_ms: Callable[[], int],
) -> Auditing:
    """The audit of a broker whose `audit.target` is not off. `check_store` raises OSError where
    nothing of the store may be written any more; it is called on a thread."""
    sink = make_sink(
        settings.audit_target,
        os.path.join(settings.store_path, "audit"),
        settings.audit_bytes,
        root=settings.store_path,
        check=check_store,
    )
    return Auditing(
        Recorder(sink, loop, clock_ms),
        audited_requests(settings, tables, accounts),
        None if accounts is None else accounts.control,
        _refusal_of,
    )


async def audited_reload(
    audit: Auditing, settings: Settings, reload: Callable[[], Awaitable[None]]
) -> None:
    """Read the configuration again, as an event with the settings that change. Raises BadRequest
    where that cannot be noted: then nothing was read."""
    first = _live_values(settings)

    def moved() -> str:
        now = _live_values(settings)
        changed = [key for key in now if now[key] != first[key]]
        return " ".join(f"{key}={now[key]} (was {first[key]})" for key in changed) or "no setting"

    await audit.of_this_machine(SETTINGS_RELOAD, "configuration", reload, moved)


def _live_values(settings: Settings) -> dict[str, Any]:
    return {one.full_key: settings.value_of(one) for one in SETTINGS if one.live and not one.secret}


def _refusal_of(error: Exception) -> str | None:
    known = known_refusal(error)
    return None if known is None else known[1]
