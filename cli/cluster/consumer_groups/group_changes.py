"""`aerobee group create`, `update` and `delete`: the settings of consumer groups.

Each shows what it would change at which broker, and does it with `--yes` only. RocketMQ's own
requests do it, so Java's brokers take them as well.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from aerobee.cli.cluster.command_session import admin_of, check_group, client_command
from aerobee.cli.cluster.consumer_groups.group_view import GroupView, lag_text
from aerobee.cli.cluster.previews import check_expected, say_how_to
from aerobee.cli.documents.document import print_document
from aerobee.cli.documents.groups import GroupChange, GroupChanged, GroupSettings
from aerobee.cli.printing.output import OK, CommandFailed, print_table, say
from aerobee.client.admin import Admin
from aerobee.client.administration.group_changes import delete_group as delete_at
from aerobee.client.administration.group_changes import put_group
from aerobee.client.administration.group_lag import GroupQuestions
from aerobee.nearest_name import nearest_name
from aerobee.protocol.bodies.group_settings import GroupConfigBody

#: The option of each setting, and its field.
_OPTIONS: Final = {
    "retries": "retry_max_times",
    "retry_queues": "retry_queue_nums",
    "consume": "consume_enable",
    "broadcast": "consume_broadcast_enable",
    "notify": "notify_consumer_ids_changed_enable",
}
_Tables = dict[str, dict[str, GroupConfigBody]]


@client_command
async def create_group(parsed: argparse.Namespace) -> int:
    """Make a group at each broker that does not have it."""
    check_group(parsed.group)
    async with admin_of(parsed) as admin:
        tables = await _tables(parsed, admin)
        if all(parsed.group in groups for groups in tables.values()):
            raise CommandFailed(
                f"there is a group {parsed.group} at {', '.join(tables)} already: aerobee group "
                "update changes it"
            )
        after = {
            broker: _changed(parsed, GroupConfigBody(group_name=parsed.group))
            for broker, groups in tables.items()
            if parsed.group not in groups
        }
        return await _put(parsed, admin, tables, after)


@client_command
async def update_group(parsed: argparse.Namespace) -> int:
    """Change settings of a group at each broker that has it."""
    check_group(parsed.group)
    async with admin_of(parsed) as admin:
        tables = await _tables(parsed, admin)
        _check_known(parsed, tables)
        after = {
            broker: _changed(parsed, groups[parsed.group])
            for broker, groups in tables.items()
            if parsed.group in groups
        }
        if all(one == tables[broker][parsed.group] for broker, one in after.items()):
            raise CommandFailed(
                f"the group {parsed.group} has these settings already: "
                f"{_text(next(iter(after.values())))}"
            )
        return await _put(parsed, admin, tables, after)


@client_command
async def delete_group(parsed: argparse.Namespace) -> int:
    """Delete a group at each broker that has it."""
    check_group(parsed.group)
    async with admin_of(parsed) as admin:
        tables = await _tables(parsed, admin)
        _check_known(parsed, tables)
        brokers = [broker for broker, groups in tables.items() if parsed.group in groups]
        view = GroupView(parsed.group, await GroupQuestions(admin).of(parsed.group))
        changes = [_change(parsed.group, one, tables[one][parsed.group], None) for one in brokers]
        _show(parsed, changes)
        _say_lost(parsed, view)
        check_expected(parsed, changes)
        if parsed.yes:
            await delete_at(admin, parsed.group, brokers, offsets=parsed.offsets)
    return _conclude(parsed, changes)


def _say_lost(parsed: argparse.Namespace, view: GroupView) -> None:
    if view.members:
        say(
            f"{view.members} members are online: they make the group again, with the settings of "
            "any group"
        )
    what = "and go with it" if parsed.offsets else "and stay (--offsets deletes them)"
    say(f"it is behind by {lag_text(view)}; its offsets are in {len(view.queues)} queues, {what}")


# --- inside ---------------------------------------------------------------------------------------


async def _tables(parsed: argparse.Namespace, admin: Admin) -> _Tables:
    """The groups of the brokers meant. Raises NetworkError if one of them does not answer, and
    MasterAway if it has no master: a change would be half done."""
    names = sorted((await admin.cluster()).brokers)
    if parsed.broker is not None:
        if parsed.broker not in names:
            raise CommandFailed(f"there is no broker {parsed.broker}: there is {', '.join(names)}")
        names = [parsed.broker]
    await admin.check_masters(names)
    questions = GroupQuestions(admin)
    found = await questions.tables()
    for name in names:
        if name in questions.unanswered:
            raise questions.unanswered[name]
    return {name: found[name] for name in names}


def _check_known(parsed: argparse.Namespace, tables: _Tables) -> None:
    if any(parsed.group in groups for groups in tables.values()):
        return
    near = nearest_name(parsed.group, {name for groups in tables.values() for name in groups})
    hint = f"; did you mean {near}?" if near else ""
    raise CommandFailed(f"there is no consumer group {parsed.group} at {', '.join(tables)}{hint}")


def _changed(parsed: argparse.Namespace, settings: GroupConfigBody) -> GroupConfigBody:
    """The settings with those that the options name."""
    given = {field: getattr(parsed, option) for option, field in _OPTIONS.items()}
    words = {"on": True, "off": False}
    return replace(
        settings,
        **{
            field: words.get(value, value) if isinstance(value, str) else value
            for field, value in given.items()
            if value is not None
        },
    )


async def _put(
    parsed: argparse.Namespace, admin: Admin, tables: _Tables, after: dict[str, GroupConfigBody]
) -> int:
    changes = [
        _change(parsed.group, broker, tables[broker].get(parsed.group), settings)
        for broker, settings in sorted(after.items())
    ]
    _show(parsed, changes)
    check_expected(parsed, changes)
    if parsed.yes:
        await put_group(admin, after)
    return _conclude(parsed, changes)


def _change(
    group: str, broker: str, before: GroupConfigBody | None, after: GroupConfigBody | None
) -> GroupChange:
    return GroupChange(group=group, broker=broker, before=_shown(before), after=_shown(after))


def _shown(settings: GroupConfigBody | None) -> GroupSettings | None:
    if settings is None:
        return None
    return GroupSettings(**{option: getattr(settings, field) for option, field in _OPTIONS.items()})


def _show(parsed: argparse.Namespace, changes: Iterable[GroupChange]) -> None:
    """For people; scripts get it with the result."""
    if parsed.json:
        return
    rows = []
    for one in changes:
        for option in _OPTIONS:
            before, after = getattr(one.before, option, None), getattr(one.after, option, None)
            if before != after:
                rows.append((one.broker, option, before, after))
    print_table(("broker", "setting", "before", "after"), rows)


def _text(settings: GroupConfigBody) -> str:
    return ", ".join(f"{option} {getattr(settings, field)}" for option, field in _OPTIONS.items())


def _conclude(parsed: argparse.Namespace, changes: list[GroupChange]) -> int:
    if parsed.json:
        print_document(GroupChanged(group=parsed.group, done=parsed.yes, changes=changes))
    if not parsed.yes:
        say_how_to(parsed, changes)
    elif not parsed.json:
        word = parsed.command.split()[-1].removesuffix("e") + "ed"
        say(f"group {parsed.group} is {word} at {', '.join(one.broker for one in changes)}")
    return OK
