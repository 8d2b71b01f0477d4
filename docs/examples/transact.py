"""Sends ten messages, each only if its entry in a local database was made; then answers checks."""

import asyncio
import os
import sqlite3

from aerobee.client import Decision, Message, ReceivedMessage, TransactionProducer


class Accounts:
    """The local side: what stands in the table was done."""

    def __init__(self, path: str) -> None:
        self.database = sqlite3.connect(path)
        self.database.execute(
            "create table if not exists done (msg_id text primary key, what text)"
        )

    async def execute(self, message: Message, msg_id: str) -> Decision:
        with self.database:
            self.database.execute("insert into done values (?, ?)", (msg_id, message.body.decode()))
        return Decision.COMMIT

    async def check(self, message: ReceivedMessage) -> Decision:
        found = self.database.execute("select 1 from done where msg_id = ?", (message.msg_id,))
        return Decision.COMMIT if found.fetchone() else Decision.ROLLBACK


async def main() -> None:
    name_server = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
    accounts = Accounts(os.environ.get("ACCOUNTS", "accounts.db"))
    async with TransactionProducer(name_server, "payers", accounts) as producer:
        for number in range(10):
            result = await producer.send_in_transaction(Message("paid", f"bill {number}".encode()))
            print(result.decision.name, result.confirmed, result.sent.msg_id)


asyncio.run(main())
