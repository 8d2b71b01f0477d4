"""Choosing brokers by name, and the peers that did not answer, as the commands here show them."""

from __future__ import annotations

from collections.abc import Iterable

from aerobee.cli.documents.brokers import Silent
from aerobee.cli.printing.output import CommandFailed
from aerobee.client.admin import Admin
from aerobee.client.administration.overview import NameServerView
from aerobee.client.errors import ClientError, NetworkError
from aerobee.nearest_name import nearest_name


async def silent_peers(admin: Admin) -> list[Silent]:
    """The peers that did not answer; waits for a name server that may still answer."""
    found = await admin.unanswered()
    return [Silent(address=address, reason=str(error)) for address, error in sorted(found.items())]


def check_some_answer(views: Iterable[NameServerView]) -> None:
    """Raises the error of a name server if none has answered."""
    errors: list[ClientError] = []
    for view in views:
        if view.error is None:
            return
        errors.append(view.error)
    # A peer that is no name server is more to the point than a silent one.
    raise min(errors, key=lambda error: isinstance(error, NetworkError))


def unknown_name(kind: str, name: str, known: Iterable[str]) -> CommandFailed:
    """The refusal of a name that is not known, with the nearest known name or all of them."""
    names = sorted(set(known))
    near = nearest_name(name, names)
    if near is not None:
        return CommandFailed(f"there is no {kind} {name}; did you mean {near}?")
    return CommandFailed(f"there is no {kind} {name}: there is {', '.join(names) or 'none'}")
