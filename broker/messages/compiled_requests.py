"""Plain requests, served by the compiled form from a socket's read (`aerobee/native`).

What comes in here has not been decoded. What the compiled form does not take is decoded and served
as ever, in its order; so each rule is the plain path's, and this says only where a request may not
go the short way.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from aerobee.access.control import AccessControl
from aerobee.broker.appending.answers import AtOnce, HeldAnswers
from aerobee.broker.appending.appending import Appending
from aerobee.broker.broker_stats import MESSAGE_NORMAL, MESSAGE_SIZE_BOUNDS
from aerobee.broker.cluster.registration.broker_address import Identity
from aerobee.broker.messages.pull import MAX_MESSAGES, PullProcessor
from aerobee.broker.tables.offsets import ConsumerOffsets
from aerobee.broker.tables.tables import Tables
from aerobee.broker.tables.topics import queues_of
from aerobee.config.model import Settings
from aerobee.native.form import CompiledForm
from aerobee.protocol.bodies.topics import MULTI_TAG
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import make_request
from aerobee.protocol.headers.client import PullReply
from aerobee.protocol.headers.send import SendReply
from aerobee.protocol.message.demands import NOT_PLAIN_FLAGS, NOT_PLAIN_NAMES, NOT_PLAIN_PREFIXES
from aerobee.protocol.message.properties import PROPERTY_CLUSTER
from aerobee.protocol.message.record_layout import SYS_MULTI_TAGS, V4_HOST_BYTES
from aerobee.protocol.names import NO_SEND_TOPICS, WAITING_TOPICS, is_light
from aerobee.remoting.connections.connection_set import ConnectionSet
from aerobee.remoting.listening.server import Sockets
from aerobee.store.reading.queue_reader import LEAST_ENTRIES
from aerobee.store.segments.results import GetStatus

if TYPE_CHECKING:
    # Not there where it was not built.
    from aerobee.native.guard import Guard
    from aerobee.native.pulls import PullRoute, Pulls
    from aerobee.native.sends import Route, Sends

_PULL_REPLY = PullReply(GetStatus.FOUND.name)
_SENDS = frozenset(
    {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
)


def sends_are_plain(settings: Settings, identity: Identity) -> bool:
    """Whether nothing is asked of every send that the compiled form does not know."""
    return not (
        settings.append_property_crc
        or settings.transient_pool_effective
        or settings.multi_dispatch
        or settings.start_accept_send_timestamp_ms
        or len(identity.store_host) != V4_HOST_BYTES
    )


class CompiledRequests:
    """Serves the plain requests at the head of a read. Loop thread only."""

    def __init__(
        self,
        appending: Appending,
        tables: Tables,
        *,
        form: CompiledForm,
        reply: SendReply,
        pull: PullProcessor,
        answers: AtOnce,
        access: AccessControl | None,
    ) -> None:
        """`access` says who may do what, None where everybody may."""
        self._form = form
        self._access = access
        self._store = store = appending.store
        self._groups = tables.groups
        self._answers = answers
        self._pull = pull
        self._topics = tables.topics
        self._stats = appending.stats
        self._reput = appending.reput
        self._log = store.log
        self._role = appending.role
        self._changes = self._now()
        self._sends: Sends | None = None
        if sends_are_plain(appending.settings, appending.identity):
            self._sends = self._made_sends(appending.settings, appending.identity, reply)
        self._pulls = self._made_pulls(tables.offsets)
        self._guard = None if access is None else self._made_guard(access)
        #: Serves what is plain of a read (`native/requests.pyx`).
        self.requests = form.requests(self._sends, self._pulls, answers.waits, self._guard)

    def _made_sends(self, settings: Settings, identity: Identity, reply: SendReply) -> Sends:
        return self._form.sends(
            self._log,
            self,
            cluster=f"{PROPERTY_CLUSTER}\x01{settings.cluster_name}".encode(),
            store_host=identity.store_host,
            json_parts=reply.json_parts(),
            binary_parts=reply.binary_parts(),
            not_plain=[name.encode() for name in NOT_PLAIN_NAMES],
            not_plain_flags=NOT_PLAIN_FLAGS,
            size_bounds=MESSAGE_SIZE_BOUNDS,
            max_message_bytes=settings.max_message_bytes,
            safe_properties=self._log.safe_properties,
        )

    def _made_pulls(self, offsets: ConsumerOffsets) -> Pulls:
        limits = self._store.reader.limits
        return self._form.pulls(
            self._store,
            self,
            self._pull,
            offsets,
            json_parts=_PULL_REPLY.json_parts,
            binary_parts=_PULL_REPLY.binary_parts,
            memory_bytes=limits.memory_bytes,
            recent=(limits.transfer_bytes_memory, limits.transfer_count_memory),
            old=(limits.transfer_bytes_disk, limits.transfer_count_disk),
            most_messages=MAX_MESSAGES,
            least_entries=LEAST_ENTRIES,
        )

    def _made_guard(self, access: AccessControl) -> Guard:
        def is_white(address: bytes) -> bool:
            return access.rules.is_white(str(ipaddress.ip_address(address)))

        def find_signer(access_key: bytes) -> tuple[bytes, bytes] | None:
            signer = access.signer(access_key.decode())
            return None if signer is None else signer.blocks

        def may(access_key: bytes, code: int, topic: str, group: str) -> bool:
            # The fields that say what is reached, under each name that a send or a pull has.
            ext = {"topic": topic, "b": topic, "consumerGroup": group}
            return access.may(access_key.decode(), make_request(code, ext))

        guard = self._form.guard(is_white, find_signer, may)
        guard.forget(any_white=bool(access.rules.white))
        return guard

    # --- rows of staged batches ---------------------------------------------------------------

    def plain_rows(self, body: bytes, most_body: int, most_properties: int) -> int:
        """How many messages a batch body holds; -1 if a message is not plain or too large."""
        if self._sends is None:
            return -1
        return self._sends.plain_rows(body, most_body, most_properties)

    def put_rows(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        skip: int,
        most: int,
        born_ms: int,
        born_host: bytes,
    ) -> int:
        """Store up to `most` messages of a batch body, behind the first `skip`; how many, 0 if
        nothing was done. `staging/publish.py` stores what is left, with the same bytes."""
        self.begin()
        if self._sends is None:
            return 0
        name = topic.encode()
        return self._sends.put_rows(name, queue_id, body, skip, most, born_ms, born_host)

    def sockets(self, shared: ConnectionSet) -> Sockets:
        """Sockets whose reads are served here before they are decoded."""
        loop = asyncio.get_running_loop()
        return self._form.sockets(loop, shared, self.requests, self)

    # --- what the sockets ask and tell --------------------------------------------------------

    def begin(self) -> bool:
        """Before reads are served: forget what has changed; whether pulls may be served."""
        changes = self._now()
        if changes != self._changes:
            self._changes = changes
            if self._sends is not None:
                self._sends.forget_routes()
            self._pulls.forget_routes()
            if self._guard is not None and self._access is not None:
                self._guard.forget(any_white=bool(self._access.rules.white))
        return not self._store.frozen

    @property
    def may_wait(self) -> int:
        """How many more sends may wait until they are kept."""
        return self._answers.room

    def wait_made(self, held: HeldAnswers) -> None:
        """Have answers that were made with the append wait until it is kept."""
        self._answers.wait_made(held)
        self._reput.appended()

    def served(self, served: list[tuple[int, int]], spent_s: float) -> None:
        """Count the requests of these codes that were answered, in `spent_s` altogether, and
        dispatch the messages that they stored."""
        mean_s = spent_s / sum([times for _, times in served])
        stored = False
        for code, times in served:
            self._stats.requests_served(code, mean_s, times)
            stored = stored or code in _SENDS
        if stored:
            self._reput.appended()

    # --- routes and counts --------------------------------------------------------------------

    def count_stored(
        self, topic: str, queues: Iterable[tuple[int, int, int]], sizes: Iterable[int]
    ) -> None:
        """Count what sends to a topic have stored; as `BrokerStats.stored_many`."""
        self._stats.stored_many(self._stats.topic(topic, MESSAGE_NORMAL), queues, sizes)

    def _now(self) -> tuple[int, int, int, int, int]:
        """The versions that move when a route may lead elsewhere, other accounts count, or the
        broker takes no sends any more."""
        accounts = 0 if self._access is None else self._access.changes
        tables = self._topics.state, self._groups.state, self._log.queues_removed
        return *tables, accounts, self._role.changes

    def send_route(self, encoded: bytes) -> Route | None:
        """Where sends to a topic go; None if each is to be looked at, as all are on a slave."""
        if self._role.is_slave:
            return None
        topic = self._topics.get(encoded.decode("utf-8", "replace"))
        if (
            topic is None
            or topic.order
            or topic.name in NO_SEND_TOPICS
            or topic.name in WAITING_TOPICS
            or topic.name.startswith(NOT_PLAIN_PREFIXES)
        ):
            return None
        sys_flag = SYS_MULTI_TAGS if topic.filter_type == MULTI_TAG else 0
        kinds = len(MESSAGE_SIZE_BOUNDS) + 1
        return self._form.route(topic.name, queues_of(topic), sys_flag, kinds)

    def pull_route(self, ext: Mapping[str, str]) -> PullRoute | None:
        """The route of pulls with these fields; None if each is to be looked at."""
        plain = self._pull.plain_pull(ext)
        if plain is None:
            return None
        return self._form.pull_route(
            plain.queue,
            is_light(plain.queue.topic),
            plain.codes,
            plain.group,
            plain.live,
            plain.subscription,
            plain.broker_id,
            plain.slow_broker_id,
        )
