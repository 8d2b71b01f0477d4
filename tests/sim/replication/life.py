"""A life of a master and its slaves: seeded steps, in which both sides and the network do what they
may do, and what is judged meanwhile.

Everything follows from the seed: the case (`cases.py`), the steps, what the network does, what a
power cut leaves. What is judged at the end is in `judge.py`; at each step:

- what a slave that is served has is what its master has, and no more (I11);
- an answer of success is given when enough slaves have the message, each of them once (I11);
- after each start the log goes as far as its store had promised (I1).
"""

import errno
import os
import random
from collections.abc import Callable
from typing import NamedTuple

from aerobee.protocol.message.record import StoreMessage, encode_record
from aerobee.protocol.replication import (
    HEAD_BYTES,
    BadReplication,
    decode_head,
    encode_head,
    encode_report,
)
from aerobee.store.disk.owner import here
from aerobee.store.errors import StoreError
from aerobee.store.log.compiled import Compiled
from aerobee.store.log.replication.appender import BlockDamaged, BlockRefused
from aerobee.store.log.replication.feed import CannotFollow, FollowError, Piece
from tests.sim.replication.machine import SEGMENT, Case, Machine, Rules, first_difference
from tests.sim.replication.network import Link
from tests.sim.storage.checker import Fault
from tests.sim.storage.history import HALF, ROLLBACK
from tests.sim.storage.stepped_store import SteppedClock
from tests.unit.store.support import message

QUEUES = (("Orders", 0), ("Orders", 1), ("Payments", 0), ("%RETRY%g", 0))
_BODY_AT = 88  # in a record of IPv4 hosts
_SIZES = (10, 120, 600)


class Sent(NamedTuple):
    """A message that the master has appended."""

    number: int
    log_offset: int
    record: bytes
    # Log offset behind what is answered together.
    answered_with: int
    at: int

    @property
    def end(self) -> int:
        """Log offset behind the record."""
        return self.log_offset + len(self.record)


