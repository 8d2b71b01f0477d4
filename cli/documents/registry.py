"""The document of each command that prints JSON: a type, or a list of that type.

A command that prints one object a line has the type of a line.
"""

from typing import Any, Final

from aerobee.cli.documents.audit import AuditRecord
from aerobee.cli.documents.brokers import (
    HaDescription,
    PermissionChange,
    SettingsByBroker,
    Shards,
    Status,
)
from aerobee.cli.documents.clients import ClientDescription, ClientListing
from aerobee.cli.documents.configuration import Conversion
from aerobee.cli.documents.contexts import ContextEntry
from aerobee.cli.documents.dead_letters import (
    DeadLetter,
    DeadLetterExport,
    DeadLetterGroup,
    DeadLetterPurge,
    DeadLetterResend,
)
from aerobee.cli.documents.doctor import Examination
from aerobee.cli.documents.draining import BrokerDrain
from aerobee.cli.documents.groups import (
    GroupChanged,
    GroupDescription,
    GroupExplanation,
    GroupSummary,
)
from aerobee.cli.documents.messages import (
    MessageResend,
    MessageShown,
    MessageSkip,
    TopicPurge,
    TraceEvent,
)
from aerobee.cli.documents.offsets import OffsetsMoved, QueueOffset
from aerobee.cli.documents.topics import TopicDescription, TopicExplanation, TopicSummary

DOCUMENTS: Final[dict[str, Any]] = {
    "audit": list[AuditRecord],
    "config convert": Conversion,
    "context list": list[ContextEntry],
    "context show": ContextEntry,
    "doctor": Examination,
    "group list": list[GroupSummary],
    "group describe": GroupDescription,
    "broker drain": BrokerDrain,
    "message show": list[MessageShown],
    "message trace": list[TraceEvent],
    "message resend": MessageResend,
    "message skip": MessageSkip,
    "topic purge": TopicPurge,
    "dlq list": list[DeadLetterGroup],
    "dlq peek": DeadLetter,
    "dlq export": DeadLetterExport,
    "dlq resend": DeadLetterResend,
    "dlq purge": DeadLetterPurge,
    "status": Status,
    "client list": ClientListing,
    "client show": ClientDescription,
    "topic list": list[TopicSummary],
    "topic describe": TopicDescription,
    "topic explain": TopicExplanation,
    "broker ha": HaDescription,
    "broker config": SettingsByBroker,
    "broker permission": PermissionChange,
    "shards": Shards,
    "group explain": GroupExplanation,
    "group create": GroupChanged,
    "group update": GroupChanged,
    "group delete": GroupChanged,
    "offset show": list[QueueOffset],
    "offset reset": OffsetsMoved,
    "offset clone": OffsetsMoved,
    "offset undo": OffsetsMoved,
}
#: Commands whose documents have no type yet.
UNTYPED: Final = frozenset(
    {
        "config show",
        "config check",
        "broker clean",
        "topic create",
        "topic delete",
        "message send",
        "message cancel",
        "message pull",
        "message tail",
        "message query",
        "bench send",
        "bench batch",
        "bench pull",
        "bench e2e",
        "bench workload",
        "store verify",
        "store rebuild",
        "store repair",
        "store truncate",
        "store export-timers",
        "store retention",
        "store backup",
        "store restore",
        "store verify-backup",
        "store dump messages",
        "store dump queues",
        "store dump index",
        "store dump checkpoint",
    }
)
