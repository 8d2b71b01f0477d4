"""`aerobee check`: one value against two thresholds, for monitoring systems.

Requests of RocketMQ's own are used, so Java's brokers can be checked as well. A value that nobody
can tell is unknown (3) and never ok.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import ssl
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from aerobee.address_list import address_list
from aerobee.cli.cluster.command_session import (
    admin_of,
    check_group,
    name_servers,
    say_slaves_read,
    security_of,
)
from aerobee.cli.configuration.context_file import apply_context
from aerobee.cli.doctor.thresholds import (
    CRITICAL,
    UNKNOWN,
    Measured,
    Range,
    Thresholds,
    line_of,
    worst_of,
)
from aerobee.cli.printing.output import CommandFailed, quieten_logs, show
from aerobee.client.admin import Admin
from aerobee.client.administration.name_server_tables import cluster_at
from aerobee.client.connections.session import Session
from aerobee.client.errors import ClientError, NetworkError, NoRoute
from aerobee.client.options import ClientOptions, split_address
from aerobee.config.tls.certificates import validity
from aerobee.protocol.bodies.clients import BROADCASTING
from aerobee.protocol.bodies.routes import masters
from aerobee.protocol.bodies.statistics import ConsumeStats
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.names import dlq_topic

_FILE_BYTES_MAX: Final = 1 << 20
_PORTS_AT_ONCE: Final = 16


class Result(NamedTuple):
    """The result of a check: a sentence, the values, and their state if the thresholds do not give
    it."""

    text: str
    values: list[Measured]
    state: int | None = None


def _plugin(
    work: Callable[[argparse.Namespace], Coroutine[Any, Any, Result]],
) -> Callable[[argparse.Namespace], int]:
    """A command that prints one line and exits with its state, whatever becomes of `work`."""

    @functools.wraps(work)
    def run(parsed: argparse.Namespace) -> int:
        quieten_logs()
        name = parsed.command.rpartition(" ")[2]
        try:
            thresholds = Thresholds(Range.parse(parsed.warning), Range.parse(parsed.critical))
            apply_context(parsed)
            result = asyncio.run(work(parsed))
        except (ClientError, CommandFailed, OSError, ValueError) as error:
            show(line_of(name, UNKNOWN, str(error)))
            return UNKNOWN
        state = worst_of(thresholds, result.values) if result.state is None else result.state
        show(line_of(name, state, result.text, result.values, thresholds))
        return state

    return run


@_plugin
async def check_lag(parsed: argparse.Namespace) -> Result:
    """How many messages a group has before it, as its brokers count them (request 208)."""
    check_group(parsed.group)
    async with admin_of(parsed, reads_slaves=True) as admin:
        await _check_known(admin, parsed.group)
        stats = await _progress_of(admin, parsed.group)
        say_slaves_read(admin)
    if not stats.queues and not stats.waiting_retries:
        raise CommandFailed(
            f"group {parsed.group} has consumed nothing, and has no member: no broker knows where "
            "it is"
        )
    by_topic: dict[str, int] = {}
    for queue, progress in stats.queues.items():
        by_topic[queue.topic] = by_topic.get(queue.topic, 0) + progress.lag
    if parsed.topic is not None:
        if parsed.topic not in by_topic:
            raise CommandFailed(f"group {parsed.group} consumes no topic {parsed.topic}")
        lag = by_topic[parsed.topic]
        return Result(f"{parsed.group} has {lag} messages before it in {parsed.topic}", [_lag(lag)])
    text = f"{parsed.group} has {stats.lag} messages before it in {len(by_topic)} topics"
    if stats.waiting_retries:
        text += f", {stats.waiting_retries} of them wait for their next try"
    return Result(text, [_lag(stats.lag)])


async def _progress_of(admin: Admin, group: str) -> ConsumeStats:
    """How far a group is in all its topics. RocketMQ's brokers have to be asked by name for those
    that it subscribes to and has not consumed anything of. Raises CommandFailed for a group whose
    members keep their offsets themselves."""
    state = (await admin.group_state(group)).values()
    if any(one.message_model == BROADCASTING for one in state):
        raise CommandFailed(
            f"the members of {group} keep their offsets themselves (broadcasting), so no broker "
            "knows how far each is"
        )
    stats = await admin.group_stats(group)
    progress = dict(stats.queues)
    known = {queue.topic for queue in progress}
    for topic in sorted({topic for one in state for topic in one.subscriptions} - known):
        progress |= await admin.group_progress(group, topic)
    return ConsumeStats(progress, stats.tps, stats.waiting_retries)


def _lag(lag: int) -> Measured:
    return Measured("lag", lag)


async def _check_known(admin: Admin, group: str) -> None:
    """A name that is mistyped has no lag and no dead letters, which must not look like all is
    well."""
    if group not in await admin.groups():
        raise CommandFailed(f"no broker knows a consumer group {group}")


@_plugin
async def check_dlq(parsed: argparse.Namespace) -> Result:
    """How many messages a group has given up, as its dead letter topic has them (request 202)."""
    check_group(parsed.group)
    async with admin_of(parsed) as admin:
        await _check_known(admin, parsed.group)
        topic = dlq_topic(parsed.group)
        try:
            route = await admin.route(topic)
        except NoRoute:
            return Result(f"{parsed.group} has no dead letter topic yet", [Measured("dead", 0)])
        if away := {one.broker_name for one in route.queues} - masters(route.brokers).keys():
            raise CommandFailed(f"no master of {', '.join(sorted(away))} can be asked for {topic}")
        stats = await admin.topic_stats(topic)
    dead = sum(max(one.max_offset - one.min_offset, 0) for one in stats.values())
    return Result(f"{parsed.group} has {dead} dead letters", [Measured("dead", dead)])


@_plugin
async def check_disk(parsed: argparse.Namespace) -> Result:
    """How full the fullest disk of each master is, as it says itself (request 28)."""
    async with admin_of(parsed) as admin:
        chosen = _chosen(masters((await admin.cluster()).brokers.values()), parsed.broker)
        tables = await asyncio.gather(*(admin.runtime_info(one) for one in chosen.values()))
    used = {name: _used_percent(table) for name, table in zip(chosen, tables, strict=True)}
    if missing := [name for name, one in used.items() if one is None]:
        raise CommandFailed(f"{', '.join(missing)} does not say how full its disk is")
    values = [Measured(name, one, "%") for name, one in used.items() if one is not None]
    return Result(", ".join(f"{one.label} {one.value:g} % used" for one in values), values)


def _used_percent(table: Mapping[str, str]) -> float | None:
    """The fullest of a broker's disks, in percent; None if it tells of none."""
    found = []
    for key, text in table.items():
        if key.startswith("commitLogDiskRatio") or key == "consumeQueueDiskRatio":
            try:
                ratio = float(text)
            except ValueError:
                continue
            # RocketMQ says -1 of a disk that it cannot ask.
            if 0 <= ratio <= 1:
                found.append(round(ratio * 100, 2))
    return max(found, default=None)


