"""Whether master and slave are what their clients were told (docs/reliability.md 5).

The master's store is judged as after any kill. The slave's log has to be the first bytes of the
master's, and what was answered SEND_OK under SYNC_MASTER has to be in it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from tests.crash.judges.checker import Violation, check
from tests.crash.judges.found import read_config
from tests.crash.judges.history import OK, UNKNOWN, Found, History, Promise, Queue, Sent
from tests.crash.judges.records import LogFiles, Record, read_log, read_queues

# Stored messages are there after a kill; nobody's power was cut.
_KEPT = Promise()


def of_files(store: Path) -> Found:
    """The content of a stopped broker's files: nothing in between serves it."""
    log = read_log(store / "commitlog")
    pulled: dict[Queue, list[Record]] = {}
    for one in log.records:
        pulled.setdefault((one.topic, one.queue_id), []).append(one)
    ranges = {key: (records[0].queue_offset, len(records)) for key, records in pulled.items()}
    topics, committed = read_config(store)
    units = read_queues(store / "consumequeue")
    return Found(pulled, ranges, log.start, log.end, log.records, units, None, 0, topics, committed)


def on_slave(history: History, promised: Collection[Sent]) -> History:
    """The history as a slave has to fulfil it: only what was `promised` has to be there."""
    there = {id(one) for one in promised}
    sends = [
        one if one.outcome != OK or id(one) in there else replace(one, outcome=UNKNOWN)
        for one in history.sends
    ]
    return History(sends)


def judge_stores(
    history: History, promised: Collection[Sent], master: Path, slave: Path
) -> list[Violation]:
    """Everything that is wrong with the files of both."""
    wrong = [
        one._replace(text=f"master: {one.text}") for one in check(history, of_files(master), _KEPT)
    ]
    wrong += judge_slave(history, promised, of_files(slave))
    return wrong + not_a_prefix(
        read_log(master / "commitlog"), read_log(slave / "commitlog"), master, slave
    )


def judge_slave(history: History, promised: Collection[Sent], found: Found) -> list[Violation]:
    """Everything that is wrong with the slave, from its files or from what it serves."""
    kept = on_slave(history, promised)
    return [
        one._replace(rule="I11" if one.rule == "I1" else one.rule, text=f"slave: {one.text}")
        for one in check(kept, found, _KEPT)
    ]


def not_a_prefix(of: LogFiles, log: LogFiles, master: Path, slave: Path) -> list[Violation]:
    """Where the slave's log is not the beginning of the master's."""
    if log.end > of.end:
        return [Violation("I11", f"the slave's log ends at {log.end}, the master's at {of.end}")]
    wrong = []
    for segment in sorted((slave / "commitlog").iterdir()):
        begin = int(segment.name)
        data = segment.read_bytes()[: max(0, log.end - begin)]
        same = master / "commitlog" / segment.name
        if data and (not same.exists() or same.read_bytes()[: len(data)] != data):
            wrong.append(Violation("I11", f"the slave's segment {segment.name} is another one"))
    return wrong
