"""The plan of a measurement, by the command line or a workload file; checked before it runs."""

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aerobee.cli.bench.generator.load import LoadSettings
from aerobee.cli.bench.generator.request_frames import Payload
from aerobee.cli.bench.generator.security import PLAIN, Security
from aerobee.cli.bench.loads import PULL, SEND, Mode
from aerobee.cli.bench.workload import Workload, WorkloadError, read_workload
from aerobee.cli.cluster.command_session import security_of
from aerobee.cli.printing.output import USAGE, CommandFailed

_MIB: Final = 1024 * 1024
_REQUEST_BYTES_MAX: Final = 4 * _MIB  # the most that brokers take by default
_PER_MESSAGE_BYTES: Final = 160  # a batch's message beside its body, at most
_UNDER_WAY_BYTES_MAX: Final = 256 * _MIB  # of one connection
_CONNECTIONS_MAX: Final = 20_000
_PROCESSES_MAX: Final = 64
# A closed loop waits for each answer; an open loop must not be held by answers.
_IN_FLIGHT_OPEN: Final = 1000
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """A measurement. Figures are those of one topic, one broker where they say so; `rate` is that
    of all connections together: messages a second, pulls a second of `Mode.PULL`; None is a closed
    loop."""

    name: str
    mode: Mode
    payload: Payload
    topic: str | None = None  # of somebody's choice; None: the bench's own
    broker: str | None = None
    topics: int = 1
    queues: int = 8  # of a topic that is made: on each broker, or on all if `queues_shared`
    queues_shared: bool = False
    producers: int = 0  # connections a topic
    readers: int = 0  # connections that pull what is there
    subscriptions: int = 0
    consumers: int = 0  # of each subscription
    batch: int = 0
    keys: str = "NO_KEY"
    rate: float | None = None
    in_flight: int = 1
    fetch: int = PULL.fetch
    stored: int = 0  # messages that a pull finds, at least
    backlog_bytes: int = 0
    drain_ratio: float = 1.0
    warm_up_s: float = 0.0
    duration_s: float = 10.0
    seed: int = 1
    processes: int = 1
    timeout_s: float = 5.0
    keep: bool = False
    security: Security = PLAIN

    @property
    def consumes(self) -> bool:
        """Whether there are consumers that follow."""
        return self.subscriptions > 0

    @property
    def connections(self) -> int:
        """About how many there will be; more where there are several brokers."""
        consumers = self.subscriptions * self.consumers
        return self.topics * (self.producers + consumers + self.readers)

    @property
    def settings(self) -> LoadSettings:
        """The settings of the connections."""
        rate = self.rate
        return LoadSettings(
            in_flight=self.in_flight,
            timeout_s=self.timeout_s,
            rate=rate / (self.batch or 1) if rate is not None else None,
            batch=self.batch,
            keyed=self.keys != "NO_KEY",
            shuffled_keys=self.keys == "RANDOM_NANO",
            stamped=self.consumes,
            fetch=self.fetch,
            seed=self.seed,
        )

    @property
    def loop_text(self) -> str:
        """Names the kind of loop, for people."""
        if self.rate is None:
            return f"closed loop, {self.in_flight} in flight on each connection"
        what = "pulls" if self.mode is Mode.PULL else "messages"
        return f"open loop, {self.rate:,.10g} {what}/s"


def plan_of(parsed: argparse.Namespace) -> BenchPlan:
    """The plan that a command line asks for. CommandFailed when it cannot be."""
    plan = _of_workload(parsed) if parsed.command == "bench workload" else _of_options(parsed)
    _check(plan)
    return plan


