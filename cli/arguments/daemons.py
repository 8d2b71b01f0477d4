"""The arguments of the daemons: serve, nameserver, and the brokers of `serve --shards`."""

import argparse

from aerobee.cli.arguments.argument_types import port, seconds, shards, text
from aerobee.cli.arguments.shared_arguments import add_json, add_settings
from aerobee.shards import SHARDS_MAX


def add_serve(parser: argparse.ArgumentParser) -> None:
    """Those of `serve`."""
    parser.description = "Run the broker. Port 0 for the name server or HTTP turns that part off."
    add_settings(parser)
    add = parser.add_argument
    add("-n", "--name-servers", metavar="HOST:PORT;...", help="name servers to register with")
    add("--store", metavar="DIR", help="directory of everything the broker keeps")
    add("--host", metavar="ADDR", help="address to listen on (default: loopback)")
    add("--port", type=port, metavar="N", help="port for clients (10911)")
    add("--nameserver-port", type=port, metavar="N", help="embedded name server (9876)")
    add("--http-port", type=port, metavar="N", help="metrics and health (5557)")
    add(
        "--shards", type=shards, default=1, metavar="N",
        help="run N brokers on this machine, each with store, ports and name of its own, under one "
        f"supervisor (1; at most {SHARDS_MAX})",
    )  # fmt: skip
    # The supervisor starts each shard with this.
    add("--as-shard", type=int, help=argparse.SUPPRESS)
    add("--dev", action="store_true", help="free ports and a store that is deleted at the end")
    add("-p", "--print-config", action="store_true", help="print all settings and exit")
    add("-m", "--print-important", action="store_true", help="print the important ones and exit")
    parser.set_defaults(command="serve")


def add_nameserver(parser: argparse.ArgumentParser) -> None:
    """Those of `nameserver`."""
    add_settings(parser)
    parser.add_argument("--host", metavar="ADDR", help="address to listen on (default: loopback)")
    parser.add_argument("--port", type=port, metavar="N", help="port (9876; 0: a free one)")
    parser.add_argument("--supervised", action="store_true", help=argparse.SUPPRESS)
    parser.set_defaults(command="nameserver")


def add_shards(parser: argparse.ArgumentParser) -> None:
    """Those of `shards`."""
    parser.add_argument(
        "--http", type=text, default="127.0.0.1:5557", metavar="HOST:PORT",
        help="metrics and health of their supervisor (127.0.0.1:5557); https://HOST:PORT where it "
        "takes nothing but TLS",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=seconds, default=10.0, metavar="SECONDS", help="for the answer (10)"
    )
    add_json(parser)
    parser.set_defaults(command="shards")
