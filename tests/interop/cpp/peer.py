"""The C++ peer of the interop tests: the C++ client through its Python wrapper.

Run by the interpreter of a virtual environment of its own, never by the project's. Its command line
and its output are those of every other peer (tests/interop/README.md). Queues can be chosen for
synchronous and one-way sends only, and the client's answers do not name the queue: where it is not
known, the lines lack it.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from rocketmq.client import (
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    RecvMessage,
    SendResult,
    SendStatus,
)
from rocketmq.exceptions import RocketMQException
from rocketmq.ffi import MessageModel

BATCH = 32
ASYNC_WINDOW = 128
# The client gives a name server three seconds, once, which no option changes: on a loaded machine
# the first send tries again.
FIRST_ROUTE_S = 30


class Output:
    """One JSON object a line, flushed at once; the client's threads share it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def say(self, **fields: object) -> None:
        with self.lock:
            sys.stdout.write(json.dumps(fields) + "\n")
            sys.stdout.flush()


class Produce:
    def __init__(self, options: argparse.Namespace, output: Output) -> None:
        self.options = options
        self.output = output
        self.failed = 0
        self.routed = False
        # The timeout suits a loaded machine, with brokers in other processes.
        self.producer = Producer(options.group, timeout=10_000)
        self.producer.set_namesrv_addr(options.namesrv)
        sign(self.producer, options)

    def run(self) -> None:
        self.producer.start()
        modes = self.options.modes.split(",")
        count = self.options.count
        for i, mode in enumerate(modes):
            sequences = range(count * i // len(modes), count * (i + 1) // len(modes))
            {
                "sync": self.sync,
                "async": self.asynchronous,
                "oneway": self.oneway,
                "batch": self.batch,
            }[mode](sequences)
        self.output.say(done=count, failed=self.failed)
        self.producer.shutdown()

    def sync(self, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            queue = sequence % self.options.queues
            self.insist(sequence, partial(self.send, sequence, queue))
            time.sleep(self.options.interval_ms / 1000)

    def send(self, sequence: int, queue: int) -> None:
        result = self.producer.send_orderly(self.message(sequence), queue, retry_times=0)
        self.acknowledged("sync", sequence, result, queue)

    def oneway(self, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            queue = sequence % self.options.queues
            self.producer.send_oneway_orderly(self.message(sequence), queue)
            self.output.say(sent=sequence, mode="oneway")

    def batch(self, sequences: Iterable[int]) -> None:
        for part in parts(sequences, BATCH):
            result = self.producer.send_batch([self.message(sequence) for sequence in part])
            for sequence in part:
                self.acknowledged("batch", sequence, result._replace(offset=None))

    def asynchronous(self, sequences: Iterable[int]) -> None:
        window = threading.Semaphore(ASYNC_WINDOW)
        for sequence in sequences:
            window.acquire()

            def success(result: SendResult, sequence: int = sequence) -> None:
                self.acknowledged("async", sequence, result)
                window.release()

            def failure(cause: Exception, sequence: int = sequence) -> None:
                self.fail(sequence, cause)
                window.release()

            self.producer.send_async(self.message(sequence), success, failure)
        for _ in range(ASYNC_WINDOW):
            window.acquire()

    def insist(self, sequence: int, attempt: Callable[[], None]) -> None:
        """Tries until it succeeds or --retry-seconds have passed: a killed broker comes back."""
        began = time.monotonic()
        deadline = began + self.options.retry_seconds
        while True:
            try:
                attempt()
                self.routed = True
                return
            except RocketMQException as cause:
                unrouted = not self.routed and "No route info" in str(cause)
                if not unrouted or time.monotonic() >= began + FIRST_ROUTE_S:
                    self.fail(sequence, cause)
                    if time.monotonic() >= deadline:
                        return
                time.sleep(0.2)

    def fail(self, sequence: int, cause: Exception) -> None:
        self.failed += 1
        self.output.say(fail=sequence, error=repr(cause))

    def acknowledged(
        self, mode: str, sequence: int, result: SendResult, queue: int | None = None
    ) -> None:
        if result.status != SendStatus.OK:
            raise RuntimeError(f"send status {result.status}")
        known = {} if result.offset is None else {"offset": result.offset}
        if queue is not None:
            known["queue"] = queue
        self.output.say(ack=sequence, mode=mode, id=result.msg_id, **known)

    def message(self, sequence: int) -> Message:
        body = f"{self.options.prefix}-{self.options.producer}-{sequence}"
        message = Message(self.options.topic)
        message.set_body(body)
        if self.options.tag != "*":
            message.set_tags(self.options.tag)
        if self.options.keys == "yes":
            message.set_keys(body)
        if self.options.property:
            message.set_property(self.options.property, str(sequence))
        if self.options.delay_level:
            message.set_delay_time_level(self.options.delay_level)
        return message


class Refused(Exception):
    """Not this time."""


class Consume:
    def __init__(self, options: argparse.Namespace, output: Output) -> None:
        self.options = options
        self.output = output
        self.seen: set[bytes] = set()
        self.enough = threading.Event()
        self.stopped = False

    def run(self) -> None:
        broadcast = self.options.broadcast == "yes"
        model = MessageModel.BROADCASTING if broadcast else MessageModel.CLUSTERING
        orderly = self.options.mode == "orderly"
        consumer = PushConsumer(self.options.group, orderly=orderly, message_model=model)
        consumer.set_namesrv_addr(self.options.namesrv)
        sign(consumer, self.options)
        consumer.set_instance_name(f"peer-{os.getpid()}")
        consumer.set_thread_count(4)
        # The wrapper has no call for the first offset: a fresh group starts where the broker says.
        consumer.subscribe(self.options.topic, self.received, self.options.tag)
        consumer.start()
        signal.signal(signal.SIGTERM, self.stop)
        self.output.say(ready=1)
        # In slices: a signal that comes while the thread begins to wait does not wake it.
        deadline = time.monotonic() + self.options.timeout
        while not self.stopped and time.monotonic() < deadline:
            if self.enough.wait(0.2):
                break
        time.sleep(0.3)  # the last callback returns, so that its offset is among those stored
        consumer.shutdown()

    def stop(self, *_: object) -> None:
        """Handle a signal: the interrupted code may hold the event's lock, so the event is not
        set."""
        self.stopped = True

    def received(self, message: RecvMessage) -> None:
        if self.options.reject_first == "yes" and message.reconsume_times == 0:
            raise Refused  # the wrapper turns any exception into "consume later"
        say_received(self.output, message)
        self.seen.add(message.body)
        if 0 < self.options.count <= len(self.seen):
            self.enough.set()


def sign(client: Producer | PushConsumer, options: argparse.Namespace) -> None:
    """Have requests signed, for the account if the options name it."""
    if options.access_key:
        client.set_session_credentials(options.access_key, options.secret_key, "")


def pull(options: argparse.Namespace, output: Output) -> None:
    """Takes all that the topic's queues hold, with a pull consumer."""
    consumer = PullConsumer(options.group)
    consumer.set_namesrv_addr(options.namesrv)
    consumer.start()
    output.say(ready=1)
    for message in consumer.pull(options.topic, options.tag):
        say_received(output, message)
    consumer.shutdown()


def say_received(output: Output, message: RecvMessage) -> None:
    output.say(
        queue=message.queue_id,
        offset=message.queue_offset,
        body=message.body.decode(),
        keys=(message.keys or b"").decode(),
        id=message.id,
        reconsume=message.reconsume_times,
    )


def parts(sequences: Iterable[int], size: int) -> Iterator[list[int]]:
    items = list(sequences)
    for start in range(0, len(items), size):
        yield items[start : start + size]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["produce", "consume", "pull"])
    parser.add_argument("--namesrv", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="peers")
    parser.add_argument("--modes", default="sync")
    parser.add_argument("--mode", default="concurrent", choices=["concurrent", "orderly"])
    parser.add_argument("--prefix", default="m")
    parser.add_argument("--producer", default="cpp")
    parser.add_argument("--tag", default="*")
    parser.add_argument("--property", default="")
    parser.add_argument("--delay-level", type=int, default=0)
    parser.add_argument("--broadcast", default="no", choices=["yes", "no"])
    parser.add_argument("--keys", default="no", choices=["yes", "no"])
    parser.add_argument("--reject-first", default="no", choices=["yes", "no"])
    parser.add_argument("--access-key", default="")
    parser.add_argument("--secret-key", default="")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--interval-ms", type=int, default=0)
    parser.add_argument("--retry-seconds", type=int, default=0)
    parser.add_argument("--timeout", type=int, default=60)
    options = parser.parse_args()
    output = Output()
    if options.command == "produce":
        Produce(options, output).run()
    elif options.command == "consume":
        Consume(options, output).run()
    else:
        pull(options, output)
    os._exit(0)  # the library's threads outlive its shutdown


if __name__ == "__main__":
    main()