def _chosen(known: Mapping[str, str], broker: str | None) -> dict[str, str]:
    """The masters that are asked, by name."""
    if broker is not None and broker not in known:
        names = ", ".join(sorted(known)) or "none"
        raise CommandFailed(f"no name server knows a master of {broker}: there is {names}")
    found = {name: one for name, one in sorted(known.items()) if broker in (None, name)}
    if not found:
        raise CommandFailed("no name server knows a master of any broker")
    return found


@_plugin
async def check_connection(parsed: argparse.Namespace) -> Result:
    """How long name servers and masters take to answer; who does not answer is critical."""
    options = ClientOptions(call_timeout_s=parsed.timeout, **security_of(parsed))
    session = Session(name_servers(parsed), options)
    session.start()
    try:
        servers = await _all_timed(session.name_servers, lambda one: cluster_at(session, one))
        known: dict[str, str] = {}
        for answer in servers.values():
            if isinstance(answer, _Timed):
                known |= masters(answer.value.brokers.values())
        addresses = {*_chosen(known, parsed.broker).values()} if known else set()
        brokers = await _all_timed(
            sorted(addresses), lambda one: session.call(one, RequestCode.GET_BROKER_RUNTIME_INFO)
        )
    finally:
        await session.close()
    asked = servers | brokers
    silent = {where: one for where, one in asked.items() if isinstance(one, NetworkError)}
    values = [
        Measured(where, round(one.seconds, 6), "s")
        for where, one in asked.items()
        if isinstance(one, _Timed)
    ]
    if silent:
        text = "; ".join(f"{where} does not answer: {one}" for where, one in silent.items())
        return Result(text, values, CRITICAL)
    if parsed.broker is None and not addresses:
        return Result("the name servers answer, and know no master", values, CRITICAL)
    slowest = max((one.value for one in values), default=0.0)
    text = f"{len(servers)} name servers and {len(brokers)} masters answer"
    return Result(f"{text}, the slowest in {slowest:.3f} s", values)


