"""The arguments of every command that asks name servers and brokers: which, as whom, over what."""

import argparse

from aerobee.cli.parser_types import seconds, text


def add_client(parser: argparse.ArgumentParser) -> None:
    """Those that `cluster/session.py` reads."""
    add = parser.add_argument
    add(
        "-n",
        "--name-servers",
        type=text,
        metavar="HOST:PORT;...",
        help="default: NAMESRV_ADDR of the environment, or 127.0.0.1:9876",
    )
    add("--timeout", type=seconds, default=5.0, metavar="SECONDS", help="for one answer (5)")
    add(
        "--credentials",
        metavar="FILE",
        help="RocketMQ's tools.yml with accessKey and secretKey, for brokers that ask for accounts "
        "(default: AEROBEE_CREDENTIALS, or conf/tools.yml below ROCKETMQ_HOME)",
    )
    add("--tls", action="store_true", help="speak TLS to name servers and brokers")
    add("--trust-store", metavar="FILE", help="check their certificates against these, PEM")
    add("--certificate", metavar="FILE", help="for those that ask for one, PEM")
    add("--certificate-key", metavar="FILE", help="its key, where that is a file of its own")


def add_admin(parser: argparse.ArgumentParser) -> None:
    """That of commands which ask brokers for what administrators may."""
    parser.add_argument(
        "--admin", type=text, metavar="HOST:PORT", action="append",
        help="where a broker takes what administrators ask for, if it has a port of its own for "
        "that (admin.port); once for each such broker",
    )  # fmt: skip
