"""A master on a real socket whose tables a test writes, and who answers what a test says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from aerobee.broker.cluster.registration.master_address import MasterAddress
from aerobee.config.model import Settings
from aerobee.protocol.codes import RequestCode, ResponseCode
from aerobee.protocol.frames.command import Command, encode_response, encode_success
from aerobee.protocol.headers.replica_tables import (
    TABLES,
    ReplicaTablesResponse,
    encode_tables,
    versions_of,
)
from aerobee.remoting.connection_limits import RemotingLimits
from aerobee.remoting.connections.connection import Connection
from aerobee.remoting.listening.server import RemotingServer


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def topic_table(**queues: int) -> bytes:
    topics = {
        name: {"topicName": name, "readQueueNums": count, "writeQueueNums": count, "perm": 6}
        for name, count in queues.items()
    }
    return as_json({"dataVersion": {"counter": 1, "timestamp": 1}, "topicConfigTable": topics})


def group_table(*names: str) -> bytes:
    groups = {name: {"groupName": name} for name in names}
    return as_json({"dataVersion": {}, "subscriptionGroupTable": groups})


def offset_table(**offsets: dict[int, int]) -> bytes:
    """Offsets of groups in the topic T."""
    return as_json({"offsetTable": {f"T@{group}": queues for group, queues in offsets.items()}})


class ScriptedMaster:
    """Answers REPLICA_TABLES with the tables that it has, each of which has its number of changes
    as version."""

    def __init__(self) -> None:
        self.tables: dict[str, bytes] = {}
        self.versions: dict[str, int] = {}
        self.log_end = 0
        self.log_first = 0
        self.requests: list[Command] = []
        self.answer: Callable[[Command], bytes | None] = self.answer_of_ours
        self.connections: list[Connection] = []
        self._server = RemotingServer(self, RemotingLimits(sweep_interval_s=0.02))
        self.address = ""

    async def start(self) -> None:
        self.address = f"127.0.0.1:{await self._server.start('127.0.0.1', 0)}"

    async def close(self) -> None:
        await self._server.close()

    def known(self) -> MasterAddress:
        """The address as name servers say it."""
        master = MasterAddress(Settings.for_tests(broker_role="SLAVE"), ["names"])
        master.heard("names", self.address, None)
        return master

    def put(self, **tables: bytes) -> None:
        for name, table in tables.items():
            self.tables[name] = table
            self.versions[name] = self.versions.get(name, 0) + 1

    def answer_of_ours(self, command: Command) -> bytes:
        known = versions_of(command.ext)
        versions = {name: str(self.versions[name]) for name in self.tables if name in known}
        changed = [name for name in TABLES if name in versions and versions[name] != known[name]]
        header = ReplicaTablesResponse(self.log_end, self.log_end, False, self.log_first)
        body = encode_tables([(name, self.tables[name]) for name in changed])
        return encode_success(command, body, {**header.to_ext(), **versions})

    def refuse(self, command: Command) -> bytes:
        return encode_response(command, ResponseCode.SYSTEM_ERROR, "AclException: no account")

    def count(self, code: RequestCode = RequestCode.REPLICA_TABLES) -> int:
        return sum(command.code == code for command in self.requests)

    def connection_opened(self, connection: Connection) -> None:
        self.connections.append(connection)

    def commands_received(self, connection: Connection, commands: Iterable[Command]) -> None:
        for command in commands:
            self.requests.append(command)
            answer = self.answer(command)
            if answer is not None:
                connection.write(answer)

    def connection_closed(self, connection: Connection, reason: str) -> None:
        self.connections.remove(connection)
