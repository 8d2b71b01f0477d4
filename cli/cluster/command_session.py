"""Running one client command: which name servers, one event loop, errors to exit codes."""

import argparse
import asyncio
import functools
import os
import re
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aerobee.access.errors import AccountFileError
from aerobee.access.files.account_places import tools_file
from aerobee.cli.configuration.context_file import apply_context
from aerobee.cli.printing.output import (
    CANNOT_CONNECT,
    OK,
    REFUSED,
    USAGE,
    CommandFailed,
    quieten_logs,
    say,
)
from aerobee.client.admin import Admin
from aerobee.client.errors import (
    CallerError,
    ClientError,
    ConnectionLost,
    MasterAway,
    NetworkError,
    NoMaster,
    NoNameServer,
    NoRoute,
    SendFailed,
    WrongPeer,
    checking_arguments,
)
from aerobee.client.options import ClientOptions
from aerobee.protocol.bodies.routes import masters
from aerobee.protocol.names import check_group_name, check_topic_name
from aerobee.remoting.tls.client_tls import WITHOUT_A_WORD, what_it_may_miss

if TYPE_CHECKING:
    from aerobee.client.consuming.pull_consumer import PullConsumer

DEFAULT_NAME_SERVER: Final = "127.0.0.1:9876"
# Brokers and clusters have topics of their names, which need not be legal for any other topic;
# these commands call `check_topic` where there is no such topic.
_TAKES_ANY_NAME: Final = frozenset({"topic describe", "topic explain"})
_MESSAGE_ID: Final = re.compile(r"[0-9a-fA-F]{32}|[0-9a-fA-F]{56}")


def check_message_id(msg_id: str) -> None:
    """Refuse a text that can be no message's id, neither a client's nor a broker's."""
    if _MESSAGE_ID.fullmatch(msg_id) is None:
        raise CommandFailed(f"{msg_id} is no message id: they have 32 or 56 hex digits", USAGE)


def name_servers(parsed: argparse.Namespace) -> str:
    """The flag or the context's, else NAMESRV_ADDR as with RocketMQ's tools, else the embedded
    name server's address."""
    return parsed.name_servers or os.environ.get("NAMESRV_ADDR") or DEFAULT_NAME_SERVER


def security_of(parsed: argparse.Namespace) -> dict[str, Any]:
    """Signing and encryption as the flags want them, as options of clients."""
    return {**_account_of(parsed), **_encryption_of(parsed)}


def _account_of(parsed: argparse.Namespace) -> dict[str, str]:
    """None where no account is named: by the flag, by AEROBEE_CREDENTIALS, or by the tools.yml that
    RocketMQ's own tools would read."""
    named = parsed.credentials or os.environ.get("AEROBEE_CREDENTIALS")
    path = Path(named) if named else tools_file(os.environ.get("ROCKETMQ_HOME"))
    if path is None:
        return {}
    # With it comes the library for YAML.
    from aerobee.access.files.credentials import Credentials

    try:
        return Credentials.read(path)._asdict()
    except AccountFileError as error:
        raise CommandFailed(str(error), USAGE) from None


def _encryption_of(parsed: argparse.Namespace) -> dict[str, Any]:
    names = ("trust_store", "certificate", "certificate_key")
    files = {name: getattr(parsed, name) for name in names}
    # A file of certificates is given for TLS, and for nothing else.
    return {"use_tls": parsed.tls or any(files.values()), **files}


def admin_of(
    parsed: argparse.Namespace, *, reads_slaves: bool = False, leaves_out_silent: bool = False
) -> Admin:
    """An administration client as the flags want it; `reads_slaves` is for commands that change
    nothing, and then call `say_slaves_read`; `leaves_out_silent` is for those that show what they
    can learn, and then return what `say_unanswered` returns."""
    options = ClientOptions(
        call_timeout_s=parsed.timeout,
        # No connection takes longer than an answer may.
        connect_timeout_s=min(parsed.timeout, ClientOptions().connect_timeout_s),
        **security_of(parsed),
    )
    return Admin(
        name_servers(parsed),
        options,
        admin_address=getattr(parsed, "admin", None),
        reads_slaves=reads_slaves,
        leaves_out_silent=leaves_out_silent,
    )


async def say_unanswered(admin: Admin) -> int:
    """Say which name servers and brokers did not answer; the exit code that follows. It is called
    when all is shown, for a silent name server is waited for here."""
    silent = await admin.unanswered()
    for address, error in sorted(silent.items()):
        kind = "name server" if address in admin.name_servers else "broker"
        say(f"{kind} {address} does not answer, the rest is shown: {error}")
    return CANNOT_CONNECT if silent else OK


async def say_silent_name_servers(admin: Admin) -> int:
    """Say which name servers did not answer, as `say_unanswered` does, where brokers are named in
    another way."""
    silent = await admin.unanswered()
    servers = {address: silent[address] for address in admin.name_servers if address in silent}
    for address, error in sorted(servers.items()):
        say(f"name server {address} does not answer, the rest is shown: {error}")
    return CANNOT_CONNECT if servers else OK


