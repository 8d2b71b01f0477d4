"""Judges a life of a master and its slaves when it ends (docs/reliability.md 5).

First, of the disks as they are: each message that was answered with success is on as many machines
as were promised, less those that have lost what they may lose. Where slaves report what is synced,
they have it after a power cut, too. So the loss of any one disk costs nothing that was answered.

Then all faults end. Every slave comes to have its master's log byte for byte, and answers stop
waiting (I13); nothing is there that was not sent (I2); queues equal those made again from the log
(I6).
"""

from collections.abc import Iterator

from tests.sim.disk.crash_model import State
from tests.sim.replication.life import Life, Sent
from tests.sim.replication.machine import Machine, first_difference
from tests.sim.storage.checker import Fault
from tests.sim.storage.history import HALF, ROLLBACK
from tests.sim.storage.raw_store import parse_log, parse_queues
from tests.sim.storage.recovered import without_derived

_ROUNDS = 60


def judge(life: Life) -> list[Fault]:
    """All that is wrong at the end of a life."""
    faults = [*judge_copies(life), *judge_after_cuts(life)]
    if not faults:
        settle(life)
        faults = life.faults or [*judge_logs(life), *judge_queues(life)]
    return faults


def judge_copies(life: Life) -> Iterator[Fault]:
    """I1, I11: what was answered is on as many disks as were promised."""
    for sent in life.acked:
        having = [machine for machine in life.machines if _has(machine, sent)]
        needed = life.case.copies - _excused(life.machines, sent)
        if len(having) < needed:
            yield Fault("I11", f"message {sent.number} is on {len(having)} disks, not {needed}")


def _excused(machines: list[Machine], sent: Sent) -> int:
    return sum(machine.lost_at > sent.at for machine in machines)


def _has(machine: Machine, sent: Sent) -> bool:
    """Whether the message is in its log, or was there until it expired."""
    store = machine.store
    if sent.log_offset < machine.begin:
        return True
    if sent.end > store.committed:
        # The transient pool of the master holds it.
        return machine.is_master and sent.end <= store.written
    return machine.log_bytes(sent.log_offset, sent.end) == sent.record


def judge_after_cuts(life: Life) -> Iterator[Fault]:
    """I11: what slaves have reported as synced is there when the power is gone everywhere, and the
    master's disk as well."""
    case = life.case
    if not case.acks_durable:
        return
    found: dict[int, int] = {}
    for slave in life.slaves:
        log = parse_log(slave.after_cut("none"), slave.root)
        there = {record.log_offset: record.data for record in log.records}
        for sent in life.acked:
            has = sent.log_offset < slave.begin or there.get(sent.log_offset) == sent.record
            found[sent.number] = found.get(sent.number, 0) + has
    master_excused = 1
    for sent in life.acked:
        needed = case.copies - master_excused - _excused(life.machines, sent)
        if found[sent.number] < needed:
            text = f"message {sent.number} is on {found[sent.number]} slaves after power cuts"
            yield Fault("I11", f"{text}, not on {needed}")


def settle(life: Life) -> None:
    """End all faults, and let everybody come to have everything."""
    life.note("the faults end")
    life.end_faults()
    for _ in range(_ROUNDS):
        if life.faults or life.settled():
            break
        life.settle_round()
    else:
        for slave in life.slaves:
            text = f"{slave.root} ends at {slave.store.written}, stuck: {slave.stuck!r}"
            life.faults.append(Fault("I13", f"{text}; {len(life.waiting)} answers wait"))
    for machine in life.machines:
        machine.store.sync_log()
        machine.store.dispatch()


def judge_logs(life: Life) -> Iterator[Fault]:
    """I2, I11: byte for byte, and all of it was sent."""
    master = life.master
    sent: dict[int, set[bytes]] = {}
    for one in life.sent:
        sent.setdefault(one.log_offset, set()).add(one.record)
    for machine in life.machines:
        log = parse_log(machine.files.image(), machine.root)
        end = machine.store.written
        if log.end < end or (machine.is_master and log.end > end):
            yield Fault("I9", f"{machine.root} ends at {end}, its log at {log.end}")
        if machine.store.known_gaps:
            yield Fault("I8", f"{machine.root} has the gaps {machine.store.known_gaps}")
        for record in log.records:
            if record.end <= end and record.data not in sent.get(record.log_offset, ()):
                yield Fault("I2", f"{machine.root} has a record of nobody at {record.log_offset}")
        if machine is not master and (place := first_difference(master, machine)) is not None:
            yield Fault("I11", f"{machine.root} differs from its master at {place}")


def judge_queues(life: Life) -> Iterator[Fault]:
    """I6: queues of slaves are those that their logs make again."""
    for slave in life.slaves:
        begin, end = slave.begin, slave.store.written
        slave.close()
        image = slave.files.image()
        queues = _entries(image, slave.root, begin)
        slave.use(without_derived(image, slave.root))
        slave.start()
        again = _entries(slave.files.image(), slave.root, begin)
        for queue in sorted(queues.keys() | again.keys()):
            if queues.get(queue) != again.get(queue):
                yield Fault("I6", f"{queue} of {slave.root} is not what its log makes")
        log = parse_log(image, slave.root)
        made = {
            record.log_offset
            for record in log.records
            if record.transaction not in (HALF, ROLLBACK) and record.end <= end
        }
        named = {unit[0] for units in queues.values() for unit in units.values()}
        if made != named:
            yield Fault("I6", f"{slave.root}: queues name {sorted(made ^ named)} wrongly")


def _entries(image: State, root: str, begin: int) -> dict[tuple[str, int], dict[int, object]]:
    found = {
        queue: {slot: unit for slot, unit in units.items() if unit.log_offset >= begin}
        for queue, units in parse_queues(image, root).items()
    }
    return {queue: dict(units) for queue, units in found.items() if units}
