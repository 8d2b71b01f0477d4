"""`aerobee context`: named connections, so that a night's command needs no addresses."""

import argparse
import os
from collections.abc import Mapping

from aerobee.address_list import address_list
from aerobee.cli.configuration.context_file import (
    Context,
    Contexts,
    changing,
    check_name,
    choose,
    contexts_path,
    read_contexts,
    write_contexts,
)
from aerobee.cli.documents.contexts import ContextEntry
from aerobee.cli.documents.document import print_document
from aerobee.cli.printing.output import (
    OK,
    REFUSED,
    USAGE,
    CommandFailed,
    print_pairs,
    print_table,
    say,
)

_FILES = ("credentials", "trust_store", "certificate", "certificate_key")


def list_contexts(parsed: argparse.Namespace) -> int:
    """Print all; the one in use has a star."""
    contexts = read_contexts(contexts_path())
    entries = [_entry(name, one, contexts.current) for name, one in contexts.named.items()]
    if parsed.json:
        print_document(entries)
        return OK
    print_table(
        ("", "context", "name servers", "account", "tls"),
        [
            (
                "*" if one.is_current else "",
                one.context,
                ";".join(one.name_servers),
                one.credentials_file,
                _speaks_tls(one),
            )
            for one in entries
        ],
    )
    if not entries:
        say("no contexts yet: aerobee context add NAME -n HOST:PORT")
    return OK


def show_context(parsed: argparse.Namespace) -> int:
    """Print the named context, or else the context that a command would use now."""
    contexts = read_contexts(contexts_path())
    name = parsed.name
    if name is None:
        chosen = choose(argparse.Namespace())
        if chosen is None:
            where = os.environ.get("NAMESRV_ADDR")
            why = f"NAMESRV_ADDR={where} counts" if where else "aerobee context use NAME sets it"
            say(f"no context is in use: {why}")
            return REFUSED
        name = chosen.name
        say(f"in use by {chosen.said_by}")
    entry = _entry(name, contexts.get(name), contexts.current)
    if parsed.json:
        print_document(entry)
        return OK
    pairs: Mapping[str, object] = {
        "context": entry.context,
        "name servers": ";".join(entry.name_servers),
        "admin ports": ";".join(entry.admin_addresses),
        "account": entry.credentials_file,
        "tls": _speaks_tls(entry),
        "trust store": entry.trust_store,
        "certificate": entry.certificate,
        "certificate key": entry.certificate_key,
    }
    print_pairs({key: value for key, value in pairs.items() if value not in (None, "")})
    return OK


def use_context(parsed: argparse.Namespace) -> int:
    """Have commands use a context, or none."""
    path = contexts_path()
    with changing(path):
        contexts = read_contexts(path)
        if parsed.name is not None:
            contexts.get(parsed.name)
        write_contexts(path, contexts._replace(current=parsed.name))
    if parsed.name is None:
        say("no context is in use")
        return OK
    say(f"{parsed.name} is in use")
    for variable in ("AEROBEE_CONTEXT", "NAMESRV_ADDR"):
        if os.environ.get(variable):
            say(f"warning: {variable} of this environment wins over it")
    return OK


def add_context(parsed: argparse.Namespace) -> int:
    """Keep a connection under a name."""
    from aerobee.client.errors import CallerError
    from aerobee.client.options import parse_addresses

    name, path = check_name(parsed.name), contexts_path()
    try:
        for addresses in (parsed.name_servers, *(parsed.admin or ())):
            parse_addresses(addresses)
    except CallerError as error:
        raise CommandFailed(str(error), USAGE) from None
    files = {key: _absolute(key, getattr(parsed, key)) for key in _FILES}
    context = Context(parsed.name_servers, tuple(parsed.admin or ()), tls=parsed.tls, **files)
    with changing(path):
        contexts = read_contexts(path)
        if name in contexts.named and not parsed.replace:
            raise CommandFailed(f"there is a context {name} already; --replace replaces it")
        named = dict(sorted({**contexts.named, name: context}.items()))
        current = name if parsed.use else contexts.current
        write_contexts(path, Contexts(named, current))
    say(f"{name} is kept in {path}" + (" and in use" if current == name else ""))
    return OK


def _absolute(key: str, file: str | None) -> str | None:
    """The file's path, wherever later commands are started; a missing file is only said."""
    if file is None:
        return None
    path = os.path.abspath(os.path.expanduser(file))
    if any(not character.isprintable() for character in path):
        raise CommandFailed(
            f"--{key.replace('_', '-')} has characters that no line can hold", USAGE
        )
    if not os.path.exists(path):
        say(f"warning: {path} does not exist yet")
    return path


def remove_context(parsed: argparse.Namespace) -> int:
    """Forget one."""
    path = contexts_path()
    with changing(path):
        contexts = read_contexts(path)
        contexts.get(parsed.name)
        left = {name: one for name, one in contexts.named.items() if name != parsed.name}
        current = None if contexts.current == parsed.name else contexts.current
        write_contexts(path, Contexts(left, current))
    say(f"{parsed.name} is forgotten" + ("; no context is in use" if current is None else ""))
    return OK


def _entry(name: str, context: Context, current: str | None) -> ContextEntry:
    return ContextEntry(
        context=name,
        is_current=name == current,
        name_servers=list(address_list(context.name_servers)),
        admin_addresses=list(context.admin),
        credentials_file=context.credentials,
        tls=context.tls,
        trust_store=context.trust_store,
        certificate=context.certificate,
        certificate_key=context.certificate_key,
    )


def _speaks_tls(entry: ContextEntry) -> bool:
    return entry.tls or any((entry.trust_store, entry.certificate, entry.certificate_key))
