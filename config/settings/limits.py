"""Settings that bound what anybody can make the broker do (docs/reliability.md 8).

`config/bounds/limits.py` checks their relations. Each says with `limit=` what it bounds, what it
may cost in memory and which metric shows that it is hit: docs/limits.md and the sum that is held
against the machine's memory at the start (`config/bounds/memory.py`) are made of that. The bytes of
small things are measured (resident memory of a daemon that holds thousands of them), and rounded
up.
"""

from typing import ClassVar

from aerobee.config.settings.setting import I32_MAX, Limit, Section, setting

_KIB = 1024
_MIB = 1024 * 1024


class LimitSettings(Section):
    """Every queue, buffer and count that input from outside can make grow."""

    section: ClassVar[str] = "limits"

    max_frame_bytes: int = setting(
        16 * _MIB,
        "frameMaxLength",
        within=(1024, 256 * _MIB),
        aliases=("com.rocketmq.remoting.frameMaxLength",),
        why="""Largest frame with its length word, judged before anything is allocated; a larger
        announcement closes the connection. RocketMQ: a JVM property.""",
        limit=Limit(
            "the frame that is being served: its bytes, the record and the answer made of it",
            "the connection is closed",
            'aerobee_bad_frames_total, aerobee_connections_closed_total{reason="bad_frame"}',
            bytes_each=4,
        ),
    )
    max_header_bytes: int = setting(
        256 * _KIB,
        within=(1024, 16 * _MIB),
        why="Largest frame header. Properties may be 32,767 bytes and JSON multiplies by six.",
        limit=Limit(
            "the header of a frame, a part of it",
            "the connection is closed",
            'aerobee_bad_frames_total, aerobee_connections_closed_total{reason="bad_frame"}',
        ),
    )
    frame_base_seconds: int = setting(
        30,
        within=(1, 3600),
        why="Time every frame gets to arrive whole, besides its size at frame_bytes_per_second.",
        limit=Limit(
            "the time a frame may take to arrive",
            "the connection is closed",
            'aerobee_connections_closed_total{reason="frame_too_slow"}',
        ),
    )
    frame_bytes_per_second: int = setting(
        64 * _KIB,
        unit="bytes/s",
        within=(1, I32_MAX),
        why="Slowest rate at which a large frame may trickle in; slower connections are closed.",
        limit=Limit(
            "the slowness of a frame",
            "the connection is closed",
            'aerobee_connections_closed_total{reason="frame_too_slow"}',
        ),
    )
    idle_seconds: int = setting(
        120,
        "serverChannelMaxIdleTimeSeconds",
        within=(1, 86_400),
        why="A connection silent both ways for this long is closed; clients beat every 30 s.",
        limit=Limit(
            "the time a connection may be silent",
            "the connection is closed",
            'aerobee_connections_closed_total{reason="idle"}',
        ),
    )
    connections: int = setting(
        10_000,
        within=(1, 1_000_000),
        why="Most client connections; less if the process may not open as many files.",
        limit=Limit(
            "client connections",
            "closed before anything is read",
            'aerobee_connections_refused_total{limit="all"}',
            bytes_each=6 * _KIB,
            times=("client_ports",),
        ),
    )
    connections_per_address: int = setting(
        5000,
        within=(1, 1_000_000),
        why="Most connections from one address; a NAT gateway looks like one address.",
        limit=Limit(
            "client connections of one address",
            "closed before anything is read",
            'aerobee_connections_refused_total{limit="address"}',
        ),
    )
    reserved_files: int = setting(
        256,
        within=(32, 100_000),
        why="Open files kept back from connections for the store's own.",
        limit=Limit(
            "open files that connections leave to the store",
            "accepting pauses",
            "aerobee_accept_pauses_total",
        ),
    )
    inbound_bytes: int = setting(
        128 * _MIB,
        within=(1 * _MIB, I32_MAX),
        why="Memory all half-received frames may take; beyond it the broker stops reading.",
        limit=Limit(
            "frames that are not yet whole, or wait for their slice, and requests in work",
            "from three quarters on the big ones but the oldest are not read; one that stalls, or "
            "would pass the limit, is closed",
            'aerobee_read_buffer_bytes, aerobee_connections_closed_total{reason="inbound_memory"}',
            bytes_each=1,
            times=("client_ports",),
        ),
    )
    outbound_bytes: int = setting(
        128 * _MIB,
        within=(1 * _MIB, I32_MAX),
        why="Unsent answers of all connections; beyond it the slowest is closed.",
        limit=Limit(
            "answers that peers have not taken",
            "their pulls get code 2, then those that hold most are closed",
            "aerobee_write_buffer_bytes, "
            'aerobee_connections_closed_total{reason="outbound_memory"}',
            bytes_each=1,
            times=("client_ports",),
        ),
    )
    outbound_high_water_bytes: int = setting(
        1 * _MIB,
        "writeBufferHighWaterMark",
        within=(64 * _KIB, I32_MAX),
        why="Unsent answers of one connection above which nothing more is read from it.",
        limit=Limit(
            "answers that one peer has not taken before it is read again",
            "the peer is not read",
            "aerobee_reader_pauses_total",
        ),
    )
    outbound_bytes_per_connection: int = setting(
        64 * _MIB,
        unit="bytes",
        within=(1 * _MIB, I32_MAX),
        why="Unsent answers of one connection above which it is closed.",
        limit=Limit(
            "answers that one peer has not taken",
            "the connection is closed",
            'aerobee_connections_closed_total{reason="peer_does_not_read"}',
        ),
    )
    calls_per_connection: int = setting(
        16_384,
        within=(1, 1_000_000),
        why="Questions of the broker to one client that wait for an answer.",
        limit=Limit(
            "questions of the broker to one client",
            "the question is not asked; the request that wants to know gets code 1 with the reason",
            'aerobee_refused_requests_total{reason="system_error"}',
        ),
    )
    client_calls: int = setting(
        10_000,
        within=(1, 1_000_000),
        why="""Questions of the broker to all clients that wait for an answer, and the requests that
        wait for those: what mqadmin asks of running consumers, and replies that are pushed.""",
        limit=Limit(
            "questions to clients, and requests that wait for their answers, with what they hold",
            "code 2 with the reason",
            'aerobee_client_calls_waiting, aerobee_limit_used_ratio{limit="limits.client_calls"}',
            bytes_each=4 * _KIB,
        ),
    )
    client_calls_per_connection: int = setting(
        1000,
        within=(1, 1_000_000),
        why="Requests of one connection that wait for clients' answers, replies among them.",
        limit=Limit(
            "requests of one connection that wait for clients' answers",
            "code 2 with the reason",
            'aerobee_refused_requests_total{reason="system_busy"}',
        ),
    )
    held_pulls: int = setting(
        100_000,
        "pullThreadPoolQueueCapacity",
        within=(1, 10_000_000),
        why="Most pulls that wait for a message; more are answered at once, and ask again.",
        live=True,
        limit=Limit(
            "pulls that wait for a message",
            "answered at once",
            'aerobee_held_pulls, aerobee_limit_used_ratio{limit="limits.held_pulls"}',
        ),
    )
    fast_failure: bool = setting(
        True,
        "brokerFastFailureEnable",
        why="""Refuse with SYSTEM_BUSY what has waited in the broker for too long, instead of doing
        what its sender has given up by then. A time of 0 below lets that kind wait.""",
    )
    send_queue_wait_ms: int = setting(
        200,
        "waitTimeMillsInSendQueue",
        unit="ms",
        within=(0, I32_MAX),
        why="Longest that a send may have waited behind others of its connection.",
        limit=Limit(
            "how long a send may have waited",
            "code 2 (SYSTEM_BUSY)",
            'aerobee_refused_requests_total{reason="system_busy"}',
        ),
    )
    pull_queue_wait_ms: int = setting(
        5000,
        "waitTimeMillsInPullQueue",
        unit="ms",
        within=(0, I32_MAX),
        why="The same for a pull; one that is held for a message does not wait in this sense.",
        limit=Limit(
            "how long a pull may have waited",
            "code 2 (SYSTEM_BUSY)",
            'aerobee_refused_requests_total{reason="system_busy"}',
        ),
    )
    heartbeat_queue_wait_ms: int = setting(
        31_000,
        "waitTimeMillsInHeartbeatQueue",
        unit="ms",
        within=(0, I32_MAX),
        why="The same for a heartbeat.",
        limit=Limit(
            "how long a heartbeat may have waited",
            "code 2 (SYSTEM_BUSY)",
            'aerobee_refused_requests_total{reason="system_busy"}',
        ),
    )
    transaction_queue_wait_ms: int = setting(
        3000,
        "waitTimeMillsInTransactionQueue",
        unit="ms",
        within=(0, I32_MAX),
        why="""The same for a commit or rollback. Producers send these one way: the broker asks
        again after a while about a transaction whose decision was refused.""",
        limit=Limit(
            "how long a commit or rollback may have waited",
            "code 2 (SYSTEM_BUSY)",
            'aerobee_refused_requests_total{reason="system_busy"}',
        ),
    )
    held_pull_bytes: int = setting(
        128 * _MIB,
        within=(1 * _MIB, I32_MAX),
        why="Memory the pulls that wait may take, with their filters; more are answered at once.",
        live=True,
        limit=Limit(
            "pulls that wait, with their names and filters",
            "answered at once",
            'aerobee_limit_used_ratio{limit="limits.held_pull_bytes"}',
            bytes_each=1,
        ),
    )
    client_bytes: int = setting(
        64 * _MIB,
        within=(1 * _MIB, I32_MAX),
        why="""Memory that connected clients may take with what their heartbeats say: ids, groups,
        subscriptions with their tags. A heartbeat that adds more is refused; one that adds nothing
        never is.""",
        live=True,
        limit=Limit(
            "ids, group names and subscriptions of connected clients",
            "the heartbeat gets code 1 with the reason",
            'aerobee_limit_used_ratio{limit="limits.client_bytes"}',
            bytes_each=1,
        ),
    )
    max_sql_chars: int = setting(
        8192,
        unit="characters",
        within=(64, 65_536),
        why="Longest SQL92 expression of a consumer. Compiling takes 2 us a character, in steps.",
        live=True,
        limit=Limit(
            "the SQL92 expression of a consumer",
            "code 23 with the reason; a heartbeat is taken, and its pulls get code 27",
            'aerobee_refused_requests_total{reason="subscription_parse_failed"}',
        ),
    )
    max_sql_depth: int = setting(
        64,
        unit="levels",
        within=(1, 100),
        why="""Most levels of operands, operators and parentheses of a SQL92 expression;
        `NOT (a = 1)` has 4. Each costs a call for every message, and Python has room for a thousand
        calls.""",
        live=True,
        limit=Limit(
            "the levels of a SQL92 expression",
            "code 23 with the reason, as above",
            'aerobee_refused_requests_total{reason="subscription_parse_failed"}',
        ),
    )
    max_sql_nodes: int = setting(
        512,
        unit="operands and operators",
        within=(1, 65_536),
        why="""Most operands and operators of a SQL92 expression, each of which costs 0.3 us for
        every message that it judges; a list of IN counts as one.""",
        live=True,
        limit=Limit(
            "operands and operators of a SQL92 expression",
            "code 23 with the reason, as above",
            'aerobee_refused_requests_total{reason="subscription_parse_failed"}',
        ),
    )
    sql_filter_bytes: int = setting(
        64 * _MIB,
        within=(1 * _MIB, I32_MAX),
        why="""Memory that the filters of SQL92 consumers may take, those that left within a day
        included; and again what the expressions that were compiled last may take. Filters of
        consumers that left make room for new ones; then a heartbeat that brings one is refused.""",
        live=True,
        limit=Limit(
            "compiled SQL92 expressions: those of consumer groups, and the last ones of pulls",
            "the oldest ones of pulls go; a heartbeat with a new one gets code 1 with the reason",
            'aerobee_limit_used_ratio{limit="limits.sql_filter_bytes"}',
            bytes_each=2,
        ),
    )
    max_request_bytes: int = setting(
        2 * _MIB,
        within=(64 * _KIB, 256 * _MIB),
        why="""Largest body of a request that carries no messages (heartbeats, locks, settings): a
        large JSON document takes up to a second of a thread that reads one after the other.""",
        limit=Limit(
            "the body of a request without messages, and what is made of it",
            "code 1 with the reason",
            'aerobee_refused_requests_total{reason="system_error"}',
            bytes_each=28,
        ),
    )
    timer_messages: int = setting(
        10_000_000,
        within=(1, 1_000_000_000),
        live=True,
        why="""Most messages that may wait for delivery times of their own in one hour; those of
        other hours take no memory.""",
        limit=Limit(
            "when the messages of the present hour are due, and where they lie",
            "code 14 with the reason",
            "aerobee_timer_messages",
            bytes_each=11,
        ),
    )
    stage_state_bytes: int = setting(
        128 * _MIB,
        within=(1 * _MIB, I32_MAX),
        why="""Memory for what is known of staged batches: one half for stages and open batches,
        some 320 bytes a chunk and 1.5 KB a stage, one half for the last batch of each query and
        the stages that it had on other brokers. Of the first, stages leave a quarter to open
        batches; jobs are told to try again when it is full. Of the second the dearest are
        forgotten but for their numbers.""",
        live=True,
        limit=Limit(
            "staged chunks, open batches, and the last batch of each query",
            "code 2 (SYSTEM_BUSY) with the reason; the dearest finished batches are forgotten",
            'aerobee_limit_used_ratio{limit="limits.stage_state_bytes"}',
            bytes_each=1,
        ),
    )
    timer_recalls: int = setting(
        100_000,
        within=(1, 10_000_000),
        live=True,
        why="Most recalls of messages that wait for one hour.",
        limit=Limit(
            "which messages of the present hour and the next one are recalled",
            "code 2 (SYSTEM_BUSY) with the reason",
            'aerobee_refused_requests_total{reason="system_busy"}',
            bytes_each=320,
        ),
    )
    max_topics: int = setting(
        20_000,
        within=(16, 1_000_000),
        why="Most topics. Each is files, memory and registration.",
        live=True,
        limit=Limit(
            "topics: their settings, counters, and routes in the embedded name server",
            "code 1 or 17 with the reason",
            'rocketmq_topic_number, aerobee_limit_used_ratio{limit="limits.max_topics"}',
            bytes_each=3 * _KIB,
        ),
    )
    max_queues: int = setting(
        200_000,
        within=(16, 10_000_000),
        why="Most queues of all topics together.",
        live=True,
        limit=Limit(
            "consume queues",
            "code 1 with the reason",
            'aerobee_limit_used_ratio{limit="limits.max_queues"}',
            bytes_each=2 * _KIB,
        ),
    )
    max_queues_per_topic: int = setting(
        1024,
        within=(1, 65_536),
        why="Most queues of one topic.",
        live=True,
        limit=Limit(
            "consume queues of one topic",
            "code 1 with the reason",
            'aerobee_refused_requests_total{reason="system_error"}',
        ),
    )
    max_groups: int = setting(
        20_000,
        within=(16, 1_000_000),
        why="Most consumer groups.",
        live=True,
        limit=Limit(
            "consumer groups",
            "code 1, or 26 where it is made by a pull, with the reason",
            'rocketmq_consumer_group_number, aerobee_limit_used_ratio{limit="limits.max_groups"}',
            bytes_each=1 * _KIB,
        ),
    )
    max_offsets: int = setting(
        500_000,
        within=(16, 10_000_000),
        why="""Most committed offsets, one for each queue that a group consumes; further groups and
        queues are refused theirs. Some 500 bytes each, and a part of every save.""",
        limit=Limit(
            "committed offsets",
            "code 1 with the reason",
            'aerobee_limit_used_ratio{limit="limits.max_offsets"}',
            bytes_each=500,
        ),
    )
    max_start_offsets: int = setting(
        100_000,
        within=(16, 10_000_000),
        why="""Most offsets that Spark's streams keep of where they began, as those of groups named
        <group>-start, which are no groups and do not count as such.""",
        limit=Limit(
            "offsets at which Spark's streams began",
            "code 1 with the reason",
            'aerobee_limit_used_ratio{limit="limits.max_start_offsets"}',
            bytes_each=500,
        ),
    )
    pending_transactions: int = setting(
        100_000,
        within=(16, 10_000_000),
        why="""Most undecided transactions; beyond it transactional messages are refused until some
        are decided or put aside. Some 500 bytes each.""",
        live=True,
        limit=Limit(
            "undecided half messages: where they lie, and when their producers are asked",
            "code 2 with the reason",
            "aerobee_transactions_pending, "
            'aerobee_limit_used_ratio{limit="limits.pending_transactions"}',
            bytes_each=500,
        ),
    )
    max_inflated_bytes: int = setting(
        16 * _MIB,
        within=(64 * _KIB, I32_MAX),
        why="Largest registration body after inflating it.",
        limit=Limit(
            "a registration at the embedded name server, its bytes and what is made of them",
            "code 1",
            'aerobee_nameserver_requests_total{request_code="register_broker"} and the log',
            bytes_each=6,
            times=("nameserver_enabled",),
        ),
    )
    max_kv_bytes: int = setting(
        8 * _MIB,
        within=(64 * _KIB, 15 * _MIB),
        why="""Names and values of the name server's key-value table. All of it is written at each
        change, and all keys of a namespace are one answer.""",
        limit=Limit(
            "the name server's key-value table, its text, and the text that is being written",
            "code 1 with the reason",
            'aerobee_nameserver_requests_total{request_code="put_kv_config"} and the log',
            bytes_each=4,
            times=("nameserver_enabled",),
        ),
    )