class Life:
    """One life. `run`, then `faults` says what was wrong."""

    def __init__(
        self, seed: int, case: Case, rules: Rules | None = None, compiled: Compiled | None = None
    ) -> None:
        self.chance = random.Random(f"replication {seed}")
        self.case = case
        self.rules = rules or Rules()
        self.clock = SteppedClock()
        self.log: list[str] = []
        self.faults: list[Fault] = []
        #: Counts the steps and, within them, the starts.
        self.now = 0
        self.machines = [
            Machine(number, case, self.rules, self.clock, compiled)
            for number in range(1 + case.slaves)
        ]
        self.links: list[Link] = []
        self.sent: list[Sent] = []
        self.waiting: list[Sent] = []
        self.acked: list[Sent] = []
        self.alone = 0
        # Whether a master has lost what a slave may have, or another one has become the master.
        self._parted = False
        self._faulty = True
        # Records that were hurt on their way.
        self._hurt: set[int] = set()

    def give_back(self) -> None:
        """Close what the machines have open; thousands of lives share one process."""
        for link in self.links:
            link.follower.gone()
        for machine in self.machines:
            machine.store.abandon()

    def run(self) -> None:
        """Live it to its end, when all faults are over and all have everything."""
        for machine in self.machines:
            machine.start()
        names, weights = list(self.case.weights), list(self.case.weights.values())
        for _ in range(self.case.steps):
            self._step(self.chance.choices(names, weights)[0])
            if self.faults:
                return

    # --- who is who ---------------------------------------------------------------------------

    @property
    def master(self) -> Machine:
        return next(machine for machine in self.machines if machine.is_master)

    @property
    def slaves(self) -> list[Machine]:
        return [machine for machine in self.machines if not machine.is_master]

    def link_of(self, slave: Machine) -> Link | None:
        """The connection of a slave, as far as it knows."""
        return next((link for link in self.links if link.slave is slave and link.slave_open), None)

    def _fault(self, invariant: str, text: str) -> None:
        self.note(f"{invariant}: {text}")
        self.faults.append(Fault(invariant, text))

    def note(self, text: str) -> None:
        """Write something down for those who look at the life again."""
        self.log.append(f"{self.now}: {text}")

    # --- steps --------------------------------------------------------------------------------

    def _step(self, name: str) -> None:
        self.now += 1
        passed_ms = self.chance.choice((0, 1, 20, 900))
        self.clock.time_ms += passed_ms
        self.clock.passed_s += passed_ms / 1000
        step: Callable[[], None] = getattr(self, f"_step_{name}")
        step()
        self._answer()
        self._look_at_slaves()

    def _any(self) -> Machine:
        return self.chance.choice(self.machines)

    def _step_put(self) -> None:
        self._put(1)

    def _step_batch(self) -> None:
        self._put(self.chance.randint(2, 4))

    def _put(self, count: int) -> None:
        topic, queue_id = self.chance.choice(QUEUES)
        transaction = self.chance.choice((0, 0, 0, HALF, ROLLBACK))
        messages = [self._message(topic, queue_id, transaction, n) for n in range(count)]
        log = self.master.store.log
        try:
            result = log.put_batch(messages) if count > 1 else log.put(messages[0])
        except StoreError as error:
            self.note(f"refused {type(error).__name__}")
            return
        offsets = result.log_offsets or (result.log_offset,)
        for number, (one, log_offset) in enumerate(zip(messages, offsets, strict=True)):
            queue_offset = result.queue_offset + number
            record = encode_record(one, queue_offset, log_offset, result.store_timestamp_ms)
            made = Sent(len(self.sent), log_offset, record, result.end, self.now)
            self.sent.append(made)
            self.waiting.append(made)
        self.note(f"put {count} up to {result.end}")

    def _message(self, topic: str, queue_id: int, transaction: int, place: int) -> StoreMessage:
        number = len(self.sent) + place
        filler = random.Random(number).randbytes(self.chance.choice(_SIZES))
        return message(
            b"%06d " % number + filler,
            topic,
            queue_id,
            keys=f"k{number % 5}" if number % 2 else "",
            tags=f"T{number % 3}",
            sys_flag=transaction,
        )

    def _step_sync(self) -> None:
        self._sync(self._any())

    def _sync(self, machine: Machine) -> None:
        machine.store.sync_log()
        if not machine.is_master:
            machine.note_reached()

    def _step_dispatch(self) -> None:
        self._any().store.dispatch()

    def _step_flush_queues(self) -> None:
        self._any().store.flush_queues(thorough=self.chance.random() < 0.7)

    def _step_allocate(self) -> None:
        machine = self._any()
        machine.store.allocate()
        link = self.link_of(machine)
        if link is not None:
            self._take(link)

    def _step_commit(self) -> None:
        self.master.store.commit()

    def _step_retain(self) -> None:
        """An hour or so goes by, and what has expired is deleted. No answer waits for that long."""
        self.waiting = []
        passed_s = self.chance.randint(600, 5400)
        self.clock.time_ms += passed_s * 1000
        self.clock.passed_s += passed_s
        machine = self._any()
        store, before = machine.store, machine.begin
        self._sync(machine)
        store.dispatch()
        store.flush_queues(thorough=True)
        store.retention.arm()
        try:
            store.retention.run(here)
        except OSError as error:
            self.note(f"retention failed: {error}")
        self.note(f"{machine.root} begins at {machine.begin}, before at {before}")

    # --- the network --------------------------------------------------------------------------

    def _step_connect(self) -> None:
        self._connect(self.chance.choice(self.slaves))

    def _connect(self, slave: Machine) -> None:
        if self.link_of(slave) is not None or slave.stuck or slave.store.broken is not None:
            return
        appender, master = slave.appender, self.master
        if not appender.may_ask:
            self._sync(slave)
            if not appender.may_ask:
                return
        link = Link(slave, master.feed.admit(slave.number if self.rules.names else None))
        self.links.append(link)
        if self.rules.compares and self._differs(link):
            return
        ask = appender.written
        if appender.is_empty or (not ask and not master.begin):
            ask = master.begin or min(1, master.store.marks.readable)
        elif ask < master.begin:
            self._refuse(link, f"below: the master begins at {master.begin}", legitimate=True)
            return
        appender.connect(ask)
        link.last_report = ask
        link.to_master.send(encode_report(ask))
        self.note(f"{slave.root} connects and asks for {ask}")

    def _differs(self, link: Link) -> bool:
        """Compare the logs, with the connection open, so that it is the same master that is asked
        afterwards; whether the slave has what its master has not."""
        master, slave = self.master, link.slave
        if slave.store.written > master.store.marks.readable:
            # A slave that does not compare is refused for the same as long as nothing is appended.
            self._hear(link, slave.store.written)
            return True
        if (place := first_difference(master, slave)) is not None:
            self._refuse(link, f"differs at {place}", legitimate=self._parted)
            return True
        return False

    def _step_flow(self) -> None:
        if not self.links:
            self._step_connect()
        for _ in range(self.chance.randint(1, 6)):
            if not self.links:
                return
            link = self.chance.choice(self.links)
            self._send(link, self.chance.choice((40, 300, 3000)))
            if self.chance.random() < 0.8:
                self._arrive_at_slave(link)
            if self.chance.random() < 0.8:
                self._report(link)
            if self.chance.random() < 0.8:
                self._arrive_at_master(link)

    def _step_stream(self) -> None:
        """A slave gets all there is, and reports it."""
        if self.links:
            self._stream(self.chance.choice(self.links))

    def _stream(self, link: Link) -> None:
        self._arrive_at_master(link)
        while link in self.links and self._send(link, 3000):
            self._arrive_at_slave(link)
        for _ in range(4):
            link.slave.store.allocate()
            self._arrive_at_slave(link)
            self._check(link, to_the_end=True)
        self._report(link)
        self._arrive_at_master(link)

    def _step_check(self) -> None:
        if self.links:
            self._check(self.chance.choice(self.links))

    def _step_sign(self) -> None:
        if self.links:
            link = self.chance.choice(self.links)
            if link.master_open and link.follower.asked:
                link.to_slave.send(encode_head(link.follower.position, 0))

    def _step_report(self) -> None:
        if self.links:
            self._report(self.chance.choice(self.links), again=True)

    def _step_arrive(self) -> None:
        if self.links:
            link = self.chance.choice(self.links)
            self.chance.choice((self._arrive_at_slave, self._arrive_at_master))(link)

    def _step_cut(self) -> None:
        if self.links:
            self.chance.choice(self.links).cut(self.chance)
            self.note("the network fails")

    def _step_tire(self) -> None:
        """A side that hears nothing any more ends the connection."""
        for link in list(self.links):
            if link.to_slave.ended and self.chance.random() < 0.7:
                self._close_slave(link)
            if link.to_master.ended and self.chance.random() < 0.4:
                self._close_master(link)

    # --- the master's side --------------------------------------------------------------------

    def _send(self, link: Link, most: int) -> bool:
        """Send a block; whether there was one."""
        if not link.master_open:
            return False
        follower = link.follower
        try:
            piece = follower.next_piece(self.chance.randint(1, most))
            if piece is None:
                return False
            if self._faulty and self.chance.random() < self.case.read_fails:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            data = os.pread(piece.fd, piece.size, piece.position)
        except CannotFollow as error:
            self._cannot_follow(link, error)
            return False
        except OSError as error:
            self.note(f"reading failed {error}")
            self._close_master(link)
            return False
        assert len(data) == piece.size
        follower.took(piece.size)
        data = self._on_the_way(piece, data)
        link.to_slave.send(encode_head(piece.log_offset, piece.size) + data)
        return True

    def _on_the_way(self, piece: Piece, data: bytes) -> bytes:
        """The bytes as they arrive: now and then one bit of a body is another, which the network
        does not notice. Each record is hurt once at most."""
        log_offset = piece.log_offset
        if not self._faulty or self.chance.random() >= self.case.hurt:
            return data
        for sent in self.sent:
            first = max(sent.log_offset + _BODY_AT, log_offset)
            last = min(sent.log_offset + _BODY_AT + 17, log_offset + len(data))
            # A master that has lost a record may have another one there, whose body is elsewhere.
            at_file = piece.position + sent.log_offset - log_offset
            if (
                first < last
                and sent.log_offset not in self._hurt
                and os.pread(piece.fd, len(sent.record), at_file) == sent.record
            ):
                self._hurt.add(sent.log_offset)
                at = self.chance.randrange(first, last) - log_offset
                self.note(f"a bit at {log_offset + at} is another on its way")
                flipped = data[at] ^ 1 << self.chance.randrange(8)
                return data[:at] + bytes([flipped]) + data[at + 1 :]
        return data

    def _arrive_at_master(self, link: Link) -> None:
        if not link.master_open:
            return
        data = link.to_master.take(self.chance)
        if link.to_master.heard:
            self._close_master(link)
        elif data:
            report = link.reports.feed(data)
            if report is not None:
                self._hear(link, report)

    def _hear(self, link: Link, report: int) -> None:
        try:
            link.follower.report(report)
        except CannotFollow as error:
            self._cannot_follow(link, error)
            return
        if link.compared < 0:
            link.compared = 0
        self._answer()

    def _cannot_follow(self, link: Link, error: CannotFollow) -> None:
        master = self.master.store
        legitimate = {
            FollowError.ABOVE: self._parted or master.broken is not None,
            FollowError.BELOW: error.log_offset < master.min_log_offset,
        }
        self._refuse(link, f"{error.kind.value}: {error}", legitimate=legitimate.get(error.kind))

    def _refuse(self, link: Link, text: str, *, legitimate: bool | None) -> None:
        """The slave cannot go on until somebody does something."""
        self.note(f"{link.slave.root} is refused: {text}")
        if not legitimate:
            self._fault("I11", f"{link.slave.root} is refused for no reason: {text}")
        if link.slave_open:
            link.slave.stuck = text
        self._close_master(link)
        self._close_slave(link)

    def _close_master(self, link: Link, *, silent: bool = False) -> None:
        if link.master_open:
            link.close_master(self.chance, silent=silent)
            link.follower.gone()
            self._forget(link)
            self._answer()

    def _forget(self, link: Link) -> None:
        if not link.slave_open and not link.master_open and link in self.links:
            self.links.remove(link)

    # --- the slave's side ---------------------------------------------------------------------

    def _arrive_at_slave(self, link: Link) -> None:
        if not link.slave_open:
            return
        link.arrived += link.to_slave.take(self.chance)
        self._take(link)
        if link.to_slave.heard and link.slave_open:
            self._close_slave(link)

    def _take(self, link: Link) -> None:
        """Take the bytes that have arrived, as far as there is room."""
        appender, arrived = link.slave.appender, link.arrived
        try:
            while arrived:
                if not appender.left:
                    self._check_some(link)
                    if len(arrived) < HEAD_BYTES:
                        return
                    head = decode_head(arrived[:HEAD_BYTES])
                    whole = memoryview(bytes(arrived[HEAD_BYTES:][: head.size]))
                    at_once = self.chance.random() < 0.5 and len(whole) == head.size
                    if at_once and appender.take_whole(head.log_offset, whole):
                        del arrived[: HEAD_BYTES + head.size]
                        continue
                    appender.block(*head)
                    del arrived[:HEAD_BYTES]
                    continue
                room = appender.room()
                if room is None:
                    return
                size = self.chance.randint(1, min(len(room), len(arrived)))
                room[:size] = arrived[:size]
                del arrived[:size]
                appender.landed(size)
                if self.chance.random() < 0.5:
                    self._check_some(link)
            self._check_some(link)
        except (StoreError, BadReplication) as error:
            self._slave_fails(link, error)
        finally:
            link.slave.note_reached()

    def _check_some(self, link: Link) -> None:
        """Check what is there. The end of a segment has to be checked before the next begins."""
        appender = link.slave.appender
        if self.chance.random() < 0.7 or not appender.expected % SEGMENT:
            while appender.check():
                pass

    def _check(self, link: Link, *, to_the_end: bool = False) -> None:
        if not link.slave_open:
            return
        try:
            while link.slave.appender.check() and to_the_end:
                pass
        except StoreError as error:
            self._slave_fails(link, error)
        link.slave.note_reached()

    def _slave_fails(self, link: Link, error: Exception) -> None:
        self.note(f"{link.slave.root} ends the connection: {error}")
        if isinstance(error, (BlockRefused, BadReplication)):
            self._fault("I11", f"a block is refused that its master sent: {error}")
        elif isinstance(error, BlockDamaged) and not self._hurt:
            self._fault("I11", f"a block is called damaged that was not: {error}")
        self._close_slave(link)

    def _report(self, link: Link, *, again: bool = False) -> None:
        if not link.slave_open or link.last_report < 0:
            return
        report = link.slave.appender.report
        if report != link.last_report or again:
            link.last_report = report
            link.to_master.send(encode_report(report))

    def _close_slave(self, link: Link, *, silent: bool = False) -> None:
        if link.slave_open:
            link.close_slave(self.chance, silent=silent)
            self._forget(link)

    # --- faults -------------------------------------------------------------------------------

    def _step_reopen(self) -> None:
        self._restart(self._any(), "reopen")

    def _step_kill(self) -> None:
        self._restart(self._any(), "kill")

    def _step_power(self) -> None:
        self._restart(self._any(), "power")

    def _step_mend(self) -> None:
        """Somebody starts again what has stopped."""
        for machine in self.machines:
            if machine.store.broken is not None:
                self._restart(machine, "power")

    def _step_fail_sync(self) -> None:
        machine = self._any()
        machine.files.fail_sync = "commitlog"
        self._sync(machine)
        machine.files.fail_sync = ""

    def _step_full(self) -> None:
        self._any().files.full = True

    def _step_room(self) -> None:
        for machine in self.machines:
            machine.files.full = False

    def _restart(self, machine: Machine, how: str) -> None:
        if machine.store.broken is not None:
            # The kernel shows what the disk does not have; a power cut shows the disk.
            how = "power"
        silent = how == "power"
        for link in list(self.links):
            if machine.is_master:
                self._close_master(link, silent=silent)
            elif link.slave is machine:
                self._close_slave(link, silent=silent)
        marks, master = machine.store.marks, machine.is_master
        if master:
            self.waiting = []
        self.now += 1
        text = how
        if how == "reopen":
            machine.close()
        elif how == "kill":
            machine.kill()
        else:
            text = machine.lose_power(self.chance)
        machine.start()
        end = machine.store.written
        least = {"reopen": marks.written, "kill": marks.committed}.get(how, marks.durable)
        self.note(f"{machine.root} {how} {text}: {least} to {marks.written}, now {end}")
        if end < least:
            self._fault("I1", f"{machine.root} ends at {end} after {text}, and had {least}")
        if end < marks.written:
            # It may lose that, unless it has promised what is synced only, as some slaves do.
            promised = self.case.sync_flush if master else self.case.acks_durable
            if not promised:
                machine.lost_at = self.now
            self._parted = self._parted or master

    # --- people -------------------------------------------------------------------------------

    def _step_operator(self) -> None:
        """Somebody reads why slaves are refused, and does what is written there."""
        stuck = [slave for slave in self.slaves if slave.stuck]
        ahead = [slave for slave in stuck if slave.stuck.startswith("above")]
        if ahead and self.chance.random() < 0.6:
            self._promote(max(ahead, key=lambda slave: slave.store.written))
            return
        for slave in stuck:
            self._replace_disk(slave)

    def _step_replace_disk(self) -> None:
        self._replace_disk(self.chance.choice(self.slaves))

    def _replace_disk(self, slave: Machine) -> None:
        """A slave begins with an empty disk. Until it has one, its connection has ended, and what
        its master waited for is synced."""
        for link in list(self.links):
            if link.slave is slave:
                self._close_slave(link)
                self._close_master(link)
        self._sync(self.master)
        self._answer()
        self.now += 1
        slave.lost_at = self.now
        slave.replace_disk()
        slave.start()
        self.note(f"{slave.root} has an empty disk")

    def _promote(self, slave: Machine) -> None:
        """A slave becomes the master, and its master a slave."""
        master = self.master
        self.note(f"{slave.root} becomes the master in the place of {master.root}")
        self._restart(master, "reopen")
        self._restart(slave, "reopen")
        for machine in self.slaves:
            machine.stuck = ""
            link = self.link_of(machine)
            if link is not None:
                self._close_slave(link)
        self._parted = True
        master.is_master, slave.is_master = False, True
        for machine in (master, slave):
            machine.close()
            machine.start()

    def _step_lie(self) -> None:
        """Somebody connects who says what cannot be."""
        follower = self.master.feed.admit()
        end = self.master.store.marks.readable
        asked = self.chance.random() < 0.5
        try:
            if asked:
                follower.report(self.master.begin or min(1, end))
            follower.report(end + self.chance.choice((2, 1000, 1 << 62)))
        except CannotFollow:
            follower.gone()
            return
        self._answer()

    # --- the end ------------------------------------------------------------------------------

    def end_faults(self) -> None:
        """The network carries everything again, disks have room, and what has stopped is
        started."""
        self.now += 1
        self._faulty = False
        self._step_room()
        self._step_mend()
        for link in list(self.links):
            self._close_slave(link)
            self._close_master(link)
        for _ in range(3):
            # A segment that could not be made is tried again after a while.
            self.clock.time_ms += 1000
            self.clock.passed_s += 1

    def settle_round(self) -> None:
        """One round without faults."""
        for slave in self.slaves:
            if slave.stuck:
                self._replace_disk(slave)
            self._connect(slave)
        master = self.master
        master.store.commit()
        self._sync(master)
        for link in list(self.links):
            self._stream(link)
            self._sync(link.slave)
            self._report(link)
            self._arrive_at_master(link)
        self._answer()
        self._look_at_slaves()

    def settled(self) -> bool:
        """Whether all have everything, and know of it: a slave that is not connected may have as
        much as its master, and other bytes."""
        end = self.master.store.written
        return not self.waiting and all(
            self.link_of(slave) is not None
            and (slave.store.written == end or (slave.appender.is_empty and not end))
            for slave in self.slaves
        )

    # --- judging ------------------------------------------------------------------------------

    def _answer(self) -> None:
        """Answer what need not wait any longer, and judge it."""
        store = self.master.store
        if store.broken is not None:
            self.waiting = []
            return
        marks, waiting = store.marks, []
        kept = marks.kept_here if self.rules.ack_before_report else marks.kept
        for sent in self.waiting:
            if sent.answered_with <= kept:
                self._acknowledged(sent)
            elif not (marks.lacks_slaves and sent.answered_with <= marks.kept_here):
                waiting.append(sent)
            else:
                self.alone += 1
        self.waiting = waiting

    def _acknowledged(self, sent: Sent) -> None:
        self.acked.append(sent)
        having = sum(slave.reached >= sent.end for slave in self.slaves)
        if having < self.case.copies - 1:
            self._fault("I11", f"message {sent.number} is acknowledged, {having} slaves have it")

    def _look_at_slaves(self) -> None:
        """I11, now."""
        master = self.master
        marks = master.store.marks
        served = {
            link.slave.number for link in self.links if link.master_open and link.compared >= 0
        }
        if len(served) < self.case.copies - 1 and not marks.lacks_slaves:
            self._fault("I11", f"{len(served)} slaves are served, and that is called enough")
        for link in self.links:
            slave = link.slave
            if not (link.slave_open and link.master_open and link.compared >= 0):
                continue
            if slave.store.written > master.store.committed:
                self._fault("I11", f"{slave.root} has more than its master")
            elif (place := first_difference(master, slave, link.compared)) is not None:
                self._fault("I11", f"{slave.root} differs from its master at {place}")
            link.compared = slave.store.written