class _Timed(NamedTuple):
    """An answer, and the time to it."""

    value: Any
    seconds: float


async def _all_timed(
    addresses: Iterable[str], ask: Callable[[str], Coroutine[Any, Any, Any]]
) -> dict[str, _Timed | ClientError]:
    """The answer of each and its time, or its error; a refusal is an answer."""

    async def timed(address: str) -> _Timed | ClientError:
        began = time.monotonic()
        try:
            value = await ask(address)
        except NetworkError as error:
            return error
        except ClientError as error:
            value = error
        return _Timed(value, time.monotonic() - began)

    asked = list(addresses)
    return dict(zip(asked, await asyncio.gather(*map(timed, asked)), strict=True))


@_plugin
async def check_certificate(parsed: argparse.Namespace) -> Result:
    """How many days certificates hold: of files, or as ports show them."""
    targets = parsed.target or await _ports_of(parsed)
    turns = asyncio.Semaphore(_PORTS_AT_ONCE)

    async def end_of(target: str) -> datetime:
        async with turns:
            return await asyncio.to_thread(_file_end, target) or await _shown_end(parsed, target)

    ends = await asyncio.gather(*map(end_of, targets))
    now = datetime.now(UTC)
    values = [Measured(target, (end - now).days) for target, end in zip(targets, ends, strict=True)]
    text = ", ".join(
        f"{one.label} has ended" if end <= now else f"{one.label} holds for {one.value:g} days"
        for one, end in zip(values, ends, strict=True)
    )
    return Result(text, values, CRITICAL if any(end <= now for end in ends) else None)


async def _ports_of(parsed: argparse.Namespace) -> list[str]:
    """The name servers, and the masters that they know."""
    async with admin_of(parsed) as admin:
        found = masters((await admin.cluster()).brokers.values())
    return list(dict.fromkeys([*address_list(name_servers(parsed)), *sorted(found.values())]))


def _file_end(target: str) -> datetime | None:
    """The end of the first certificate of a file; None if there is no such file."""
    try:
        with Path(target).open("rb") as file:
            text = file.read(_FILE_BYTES_MAX).decode("ascii", "replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CommandFailed(f"{target} cannot be read: {error.strerror}") from None
    begin = text.find("-----BEGIN CERTIFICATE-----")
    end = text.find("-----END CERTIFICATE-----", begin)
    if begin < 0 or end < 0:
        raise CommandFailed(f"{target} holds no certificate in PEM")
    return validity(ssl.PEM_cert_to_DER_cert(text[begin : end + 25])).end


async def _shown_end(parsed: argparse.Namespace, target: str) -> datetime:
    """The end of the certificate that a port shows, whoever has signed it."""
    if "/" in target:
        raise CommandFailed(f"there is no file {target}")
    host, port = split_address(target)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # It is looked at and nothing is sent: an end that has passed must be seen as well.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if parsed.certificate is not None:
        context.load_cert_chain(parsed.certificate, parsed.certificate_key)
    try:
        async with asyncio.timeout(parsed.timeout):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except TimeoutError:
        raise CommandFailed(f"{target} did not answer within {parsed.timeout:g} s") from None
    except (OSError, ssl.SSLError) as error:
        raise CommandFailed(f"{target} speaks no TLS, or does not answer: {error}") from None
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    if shown is None:
        raise CommandFailed(f"{target} shows no certificate")
    return validity(shown).end
