"""`aerobee shards`: the processes of one machine's shards, as their supervisor sees them."""

import argparse
import http.client
import json
import ssl
from contextlib import closing
from typing import Any

from aerobee.cli.printing.output import CANNOT_CONNECT, OK, CommandFailed, print_table

_COLUMNS = ("shard", "broker", "address", "state", "pid", "failures", "status")


def show_shards(parsed: argparse.Namespace) -> int:
    """Print them; the exit code is 0 whatever state they are in (/ready is for probes)."""
    shards = _ask(parsed.http, parsed.timeout)
    if parsed.json:
        _print_document(parsed.http, shards)
    else:
        rows = [[_cell(shard.get(column)) for column in _COLUMNS] for shard in shards]
        print_table(_COLUMNS, rows)
    return OK


def _print_document(address: str, shards: list[dict[str, Any]]) -> None:
    # A table does without these.
    import msgspec

    from aerobee.cli.documents.brokers import Shards
    from aerobee.cli.documents.document import print_document

    try:
        document = msgspec.convert({"shards": shards}, Shards)
    except msgspec.ValidationError as error:
        raise CommandFailed(f"{address} tells of its shards in another form: {error}") from error
    print_document(document)


def _cell(value: object) -> object:
    return "-" if value in (None, "") else value


def _connection(address: str, timeout_s: float) -> http.client.HTTPConnection:
    if not address.startswith("https://"):
        return http.client.HTTPConnection(address.removeprefix("http://"), timeout=timeout_s)
    # The certificate is not checked: the answer is about processes, and nothing secret is sent for
    # it.
    unchecked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unchecked.check_hostname = False
    unchecked.verify_mode = ssl.CERT_NONE
    address = address.removeprefix("https://")
    return http.client.HTTPSConnection(address, timeout=timeout_s, context=unchecked)


def _ask(address: str, timeout_s: float) -> list[dict[str, Any]]:
    try:
        connection = _connection(address, timeout_s)
        with closing(connection):
            connection.request("GET", "/shards")
            answer = connection.getresponse()
            body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise CommandFailed(
            f"{address} does not answer ({error}): is a supervisor running there? --http names the "
            "address of its metrics and health (http.host, http.port)",
            CANNOT_CONNECT,
        ) from error
    text = f"{address} has no shards: a broker that runs alone, or another program"
    if answer.status != http.client.OK:
        raise CommandFailed(text, CANNOT_CONNECT)
    try:
        shards: list[dict[str, Any]] = json.loads(body)["shards"]
    except (ValueError, LookupError, TypeError) as error:
        raise CommandFailed(text, CANNOT_CONNECT) from error
    return shards
