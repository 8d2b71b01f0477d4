"""`aerobee bench`: one measurement from the plan to the table."""

import argparse
import asyncio
import json
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from aerobee.cli.bench import bench_result
from aerobee.cli.bench.bench_plan import BenchPlan, plan_of
from aerobee.cli.bench.bench_topics import Topics
from aerobee.cli.bench.fleet import Fleet, specs_of
from aerobee.cli.bench.generator.security import is_refusal
from aerobee.cli.bench.measure import Conductor, Measurement, Second
from aerobee.cli.bench.plot import check_plot, draw
from aerobee.cli.cluster.command_session import admin_of, client_command, name_servers
from aerobee.cli.printing.output import (
    OK,
    REFUSED,
    USAGE,
    CommandFailed,
    print_json,
    print_table,
    say,
)
from aerobee.client.admin import Admin
from aerobee.client.errors import ClientError
from aerobee.protocol.bodies.routes import masters

#: `--json` without a file.
STANDARD_OUTPUT: Final = "-"
_INTERRUPTED: Final = 130
_UNKNOWN: Final = "unknown"


@client_command
async def bench(parsed: argparse.Namespace) -> int:
    """Measure, and tell; 1 when something failed or was lost, 130 when it was interrupted."""
    plan = plan_of(parsed)
    _check_outputs(parsed)
    async with admin_of(parsed) as admin:
        brokers = await _brokers(admin, plan)
        machine = bench_result.machine()
        _say_plan(plan, brokers, machine)
        topics = Topics(admin, name_servers(parsed), plan)
        try:
            found, stored = await _measured(plan, topics)
        finally:
            await asyncio.shield(topics.clean_up())
    document = bench_result.document(plan, found, brokers=brokers, machine=machine, stored=stored)
    _tell(parsed, plan, found, document)
    for text in bench_result.warnings(plan, found, stored, machine["cores"]):
        say(text)
    if found.interrupted:
        return _INTERRUPTED
    lost = stored is not None and stored < found.ever.acked
    return REFUSED if lost or found.ever.failures or found.undelivered else OK


async def _measured(plan: BenchPlan, topics: Topics) -> tuple[Measurement, int | None]:
    """The measurement, and how many messages the brokers hold of it (None: not asked)."""
    with _interrupts() as on_interrupt:
        await topics.prepare()
        async with Fleet(open_loop=plan.rate is not None) as fleet:
            await fleet.launch(specs_of(plan, topics.places))

            def tell(second: Second, warm_up: bool) -> None:
                say(bench_result.line(plan, second, warm_up=warm_up))

            conductor = Conductor(fleet, plan, tell, say)
            on_interrupt.append(conductor.interrupt)
            found = await conductor.run()
        return found, await _stored(topics, found) if plan.producers else None


async def _stored(topics: Topics, found: Measurement) -> int | None:
    """The number of its messages that the brokers hold; None, with a line about it, when they
    cannot be asked."""
    try:
        return await topics.stored(found.ever.acked)
    except ClientError as error:
        say(f"what the brokers hold of it is not known: {error}")
        return None


