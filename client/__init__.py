"""A client of RocketMQ brokers, ours and Java's: producer, consumers, administration.

asyncio first; `aerobee.client.blocking` has the same roles for programs without an event loop.
"""

from aerobee.client.admin import Admin
from aerobee.client.errors import ClientError
from aerobee.client.listener import Consumed
from aerobee.client.message import Message, MessageQueue, ReceivedMessage
from aerobee.client.options import (
    ClientOptions,
    ConsumeFrom,
    HeaderForm,
    Model,
    ProducerOptions,
    PushOptions,
)
from aerobee.client.producer import Producer
from aerobee.client.pull_consumer import PullConsumer
from aerobee.client.push_consumer import PushConsumer
from aerobee.client.sender import SendResult, SendStatus

__all__ = [
    "Admin",
    "ClientError",
    "ClientOptions",
    "ConsumeFrom",
    "Consumed",
    "HeaderForm",
    "Message",
    "MessageQueue",
    "Model",
    "Producer",
    "ProducerOptions",
    "PullConsumer",
    "PushConsumer",
    "PushOptions",
    "ReceivedMessage",
    "SendResult",
    "SendStatus",
]
