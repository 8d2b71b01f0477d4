"""Audit events: one line of JSON each, in files, in answers to AUDIT_EVENTS, in `aerobee audit`.

Texts from outside are cut by their bytes and escaped, so a line is ASCII, ends with its one line
break, and has `LINE_BYTES` at most. A line that cannot be read was being written when a process
ended, or is damaged; `parse_event` returns None for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from aerobee.protocol.codes import RequestCode

#: The word of each audited request code, as events and `aerobee audit --code` have it.
AUDIT_WORDS: Final[Mapping[int, str]] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: "topic_update",
    RequestCode.DELETE_TOPIC_IN_BROKER: "topic_delete",
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: "group_update",
    RequestCode.DELETE_SUBSCRIPTIONGROUP: "group_delete",
    RequestCode.UPDATE_BROKER_CONFIG: "settings_update",
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: "account_update",
    RequestCode.DELETE_ACL_CONFIG: "account_delete",
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: "white_addresses_update",
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: "offset_reset",
    RequestCode.CLONE_GROUP_OFFSET: "offset_clone",
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: "clean_queues",
    RequestCode.CLEAN_UNUSED_TOPIC: "clean_topics",
    RequestCode.DELETE_EXPIRED_COMMITLOG: "clean_log",
    RequestCode.RESUME_CHECK_HALF_MESSAGE: "check_resume",
    RequestCode.CONSUME_MESSAGE_DIRECTLY: "consume_directly",
    # Requests to name servers follow.
    RequestCode.PUT_KV_CONFIG: "kv_put",
    RequestCode.DELETE_KV_CONFIG: "kv_delete",
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: "write_permission_wipe",
    RequestCode.ADD_WRITE_PERM_OF_BROKER: "write_permission_add",
    RequestCode.DELETE_TOPIC_IN_NAMESRV: "name_server_topic_delete",
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: "name_server_topic_register",
    RequestCode.UPDATE_NAMESRV_CONFIG: "name_server_settings_update",
}
#: Changes that no request asks for: a signal has the configuration read again, and a broker takes
#: another role.
SETTINGS_RELOAD, ROLE_CHANGE = "settings_reload", "role_change"
OTHER_WORDS: Final = (SETTINGS_RELOAD, ROLE_CHANGE)
#: The most bytes of a line.
LINE_BYTES: Final = 4096
#: How a change ended. What was refused has changed nothing, unless `why` says that it was stopped
#: half-way; of what is unknown the process ended before the outcome was written.
DONE, REFUSED, FAILED, UNKNOWN = "done", "refused", "failed", "unknown"
OUTCOMES: Final = (DONE, REFUSED, FAILED, UNKNOWN)
# Bytes of each text as it stands in a line; together with names and numbers less than LINE_BYTES.
_BYTES: Final = {"object": 768, "before": 768, "after": 768, "why": 768}
_BYTES_OF_OTHERS: Final = 128
_CUT: Final = "..."


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was asked for. `id` is its own among the events of one file. Empty texts are
    not known, or do not apply; `times` counts equal requests that were refused one after the other,
    of which this is the last."""

    id: str
    timestamp_ms: int
    #: The word of the request, such as `topic_delete`.
    request: str
    #: The topic, group, account or setting that was to be changed.
    object: str = ""
    #: The access key, where accounts are asked for.
    account: str = ""
    address: str = ""
    #: Language and version, as the client gives them.
    client: str = ""
    before: str = ""
    after: str = ""
    #: One of OUTCOMES; "" for a change that has only begun.
    outcome: str = ""
    #: The reason of an outcome that is not DONE.
    why: str = ""
    times: int = 1

    def encode(self) -> bytes:
        """The line, with its line break."""
        fields: dict[str, Any] = {"id": self.id, "timestamp_ms": self.timestamp_ms}
        for name in self.__struct_fields__[2:-1]:
            if text := getattr(self, name):
                fields[name] = _cut(text, _BYTES.get(name, _BYTES_OF_OTHERS))
        if self.times != 1:
            fields["times"] = self.times
        return _json(fields) + b"\n"


def parse_event(line: bytes) -> AuditEvent | None:
    """The event of a line, with or without its line break; None for a line that is not whole."""
    try:
        return msgspec.convert(json.loads(line), AuditEvent)
    except (ValueError, RecursionError):
        return None


def _cut(text: str, most: int) -> str:
    """A text whose JSON takes `most` bytes at most; what is left out leaves dots."""
    # A half of a surrogate pair alone is no text.
    text = text[:most].encode("utf-8", "replace").decode() if not text.isascii() else text
    if len(text) <= most and len(_json(text)) <= most:
        return text
    text = text[: most - len(_CUT) - 2]
    while len(_json(text)) > most - len(_CUT):
        text = text[: len(text) * 3 // 4]
    return text + _CUT


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode("ascii")