@contextmanager
def _interrupts() -> Iterator[list[Any]]:
    """The last callable of the list is called by Ctrl-C or SIGTERM; without one, and from
    the second time on, they end the command where it stands."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    callables: list[Any] = [task.cancel]

    def interrupted() -> None:
        callables.pop()() if len(callables) > 1 else task.cancel()

    signals = (signal.SIGINT, signal.SIGTERM)
    installed = []
    for number in signals:
        try:
            loop.add_signal_handler(number, interrupted)
        except (NotImplementedError, RuntimeError, ValueError):
            continue  # not the main thread: its own handlers do what they do
        installed.append(number)
    try:
        yield callables
    except asyncio.CancelledError:
        raise CommandFailed("interrupted", _INTERRUPTED) from None
    finally:
        for number in installed:
            loop.remove_signal_handler(number)


# Before


def _check_outputs(parsed: argparse.Namespace) -> None:
    """Refuse files that could not be written, before anything is measured."""
    files = [parsed.plot] if parsed.plot else []
    if parsed.json not in (None, STANDARD_OUTPUT):
        files.append(parsed.json)
    for name in files:
        path = Path(name)
        if path.is_dir() or not path.parent.is_dir():
            raise CommandFailed(f"{path} cannot be written: give a file in a folder that is there",
                                USAGE)  # fmt: skip
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise CommandFailed(f"{path} cannot be written: permission denied", USAGE)
    if parsed.plot:
        check_plot(Path(parsed.plot))


async def _brokers(admin: Admin, plan: BenchPlan) -> dict[str, dict[str, str]]:
    """Ask each broker what it is. Raises ClientError when no broker is registered."""
    addresses = masters((await admin.cluster()).brokers.values())
    if plan.broker is not None:
        if plan.broker not in addresses:
            known = ", ".join(sorted(addresses)) or "none"
            raise CommandFailed(f"there is no broker {plan.broker}: there is {known}")
        addresses = {plan.broker: addresses[plan.broker]}
    if not addresses:
        raise CommandFailed("no broker is registered")
    return {name: await _broker(admin, name, one) for name, one in sorted(addresses.items())}


async def _broker(admin: Admin, name: str, address: str) -> dict[str, str]:
    """Ask a broker what it is. Raises ClientError when it does not take the account."""
    info: Mapping[str, str] = {}
    settings: Mapping[str, str] = {}
    for tries in (2, 1, 0):
        try:
            info = await admin.runtime_info(address)
            settings = (await admin.broker_settings(name))[name]
            break
        except ClientError as error:
            if is_refusal(error):
                if not info:
                    raise  # whoever has an account may ask for that much
                say(f"broker {name} tells its settings to administrators only")
                break
            # RocketMQ cannot say it before its first samples, a second after its start.
            if tries:
                await asyncio.sleep(1)
            else:
                say(f"broker {name} does not say what it is: {error}")
    return {
        "address": address,
        "version": info.get("brokerVersionDesc", _UNKNOWN),
        "flushDiskType": settings.get("flushDiskType", _UNKNOWN),
        "brokerRole": settings.get("brokerRole", _UNKNOWN),
    }


def _say_plan(
    plan: BenchPlan, brokers: Mapping[str, Mapping[str, str]], machine: Mapping[str, Any]
) -> None:
    for name, one in brokers.items():
        say(f"broker {name} at {one['address']}: {one['version']}, {one['flushDiskType']}")
    security = plan.security.text
    say(
        f"{plan.name}: {plan.connections} connections of {plan.processes} "
        f"{'process' if plan.processes == 1 else 'processes'} on {machine['cores']} cores, "
        f"{plan.loop_text}, {security + ', ' if security else ''}"
        f"{plan.warm_up_s:g} s of warm-up and {plan.duration_s:g} s"
    )


# After


def _tell(
    parsed: argparse.Namespace, plan: BenchPlan, found: Measurement, document: dict[str, Any]
) -> None:
    if not found.seconds:
        say("it was interrupted before a second was measured")
    if parsed.json == STANDARD_OUTPUT:
        print_json(document)
    else:
        print_table(bench_result.COLUMNS, bench_result.table(plan, found))
        print_table(("failure", "requests", "first remark"), bench_result.failure_rows(found))
    if parsed.json not in (None, STANDARD_OUTPUT):
        text = json.dumps(document, ensure_ascii=False, indent=2) + "\n"
        _write(Path(parsed.json), lambda path: path.write_text(text, encoding="utf-8"))
    if parsed.plot and found.seconds:
        _write(Path(parsed.plot), lambda path: draw(document, path))


def _write(path: Path, write: Any) -> None:
    try:
        write(path)
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written: {error.strerror}") from error
    say(f"{path} is written")
