"""The names that programs get from `aerobee.client`, gathered from the modules that have them."""

from aerobee.client.admin import Admin
from aerobee.client.consuming.listener import Consumed
from aerobee.client.consuming.pull_consumer import PullConsumer
from aerobee.client.consuming.puller import PullResult, PullStatus
from aerobee.client.consuming.push_consumer import PushConsumer
from aerobee.client.errors import (
    BadAnswer,
    BadMessage,
    CallerError,
    CallTimeout,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    MasterAway,
    NetworkError,
    NoMaster,
    NoRoute,
    PeerBusy,
    PeerFailed,
    RequestRefused,
    SendFailed,
    UnreadableBody,
    Untrusted,
    WrongPeer,
)
from aerobee.client.message import Message, ReceivedMessage, UnreadableMessage
from aerobee.client.options import (
    ClientOptions,
    ConsumeFrom,
    HeaderForm,
    Model,
    ProducerOptions,
    PushOptions,
    TransactionOptions,
)
from aerobee.client.producing.producer import Producer
from aerobee.client.producing.request_reply import reply_to
from aerobee.client.producing.sender import SendResult, SendStatus
from aerobee.client.producing.transaction import (
    Decision,
    TransactionListener,
    TransactionProducer,
    TransactionResult,
)
from aerobee.protocol.bodies.common import MessageQueue

__all__ = [
    "Admin",
    "BadAnswer",
    "BadMessage",
    "CallTimeout",
    "CallerError",
    "ClientError",
    "ClientOptions",
    "ConnectFailed",
    "ConnectionLost",
    "ConsumeFrom",
    "Consumed",
    "Decision",
    "HeaderForm",
    "MasterAway",
    "Message",
    "MessageQueue",
    "Model",
    "NetworkError",
    "NoMaster",
    "NoRoute",
    "PeerBusy",
    "PeerFailed",
    "Producer",
    "ProducerOptions",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "PushOptions",
    "ReceivedMessage",
    "RequestRefused",
    "SendFailed",
    "SendResult",
    "SendStatus",
    "TransactionListener",
    "TransactionOptions",
    "TransactionProducer",
    "TransactionResult",
    "UnreadableBody",
    "UnreadableMessage",
    "Untrusted",
    "WrongPeer",
    "reply_to",
]