def say_slaves_read(admin: Admin) -> None:
    """Say which brokers have no master, so that what is shown of them comes from a slave."""
    if names := sorted(admin.slaves_read):
        say(
            f"no master of {', '.join(names)} is registered: a slave was asked, which knows what "
            "its master had told it"
        )


async def masters_away(admin: Admin) -> list[str]:
    """The names of the brokers whose slaves alone are registered."""
    brokers = (await admin.cluster()).brokers
    return sorted(brokers.keys() - masters(brokers.values()).keys())


def consumer_of(parsed: argparse.Namespace) -> "PullConsumer":
    """A consumer as the flags want it, of no group."""
    # For the few commands that read messages; listings do without.
    from aerobee.client.consuming.pull_consumer import PullConsumer

    options = ClientOptions(call_timeout_s=parsed.timeout, **security_of(parsed))
    return PullConsumer(name_servers(parsed), options=options)


def client_command(
    work: Callable[[argparse.Namespace], Coroutine[Any, Any, int]],
) -> Callable[[argparse.Namespace], int]:
    """A command that runs `work`; what the client raises ends it with a text and an exit code.

    A topic that no broker would take is refused here, for all commands alike, before `work` runs.
    """

    @functools.wraps(work)
    def run(parsed: argparse.Namespace) -> int:
        # Without any handler the client's warnings would go to standard error, where they would
        # repeat the error that the command prints.
        quieten_logs()
        apply_context(parsed)
        try:
            topic = vars(parsed).get("topic")
            if topic is not None and parsed.command not in _TAKES_ANY_NAME:
                check_topic(topic)
            if getattr(parsed, "watch", None) is not None:
                return asyncio.run(_watch(work, parsed))
            return asyncio.run(work(parsed))
        except ClientError as error:
            raise CommandFailed(_text(error, parsed), exit_code(error)) from error

    return run


async def _watch(
    work: Callable[[argparse.Namespace], Coroutine[Any, Any, int]], parsed: argparse.Namespace
) -> int:
    # For `--watch` alone.
    from aerobee.cli.printing.watch import repeat

    def explain(error: Exception) -> str | None:
        """The text about an error that may pass; None for another."""
        if isinstance(error, CommandFailed) and error.code != USAGE:
            return str(error)
        if isinstance(error, ClientError) and exit_code(error) != USAGE:
            return _text(error, parsed)
        return None

    return await repeat(functools.partial(work, parsed), parsed.watch, explain)


def check_topic(topic: str) -> None:
    """Raises CallerError for a name that no topic may have which clients make."""
    with checking_arguments():
        check_topic_name(topic)


def check_group(group: str) -> None:
    """Raises CallerError for a name that no consumer group may have."""
    with checking_arguments():
        check_group_name(group)


async def check_broker(parsed: argparse.Namespace, having: Iterable[str]) -> None:
    """CommandFailed when `--broker` is not among those that have the topic: there is no such
    broker at all, or it only lacks the topic."""
    if parsed.broker is None or parsed.broker in (names := sorted(set(having))):
        return
    async with admin_of(parsed) as admin:
        known = sorted((await admin.cluster()).brokers)
    if parsed.broker in known:
        raise CommandFailed(
            f"broker {parsed.broker} does not have topic {parsed.topic}: {', '.join(names)} has"
        )
    raise CommandFailed(f"there is no broker {parsed.broker}: there is {', '.join(known)}")


def exit_code(error: ClientError) -> int:
    """Nobody answered, the command was wrong, or the broker said no."""
    # Something other than the wanted peer listens at the address.
    if isinstance(error, NetworkError | WrongPeer):
        return CANNOT_CONNECT
    if isinstance(error, SendFailed):
        unreachable = all(isinstance(cause, NetworkError) for _, cause in error.attempts)
        return CANNOT_CONNECT if unreachable else REFUSED
    return USAGE if isinstance(error, CallerError) else REFUSED


def _text(error: ClientError, parsed: argparse.Namespace) -> str:
    if isinstance(error, NoRoute) and not isinstance(error, NoMaster):
        return f"{error} (aerobee topic list shows the topics there are)"
    if isinstance(error, MasterAway) and "broker" in vars(parsed):
        return f"{error} (--broker NAME changes one broker alone)"
    if isinstance(error, NoNameServer):
        return f"{error.why} (is a broker running? -n names its name server)"
    if isinstance(error, ConnectionLost) and str(error).endswith(WITHOUT_A_WORD):
        return f"{error} ({_what_it_may_miss(parsed)})"
    return str(error)


def _what_it_may_miss(parsed: argparse.Namespace) -> str:
    encryption = _encryption_of(parsed)
    return what_it_may_miss(
        speaks_tls=encryption["use_tls"],
        shows_certificate=encryption["certificate"] is not None,
        tls="--tls",
        certificate="--certificate",
    )
