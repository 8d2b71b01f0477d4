"""Typed headers of transactions: a producer ends one, a broker asks about one (WIRE.md 3.1, 3.8).

As in the neighbours, fields of newer clients (`topic`, `bname`) are ignored.
"""

from collections.abc import Mapping
from typing import Self

from aerobee.protocol.errors import BadRequest
from aerobee.protocol.headers.fields import Header, Int32, Int64
from aerobee.protocol.message.record_layout import SYS_TRANSACTION_COMMIT, SYS_TRANSACTION_ROLLBACK

#: The values of `commitOrRollback`; the first says that the producer does not know yet.
UNKNOWN = 0
COMMIT = SYS_TRANSACTION_COMMIT
ROLLBACK = SYS_TRANSACTION_ROLLBACK


class EndTransactionHeader(Header):
    """END_TRANSACTION: `commit_log_offset` and `tran_state_table_offset` say where the half message
    lies, in the log and in its queue."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    from_transaction_check: bool = False
    msg_id: str | None = None
    transaction_id: str | None = None

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """Raises `BadRequest` for an unknown decision, too."""
        header = super().from_ext(ext)
        if header.commit_or_rollback not in (UNKNOWN, COMMIT, ROLLBACK):
            raise BadRequest.system_error(
                f"the field commitOrRollback must be {COMMIT} (commit), {ROLLBACK} (rollback) or "
                f"{UNKNOWN} (not known yet), got {header.commit_or_rollback}"
            )
        return header


class CheckTransactionStateHeader(Header):
    """CHECK_TRANSACTION_STATE: the half message that its producer's group is asked about; the body
    is the message as it would be delivered."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class ResumeCheckHalfMessageHeader(Header):
    """RESUME_CHECK_HALF_MESSAGE: the offsetMsgId of a half message, or of a message that was put
    aside."""

    msg_id: str | None = None
