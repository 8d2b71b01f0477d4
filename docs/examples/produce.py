"""Sends ten messages and says where each came to lie."""

import os

from aerobee.client import Message
from aerobee.client.blocking_roles import Producer

with Producer(os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")) as producer:
    for number in range(10):
        result = producer.send(Message("greetings", f"hello {number}".encode()))
        print(f"queue {result.queue.queue_id} offset {result.queue_offset}: {result.msg_id}")
