"""The table of audited requests: by request code, how its object is named, and what state that has.

A request of administrators that changes something has a row here, and stands in
`access/administration.py` (AUDITED_OF_BROKERS); tests/unit/broker/requests/test_audited.py fails
for a request that stands in neither set there. The texts are short, and tell no secret: of settings
those alone that a request may change, of accounts their rights. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from aerobee.access.audit.auditing import Audited
from aerobee.access.rights import right_name
from aerobee.broker.background.live_settings import setting_named
from aerobee.broker.tables.groups import GroupConfig
from aerobee.broker.tables.tables import Tables
from aerobee.config.model import BY_FULL_KEY, Settings
from aerobee.protocol.bodies.common import SMALL_BODY, parse_body
from aerobee.protocol.codes import RequestCode as Code
from aerobee.protocol.frames.command import Command
from aerobee.protocol.headers.admin import (
    CloneOffsetHeader,
    ConsumeDirectlyHeader,
    DrainHeader,
    ResetOffsetHeader,
)

if TYPE_CHECKING:
    # With it comes the library for YAML.
    from aerobee.access.account_service import AccessService

_ABSENT = "absent"
_SHOWN_SETTINGS = 16
_READ_BYTES = 2048
_SHOWN_ADDRESSES = 16
# Queues whose offsets are shown one by one.
_SHOWN_QUEUES = 16


def audited_requests(
    settings: Settings, tables: Tables, accounts: AccessService | None
) -> Mapping[int, Audited]:
    """The rows of a broker."""
    states = _States(settings, tables, accounts)
    topic, group, account = partial(_field, "topic"), _group, partial(_field, "accessKey")
    return {
        Code.UPDATE_AND_CREATE_TOPIC: Audited(topic, states.topic),
        Code.DELETE_TOPIC_IN_BROKER: Audited(topic, states.topic, answered_later=True),
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Audited(group, states.group),
        Code.DELETE_SUBSCRIPTIONGROUP: Audited(group, states.group),
        Code.UPDATE_BROKER_CONFIG: Audited(_settings, states.settings),
        Code.UPDATE_AND_CREATE_ACL_CONFIG: Audited(account, states.account),
        Code.DELETE_ACL_CONFIG: Audited(account, states.account),
        Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: Audited(
            lambda command: command.ext.get("aclFileFullPath") or "the default file of accounts",
            states.white,
        ),
        Code.INVOKE_BROKER_TO_RESET_OFFSET: Audited(_reset, states.reset, done_by_others=True),
        Code.CLONE_GROUP_OFFSET: Audited(_cloned, states.cloned),
        Code.CLEAN_EXPIRED_CONSUMEQUEUE: Audited(
            lambda _: "queues without messages", answered_later=True
        ),
        Code.CLEAN_UNUSED_TOPIC: Audited(lambda _: "queues of unknown topics", answered_later=True),
        Code.DELETE_EXPIRED_COMMITLOG: Audited(lambda _: "expired segments"),
        Code.RESUME_CHECK_HALF_MESSAGE: Audited(partial(_field, "msgId")),
        # The answer says how the consumer took it, not the event.
        Code.CONSUME_MESSAGE_DIRECTLY: Audited(_consumed),
        # The answer says how far the drain is, and it goes on for a while.
        Code.DRAIN: Audited(_drained),
    }


class _States:
    """Says how objects are."""

    def __init__(self, settings: Settings, tables: Tables, accounts: AccessService | None) -> None:
        self._settings = settings
        self._topics = tables.topics
        self._groups = tables.groups
        self._offsets = tables.offsets
        self._accounts = accounts

    def topic(self, command: Command) -> str:
        found = self._topics.get(_field("topic", command))
        if found is None:
            return _ABSENT
        return f"read={found.read_queues} write={found.write_queues} perm={found.perm}"

    def group(self, command: Command) -> str:
        found = self._groups.find(_group(command))
        if found is None:
            return _ABSENT
        return (
            f"consume={_yes(found.consume_enable)} retries={found.retry_max_times} "
            f"retry_queues={found.retry_queue_nums} "
            f"broadcast={_yes(found.consume_broadcast_enable)}"
        )

    def settings(self, command: Command) -> str:
        found = [BY_FULL_KEY.get(key) for key in dict.fromkeys(_requested(command))]
        shown = [one for one in found if one is not None and one.live and not one.secret]
        return " ".join(f"{one.full_key}={self._settings.value_of(one)}" for one in shown)

    def account(self, command: Command) -> str:
        if self._accounts is None:
            return ""
        found = self._accounts.control.rules.accounts.get(_field("accessKey", command))
        if found is None:
            return _ABSENT
        kind = "administrator" if found.admin else "user"
        rights = f"topics={right_name(found.default_topic.right)}"
        return (
            f"{kind} {rights} groups={right_name(found.default_group.right)} "
            f"lines={len(found.topics) + len(found.groups)} address={found.addresses.text or '-'}"
        )

    def white(self, _command: Command) -> str:
        if self._accounts is None:
            return ""
        white = self._accounts.control.rules.white
        shown = " ".join(one.text for one in white[:_SHOWN_ADDRESSES])
        return f"{len(white)} addresses: {shown}" if white else "none"

    def reset(self, command: Command) -> str:
        header = ResetOffsetHeader.from_ext(command.ext)
        return self._progress(header.group, header.topic)

    def cloned(self, command: Command) -> str:
        header = CloneOffsetHeader.from_ext(command.ext)
        if header.topic:
            return self._progress(header.dest_group, header.topic)
        return f"topics={len(self._offsets.topics_of(header.dest_group))}"

    def _progress(self, group: str, topic: str) -> str:
        """The offset of each queue, as `aerobee offset undo` takes them; the sum of very many."""
        offsets = self._offsets.of(group, topic)
        if len(offsets) > _SHOWN_QUEUES:
            return f"queues={len(offsets)} offsets={sum(offsets.values())}"
        return ",".join(f"{queue}:{offset}" for queue, offset in sorted(offsets.items())) or _ABSENT


def _field(name: str, command: Command) -> str:
    return command.ext.get(name, "")


def _group(command: Command) -> str:
    if "groupName" in command.ext or len(command.body) > SMALL_BODY:
        return _field("groupName", command)
    return GroupConfig.from_json(parse_body(command.body, "group configuration")).name


def _reset(command: Command) -> str:
    header = ResetOffsetHeader.from_ext(command.ext)
    is_one = (header.queue_id or 0) >= 0 and header.offset is not None and header.offset >= 0
    where = f" queue {header.queue_id} at {header.offset}" if is_one else ""
    if command.body:
        where = " at the offsets that it names"
    elif not is_one:
        where = f" at {header.timestamp}"
    return f"{header.group} in {header.topic}{where}"


def _cloned(command: Command) -> str:
    header = CloneOffsetHeader.from_ext(command.ext)
    where = f" in {header.topic}" if header.topic else ""
    return f"{header.dest_group} from {header.src_group}{where}"


def _consumed(command: Command) -> str:
    header = ConsumeDirectlyHeader.from_ext(command.ext)
    return f"{header.consumer_group} {header.msg_id}"


def _drained(command: Command) -> str:
    header = DrainHeader.from_ext(command.ext)
    return f"{header.action} of everything" if header.everything else header.action


def _requested(command: Command) -> list[str]:
    """The names in the first lines of a request for settings, ours where they are known. A turn of
    the loop has no time to read all lines as they are meant."""
    lines = command.body[:_READ_BYTES].split(b"\n", _SHOWN_SETTINGS)[:_SHOWN_SETTINGS]
    names = [line.partition(b"=")[0].strip().decode("utf-8", "replace") for line in lines]
    found = [setting_named(name) for name in names if name]
    return [
        name if one is None else one.full_key
        for name, one in zip(filter(None, names), found, strict=True)
    ]


def _settings(command: Command) -> str:
    return " ".join(dict.fromkeys(_requested(command)))


def _yes(value: bool) -> str:
    return "yes" if value else "no"
