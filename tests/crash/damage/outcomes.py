"""The outcome of each class of damage, one to a row; docs/reliability.md has this table."""

import enum


class Outcome(enum.Enum):
    """How a start ends, and what a user has afterwards; the text is that of the documentation."""

    SERVED = "starts; everything is served"
    HEALED = "starts; everything is served, and made again as it was, by the start or the scrub"
    STAYS = "starts; everything is served; what is wrong stays until `aerobee store rebuild`"
    FEWER = (
        "starts; consumers miss nothing; until `aerobee store rebuild` a key may find nothing, "
        "but no other message; `aerobee store verify` names it"
    )
    LOST = "starts; the damaged records are lost, no other, and each is named by its log offset"
    CUT = (
        "starts; the log ends at the first bad record above what was known to be synced, and says "
        "so; below it only the damaged records are lost"
    )
    FRONT = "starts; a warning names the range that is gone; its messages are lost"
    EXPIRED = "starts; taken for expired: the start says where the log begins now"
    UNGUARDED = (
        "starts; nothing guards these bytes (`append_property_crc` does): the hit entry may be "
        "served as it stands, passed over, or found out; nothing else is touched"
    )
    BACKUP = "the backup, one change older, is used, and the log says so"
    ASIDE = (
        "starts; what is damaged is kept aside as `X.damaged`, the log and `/ready` name it; "
        "topics are made again from their queues, groups from offsets, of offsets each whole entry "
        "is read"
    )
    EMPTY = "begins without: there never were any, as far as can be told"
    REFUSED = "the start is refused, the text names the file; nothing is changed"


S, H, M, F = Outcome.SERVED, Outcome.HEALED, Outcome.STAYS, Outcome.FEWER
L, C, X, U = Outcome.LOST, Outcome.CUT, Outcome.EXPIRED, Outcome.UNGUARDED
N = Outcome.FRONT
B, A, E, R = Outcome.BACKUP, Outcome.ASIDE, Outcome.EMPTY, Outcome.REFUSED

TABLE: dict[str, Outcome] = {
    "log: bit of a checked field": L,
    "log: bit of a place": U,
    "log: bit nothing guards": U,
    "log: zeroed page": L,
    "log: zeros to the end of the last segment": L,
    "log: damage above the synced mark": C,
    "log: segment of a wrong size": R,
    "log: segment under the name of another": R,
    "log: segment missing inside": R,
    "log: first segment missing": N,
    "log: first segment missing, no offsets file": X,
    "log: last segment gone": R,
    "log: last segment gone, no offsets file": L,
    "log: last segment gone after a stop, no offsets file": R,
    "log: no file in the place of a segment": R,
    "log: segment behind a link": S,
    "log: foreign name": S,
    "log: directory missing": R,
    "queue: wrong entry": H,
    "queue: wrong delivery time, tags code like an address": M,
    "queue: entries behind its end": M,
    "queue: file, queue or topic missing": H,
    "queue: topic missing, no offsets file": H,
    "queue: empty file": H,
    "queue: older copy": H,
    "queue: file of a wrong size": H,
    "queue: entries of another queue": H,
    "queue: no file in its place": R,
    "queue: file behind a link": S,
    "queue: foreign name": S,
    "ext: wrong unit": S,
    "ext: bit of a tags code": U,
    "ext: wrong address in an entry": S,
    "ext: file missing, empty or older": S,
    "ext: copy under another name": S,
    "ext: files swapped": S,
    "ext: file of a wrong size": R,
    "ext: no file in its place": R,
    "ext: file behind a link": S,
    "ext: foreign name": S,
    "index: wrong entry or slot": H,
    "index: wrong header, zeroed range": F,
    "index: file missing": H,
    "index: file missing, no offsets file": F,
    "index: older copy": H,
    "index: older copy, no offsets file": F,
    "index: empty file": H,
    "index: copy under another name": H,
    "index: file of a wrong size": R,
    "index: no file in its place": R,
    "index: file behind a link": S,
    "index: foreign name": S,
    "checkpoint: wrong or missing": H,
    "checkpoint: a directory in its place": R,
    "checkpoint: a link to nothing": R,
    "checkpoint: behind a link": S,
    "offsets: wrong or missing": H,
    "offsets: older copy": H,
    "offsets: a directory in its place": R,
    "offsets: a link to nothing": R,
    "offsets: behind a link": S,
    "lock: wrong or missing": H,
    "lock: a directory in its place": R,
    "lock: a link to nothing": R,
    "lock: behind a link": S,
    "abort: missing": S,
    "abort: there, whatever it holds": S,
    "abort: a directory in its place": R,
    "abort: a link to nothing": R,
    "root: foreign name": S,
    "root: open in another process": R,
    "root: open in this process": R,
    "root: read-only file system": R,
    "root: read-only commitlog": R,
    "root: read-only consumequeue": R,
    "root: read-only index": R,
    "access: read right to root folder": R,
    "access: read right to commitlog folder": R,
    "access: read right to commitlog file": R,
    "access: read right to old commitlog file": S,
    "access: read right to consumequeue folder": R,
    "access: read right to consumequeue file": R,
    "access: read right to index folder": R,
    "access: read right to index file": R,
    "access: read right to config folder": R,
    "access: read right to namesrv folder": R,
    "access: read right to checkpoint file": R,
    "access: read right to offsets file": S,
    "access: read right to lock file": R,
    "access: read right to abort file": S,
    "access: no right to root folder": R,
    "access: no right to commitlog folder": R,
    "access: no right to commitlog file": R,
    "access: no right to old commitlog file": R,
    "access: no right to consumequeue folder": R,
    "access: no right to consumequeue file": R,
    "access: no right to index folder": R,
    "access: no right to index file": R,
    "access: no right to config folder": R,
    "access: no right to namesrv folder": R,
    "access: no right to checkpoint file": R,
    "access: no right to offsets file": R,
    "access: no right to lock file": R,
    "access: no right to abort file": S,
    "config: damaged file": B,
    "config: another shape": B,
    "config: file of another table": B,
    "config: missing, its backup is there": B,
    "config: flipped bit": U,
    "config: one table of offsets for the other": U,
    "config: no file can be read": A,
    "config: a directory in its place": A,
    "config: missing with its backup": E,
    "config: left-over file, or behind a link": S,
}
#: The areas of the table, by the beginnings of its rows.
AREAS = {
    "log": "commit log",
    "queue": "consume queue",
    "ext": "`consumequeue_ext`",
    "index": "index",
    "checkpoint": "`checkpoint`",
    "offsets": "`offsets`",
    "lock": "`lock`",
    "abort": "`abort`",
    "root": "the directory",
    "access": "the store's user has",
    "config": "tables kept as JSON (`config/*.json`, `namesrv/kvConfig.json`)",
}


def documented() -> list[str]:
    """The table as docs/reliability.md has it."""
    lines = ["| damage | outcome |", "|---|---|"]
    for area, title in AREAS.items():
        of_area: dict[Outcome, list[str]] = {}
        for kind, outcome in TABLE.items():
            name, _, what = kind.partition(": ")
            if name == area:
                of_area.setdefault(outcome, []).append(what)
        lines += [
            f"| {title}: {'; '.join(kinds)} | {one.value} |" for one, kinds in of_area.items()
        ]
    return lines


if __name__ == "__main__":
    print("\n".join(documented()))
