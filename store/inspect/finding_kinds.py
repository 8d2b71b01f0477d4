"""Every kind of finding of an audit: its level, its consequence, its remedy.

It is one table, so that all reports use the same words, and so that a test can demand a damaged
store for each kind. `repair` and `rebuild` are the commands of that name of `aerobee store`.
"""

import enum
from typing import Final, NamedTuple


class Level(enum.Enum):
    """How bad a finding is; see inspect/audit_report.py."""

    DAMAGE = "damage"
    WARNING = "warning"
    NOTE = "note"


class FindingKind(NamedTuple):
    """A class of findings."""

    level: Level
    consequence: str
    remedy: str


_D, _W, _N = Level.DAMAGE, Level.WARNING, Level.NOTE

_REPAIR = "aerobee store repair shows what can be kept"
_REBUILD_QUEUES = "aerobee store rebuild --queues makes the queues again from the log"
_REBUILD_INDEX = "aerobee store rebuild --index makes the index again from the log"
_START_MENDS = "nothing: the next start puts it right"

KINDS: Final[dict[str, FindingKind]] = {
    # --- the directory -----------------------------------------------------------------------
    "unreadable": FindingKind(
        _D,
        "the disk does not give these bytes back; what stood there is lost if it stays like that",
        "look at the disk (kernel log, SMART), copy the directory to a sound one, then repair",
    ),
    "start-refused": FindingKind(
        _D, "a broker does not start on this directory", "do what the text says, then verify again"
    ),
    "not-a-file": FindingKind(
        _D,
        "a broker refuses to start",
        "move it away (repair does), the file is made anew; a link that leads nowhere is perhaps "
        "a volume that is not mounted",
    ),
    "log-missing": FindingKind(
        _D,
        "a broker refuses to start: without its log it would number everything anew",
        "mount or restore the commit log; if it is elsewhere, give the broker's --config",
    ),
    "segment-missing": FindingKind(
        _D,
        "a broker refuses to start; the messages of this part cannot be read",
        f"restore the file from a backup; without one {_REPAIR}",
    ),
    "segment-size": FindingKind(
        _D,
        "a broker refuses to start; what stood behind the cut is lost",
        f"restore the file from a backup; without one {_REPAIR}",
    ),
    "segment-start": FindingKind(
        _D,
        "a broker refuses to start: the name is no multiple of the segment size",
        "check the segment size (mappedFileSizeCommitLog); otherwise the file is a stray: "
        f"{_REPAIR}",
    ),
    "segment-misplaced": FindingKind(
        _D,
        "no record in this file is where it says it is, so none of them can be read",
        "it is a copy of, or was swapped with, another segment: give it its own name back, or "
        f"restore the right file; without one {_REPAIR}",
    ),
    "segment-duplicate": FindingKind(
        _D,
        "two files claim the same part of the log; which one is read is chance",
        "keep the one that was written last, move the other away",
    ),
    "segment-unfinished": FindingKind(
        _W,
        "a crash left it while it was made; it holds nothing",
        "nothing: the next start removes it (RocketMQ before 5.1.3 refuses to start)",
    ),
    "segment-spare": FindingKind(_N, "made ahead of need and never used", _START_MENDS),
    "foreign-file": FindingKind(
        _N, "brokers leave it alone", "move it away if you know what it is"
    ),
    "foreign-stops-rocketmq": FindingKind(
        _W,
        "this broker leaves it alone, RocketMQ refuses to start because of it",
        "move it out of this directory, or let repair do it",
    ),
    "rebuild-left-over": FindingKind(_N, "of no use any more", "the next rebuild removes it"),
    "rebuild-broken-off": FindingKind(
        _D,
        "queues or index are missing; a start makes them again, but may give out again the offsets "
        "of messages that were lost at the end of a queue",
        "run the same aerobee store rebuild again before any start: it finishes what was begun",
    ),
    # --- records -----------------------------------------------------------------------------
    "record-damaged": FindingKind(
        _D,
        "the messages in this range are lost; those behind it are kept by this broker. RocketMQ "
        "cuts the log here and loses all that follows",
        f"restore the file from a backup; without one {_REPAIR}",
    ),
    "record-seal": FindingKind(
        _W,
        "its body is right, but topic, numbers or properties may not be what was stored; or the "
        "message was copied from another broker with its CRC",
        "with verify_property_crc set, verify and the broker take such records for damaged",
    ),
    "record-stray": FindingKind(
        _D,
        "the record's topic, queue or number was damaged: no consumer gets it",
        f"aerobee store dump messages shows its body; {_REBUILD_QUEUES}",
    ),
    "segment-not-closed": FindingKind(
        _W,
        "RocketMQ takes this for the end of the log when it recovers after a crash",
        "nothing for this broker",
    ),
    "log-trailing": FindingKind(
        _D,
        "bytes behind the end of a log that was closed in order: records were damaged, or "
        "something else has written here",
        f"keep a copy of the file; {_REPAIR}",
    ),
    "log-torn": FindingKind(
        _W,
        "what a crash left of writes that nobody was told of",
        "nothing: the next start cuts and zeroes it",
    ),
    "log-short": FindingKind(
        _D,
        "messages that were stored are gone, and their offsets must not be given out again",
        f"restore the log from a backup; without one {_REPAIR}",
    ),
    "log-front-missing": FindingKind(
        _D,
        "messages are gone that deletion had not taken; a start says so and goes on without them",
        "restore the files from a backup; without one repair, or the next start, lets the log "
        "begin where its first file does",
    ),
    "time-back": FindingKind(
        _W,
        "searching by time may miss messages. RocketMQ writes such times when the clock is set "
        "back; this broker never does",
        "nothing",
    ),
    "filler": FindingKind(
        _N, "a repair has put it in the place of records that were lost", "nothing"
    ),
    # --- consume queues ----------------------------------------------------------------------
    "queue-missing": FindingKind(
        _D, "no consumer gets these messages, and numbering would begin at 0 again", _REBUILD_QUEUES
    ),
    "topic-deleted": FindingKind(
        _N,
        "their topic is in no topic table: it was deleted, what it held is still in the log",
        "nothing; a rebuild would make its queues again",
    ),
    "queue-file-size": FindingKind(
        _D,
        "consumers do not get the messages of this file; a broker refuses to start only if most "
        "queue files have another size than it is set to",
        _START_MENDS,
    ),
    "queue-file-missing": FindingKind(
        _D, "consumers do not get the messages of this part", _START_MENDS
    ),
    "queue-file-unfinished": FindingKind(
        _W, "a crash left it while it was made; it holds nothing", "nothing: a start removes it"
    ),
    "unit-missing": FindingKind(_D, "no consumer gets these messages", _REBUILD_QUEUES),
    "queue-behind": FindingKind(
        _W, "stored, but not in their queue yet: the broker did not stop in order", _START_MENDS
    ),
    "unit-wrong": FindingKind(
        _D, "consumers get another message, or none, at this offset", _REBUILD_QUEUES
    ),
    "unit-tags": FindingKind(
        _D,
        "consumers that filter by tag may miss the message; a delayed one comes at a wrong time",
        _REBUILD_QUEUES,
    ),
    "unit-dangling": FindingKind(
        _D, "consumers get nothing at these offsets", f"{_REBUILD_QUEUES}, or {_REPAIR}"
    ),
    "unit-beyond-log": FindingKind(
        _D,
        "the queue knows messages that the log does not have (any more)",
        f"restore the log from a backup; without one {_REPAIR}",
    ),
    "unit-torn": FindingKind(
        _W,
        "the queue reached the disk before the log when the broker crashed",
        "nothing: the next start cuts these entries",
    ),
    "unit-order": FindingKind(
        _D,
        "the queue goes back in the log: searching it by offset or time goes wrong",
        _REBUILD_QUEUES,
    ),
    "queue-hole": FindingKind(
        _D, "empty slots within the queue: consumers skip them", _REBUILD_QUEUES
    ),
    "slot-lost": FindingKind(
        _N,
        "slots without a message: the queue began later, or a recovery has found these messages "
        "damaged",
        "nothing",
    ),
    "numbering-restarted": FindingKind(
        _N, "the topic was deleted and used again; the older messages are in no queue", "nothing"
    ),
    "ext-file-size": FindingKind(
        _D, "a broker refuses to start with consume_queue_ext_enabled", _REBUILD_QUEUES
    ),
    "ext-missing": FindingKind(
        _W,
        "consumers that filter by tag get these messages whether they match or not; clients filter "
        "again",
        f"nothing, or {_REBUILD_QUEUES}",
    ),
    "ext-wrong": FindingKind(
        _D, "consumers that filter by tag may miss the message", _REBUILD_QUEUES
    ),
    "queue-removed": FindingKind(
        _N, "a queue was being deleted when the broker ended", _START_MENDS
    ),
    # --- index -------------------------------------------------------------------------------
    "index-missing": FindingKind(
        _W, "queries by key find nothing", "nothing: the next start makes the index again"
    ),
    "index-size": FindingKind(_D, "a broker refuses to start", _REBUILD_INDEX),
    "index-unfinished": FindingKind(
        _W, "a crash left it while it was made; it holds nothing", _START_MENDS
    ),
    "index-header": FindingKind(
        _D, "queries do not use this file, or miss a part of it", _REBUILD_INDEX
    ),
    "index-entry": FindingKind(_D, "queries miss this entry and older ones", _REBUILD_INDEX),
    "index-slot": FindingKind(_D, "queries miss keys of this slot", _REBUILD_INDEX),
    "index-count": FindingKind(_W, "a figure only; queries do not use it", _REBUILD_INDEX),
    "index-torn": FindingKind(
        _W, "entries the header does not count yet, left by a crash", _START_MENDS
    ),
    "index-time": FindingKind(_D, "queries with a time range miss the message", _REBUILD_INDEX),
    "key-missing": FindingKind(
        _D, "queries by these keys do not find the messages", _REBUILD_INDEX
    ),
    "key-stray": FindingKind(
        _D, "queries find a message that does not have the key, or none", _REBUILD_INDEX
    ),
    "index-behind": FindingKind(
        _W, "stored, but not in the index yet: the broker did not stop in order", _START_MENDS
    ),
    # --- state -------------------------------------------------------------------------------
    "left-open": FindingKind(
        _W,
        "the broker was killed, crashed, or is running elsewhere",
        "nothing: the next start recovers",
    ),
    "lock-content": FindingKind(_N, "no broker minds", "nothing: the next start rewrites it"),
    "poisoned": FindingKind(
        _W,
        "what the kernel's cache shows may differ from the disk, so this report too",
        "look at the disk; the next start reads what the disk really holds. Verify after it",
    ),
    "offsets-damaged": FindingKind(
        _W,
        "the next start recovers by the checkpoint, as it does for a store of RocketMQ",
        "nothing: the next start writes it anew",
    ),
    "offsets-foreign": FindingKind(
        _N, "its marks are not believed", "nothing: the next start writes it anew"
    ),
    "checkpoint-damaged": FindingKind(
        _W,
        "after a crash a start reads more of the log than it needs to",
        "nothing: the next start writes it anew",
    ),
    "checkpoint-tail": FindingKind(_N, "no broker reads it", "nothing"),
    "checkpoint-ahead": FindingKind(
        _W,
        "after a crash RocketMQ may begin its recovery too late and leave messages out of their "
        "queues",
        "start this broker once; it sets the checkpoint right",
    ),
    # --- tables ------------------------------------------------------------------------------
    "config-damaged": FindingKind(
        _D,
        "a broker starts without what they held and keeps both aside: neither the table nor its "
        "backup can be read",
        "restore one of them; repair moves both away, as a start does",
    ),
    "config-unused": FindingKind(
        _W,
        "cannot be read; a broker with these settings does not look at it, another one may refuse "
        "to start",
        "nothing, if these are the broker's settings; otherwise give its --config",
    ),
    "config-from-backup": FindingKind(
        _W,
        "a start takes the backup, which is one write older",
        "repair puts the backup in its place",
    ),
    "topics-missing": FindingKind(
        _W,
        "a start makes the topics again that have queues, with as many as the store has and the "
        "rights rw; their other settings are lost, and so are topics without a message",
        "restore config/topics.json from a backup before the next start; without one compare after "
        "it: aerobee topic list, aerobee topic create NAME --queues N --update",
    ),
    "config-backup": FindingKind(
        _N, "the table itself is whole; its next write makes a new backup", "nothing"
    ),
    "config-aside": FindingKind(
        _W,
        "what only this file held is not served; of offsets the entries that were whole are",
        "restore what is in it, if anything is, then move it out of the directory",
    ),
    "config-unfinished": FindingKind(_N, "a crash left it while a table was written", "nothing"),
    "offset-beyond": FindingKind(
        _D,
        "the group has committed more than the queue holds: it will skip messages that come",
        "if the queue's files are damaged as well, aerobee store rebuild brings its end back; if "
        "the group is still beyond it then, aerobee store repair sets it to the queue's end",
    ),
}