def _of_options(parsed: argparse.Namespace) -> BenchPlan:
    mode = Mode(parsed.command.removeprefix("bench "))
    pulls = mode is Mode.PULL
    follows = mode is Mode.END_TO_END
    return BenchPlan(
        name=f"{mode} {parsed.size} bytes",
        mode=mode,
        payload=Payload(parsed.size),
        topic=parsed.topic,
        broker=parsed.broker,
        queues=parsed.queues,
        producers=0 if pulls else parsed.connections,
        readers=parsed.connections if pulls else 0,
        subscriptions=parsed.subscriptions if follows else 0,
        consumers=parsed.consumers if follows else 0,
        batch=parsed.batch if mode is Mode.BATCH else 0,
        rate=parsed.rate,
        in_flight=parsed.in_flight or _in_flight(parsed.rate),
        fetch=parsed.fetch if pulls or follows else PULL.fetch,
        stored=parsed.messages if pulls else 0,
        warm_up_s=parsed.warm_up,
        duration_s=parsed.duration,
        seed=parsed.seed,
        processes=parsed.processes or _processes(),
        timeout_s=parsed.timeout,
        keep=parsed.keep,
        security=Security(**security_of(parsed)),
    )


def _of_workload(parsed: argparse.Namespace) -> BenchPlan:
    try:
        workload = read_workload(Path(parsed.file))
    except WorkloadError as error:
        raise CommandFailed(str(error), USAGE) from error
    rate = float(workload.producer_rate) or None
    warm_up_s, duration_s = parsed.warm_up, parsed.duration
    return BenchPlan(
        name=workload.name,
        mode=Mode.END_TO_END if workload.subscriptions_per_topic else Mode.SEND,
        payload=_payload_of(workload),
        broker=parsed.broker,
        topics=workload.topics,
        queues=workload.partitions_per_topic,
        queues_shared=True,
        producers=workload.producers_per_topic,
        subscriptions=workload.subscriptions_per_topic,
        consumers=workload.consumer_per_subscription,
        keys=workload.key_distributor,
        rate=rate,
        in_flight=parsed.in_flight or _in_flight(rate),
        backlog_bytes=workload.consumer_backlog_size_gb * _GIB,
        drain_ratio=workload.backlog_drain_ratio,
        warm_up_s=workload.warmup_duration_minutes * 60.0 if warm_up_s is None else warm_up_s,
        duration_s=workload.test_duration_minutes * 60.0 if duration_s is None else duration_s,
        seed=parsed.seed,
        processes=parsed.processes or _processes(),
        timeout_s=parsed.timeout,
        keep=parsed.keep,
        security=Security(**security_of(parsed)),
    )


def _payload_of(workload: Workload) -> Payload:
    if workload.payload_file:
        return Payload(workload.message_size, file=workload.payload_file)
    if workload.use_randomized_payloads:
        return Payload(
            workload.message_size,
            pool=workload.randomized_payload_pool_size,
            random_ratio=workload.random_bytes_ratio,
        )
    return Payload(workload.message_size)


def _in_flight(rate: float | None) -> int:
    return SEND.in_flight if rate is None else _IN_FLIGHT_OPEN


def _processes() -> int:
    """Half of the cores: the broker needs some as well, if it runs here."""
    return max(1, min(8, (os.cpu_count() or 1) // 2))


def _check(plan: BenchPlan) -> None:
    """Refuse what no broker or no machine could do."""
    bodies = plan.payload.size * (plan.batch or 1)
    request_bytes = bodies + (plan.batch or 0) * _PER_MESSAGE_BYTES
    if request_bytes > _REQUEST_BYTES_MAX:
        raise CommandFailed(
            f"a request of {request_bytes} bytes is more than the {_REQUEST_BYTES_MAX} that "
            "brokers take: make --batch or the messages smaller",
            USAGE,
        )
    if plan.producers and plan.in_flight * request_bytes > _UNDER_WAY_BYTES_MAX:
        raise CommandFailed(
            f"{plan.in_flight} requests of {request_bytes} bytes in flight on each connection are "
            f"more than {_UNDER_WAY_BYTES_MAX // _MIB} MiB: give less --in-flight",
            USAGE,
        )
    if plan.connections > _CONNECTIONS_MAX:
        raise CommandFailed(
            f"{plan.connections} connections are more than the {_CONNECTIONS_MAX} that this can "
            "make: fewer topics, producers or consumers",
            USAGE,
        )
    if plan.processes > _PROCESSES_MAX:
        raise CommandFailed(f"--processes must be at most {_PROCESSES_MAX}", USAGE)
