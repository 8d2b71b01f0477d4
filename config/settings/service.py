"""Settings of what stands around the broker: embedded name server, HTTP port, metrics, logs, and
what administrators may do with requests."""

from typing import ClassVar

from aerobee.config.settings.setting import Limit, Section, setting

_PORT_HIGH = 65535


class NameServerSettings(Section):
    """The name server inside the broker process, and `aerobee nameserver` alone."""

    section: ClassVar[str] = "nameserver"

    nameserver_enabled: bool = setting(
        True,
        why="""Run a name server in the broker process, so that one command is a whole system. Off
        where RocketMQ's own name servers are used.""",
    )
    nameserver_host: str = setting(
        "", why="Address it listens on. Empty: the same as broker.listen_host."
    )
    nameserver_port: int = setting(
        9876,
        within=(0, _PORT_HIGH),
        why="""Port it listens on. 0 turns the embedded name server off. RocketMQ: listenPort in
        namesrv.conf, which `aerobee nameserver -c` takes as this one.""",
    )
    nameserver_admin_port: int = setting(
        0,
        within=(0, _PORT_HIGH),
        why="""A port of its own, on admin.host, for what administrators change: write permissions,
        key-value tables, topics deleted. The other port refuses these then; brokers register on
        either. 0: all is taken on the one port.""",
    )
    nameserver_kv_path: str = setting(
        "",
        "kvConfigPath",
        why="File of its key-value configuration. Empty: namesrv/kvConfig.json below the store.",
    )
    nameserver_order_messages: bool = setting(
        False,
        "orderMessageEnable",
        why="""Tell clients with the route of an ordered topic how many queues of each broker it has
        (key-value namespace ORDER_TOPIC_CONFIG), so that order keys keep their queues while a
        broker is away. RocketMQ: in namesrv.properties.""",
    )


class ShardSettings(Section):
    """Several brokers on one machine (`aerobee serve --shards N`)."""

    section: ClassVar[str] = "shards"

    shards_restart_pause_ms: int = setting(
        35_000,
        within=(0, 3_600_000),
        why="""In a rolling restart (SIGUSR2) the time between a shard that is ready again and the
        stop of the next one. RocketMQ's clients send heartbeats and ask for routes every 30 s: by
        then all of them consume from the first again and know of it, whatever name server they
        ask. Aerobee's own clients are back after 3 s.""",
    )


class DrainSettings(Section):
    """How a broker lets its producers go before it stops (docs/operations.md)."""

    section: ClassVar[str] = "drain"

    drain_timeout_ms: int = setting(
        45_000,
        within=(0, 3_600_000),
        live=True,
        why="""How long at most a broker that is drained, or that SIGTERM stops, waits for its
        producers to leave, if other brokers take its topics. 0: SIGTERM drains nothing.""",
    )
    drain_route_refresh_ms: int = setting(
        32_000,
        within=(0, 3_600_000),
        live=True,
        why="""How long producers that are connected may still send by the routes that they had when
        the name servers were told. RocketMQ's clients ask for routes every 30 s
        (pollNameServerInterval), and so do ours.""",
    )
    drain_token: str = setting(
        "",
        secret=True,
        why="""Who sends this as Authorization: Bearer TOKEN may POST /drain from other machines.
        Empty: only this machine may.""",
    )


class HttpSettings(Section):
    """One HTTP port for metrics and health."""

    section: ClassVar[str] = "http"

    http_enabled: bool = setting(
        True, why="Serve /metrics, /live and /ready over HTTP, from this process."
    )
    http_host: str = setting(
        "127.0.0.1",
        "metricsPromExporterHost",
        why="Address the HTTP port is bound to; loopback unless told otherwise.",
    )
    http_port: int = setting(
        5557,
        "metricsPromExporterPort",
        within=(0, _PORT_HIGH),
        why="""Port for metrics and health: the one RocketMQ 5's metrics and the usual exporter use.
        0 turns it off.""",
    )
    http_connections: int = setting(
        64,
        within=(1, 10_000),
        why="Most connections of that port at a time: probes and scrapes must not starve clients.",
        limit=Limit(
            "connections of the HTTP port",
            "the longest idle one, else the slowest one is closed for the newcomer",
            "aerobee_http_connections_evicted_total, aerobee_http_connections_refused_total",
            bytes_each=64 * 1024,
            times=("http_enabled",),
        ),
    )


class MetricsSettings(Section):
    """The content of /metrics."""

    section: ClassVar[str] = "metrics"

    metrics_exporter: str = setting(
        "PROM",
        "metricsExporterType",
        choices=("PROM", "DISABLE", "OTLP_GRPC", "LOG"),
        refused={
            "OTLP_GRPC": "is not supported: let a collector scrape /metrics (PROM)",
            "LOG": "is not supported: scrape /metrics (PROM)",
        },
        why="DISABLE leaves out the families with RocketMQ 5's names.",
    )
    metrics_label: str = setting(
        "", "metricsLabel", why="Further labels of those families, k:v,k:v."
    )
    metrics_series_per_family: int = setting(
        1000,
        "metricsOtelCardinalityLimit",
        unit="series",
        within=(1, 10_000_000),
        why="""Most series of one family of /metrics: the largest, while the others are added up
        under __other__. A page is then 4 MB at most and takes 0.3 s of processor; RocketMQ's
        50,000 would be 150 MB, which no scraper waits for.""",
        limit=Limit(
            "series of one family; pages of metrics while they are made and sent",
            "the others are added up",
            "aerobee_metrics_folded_series",
            bytes_each=32 * 1024,
            times=("http_enabled",),
        ),
    )
    metrics_exporter4x: bool = setting(
        False,
        effect="later",
        why="Also the names of rocketmq-exporter 0.0.2, for dashboards made for RocketMQ 4.",
    )


class LogSettings(Section):
    """Logs go to standard error, through a queue and one writer thread."""

    section: ClassVar[str] = "log"

    log_level: str = setting(
        "INFO",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        live=True,
        why="Least severe event that is written. Nothing is logged per message above DEBUG.",
    )
    log_format: str = setting(
        "auto",
        choices=("auto", "text", "json", "journal"),
        why="""auto: coloured text on a terminal, priority prefixes under journald, otherwise one
        JSON object a line.""",
    )
    log_queue_events: int = setting(
        10_000,
        within=(100, 1_000_000),
        why="Events waiting for a slow reader of the log; more are dropped and counted.",
        limit=Limit(
            "lines of the log that wait for its reader",
            "the line is dropped",
            "the log: `dropped=`",
            bytes_each=1024,
        ),
    )


class AdminSettings(Section):
    """The requests of administrators."""

    section: ClassVar[str] = "admin"

    admin_host: str = setting("127.0.0.1", why="Address of admin.port and nameserver.admin_port.")
    admin_port: int = setting(
        0,
        within=(0, _PORT_HIGH),
        why="""A port of its own for administrators' requests: topics and groups made, changed and
        deleted, offsets reset, settings and accounts changed. The broker's other ports refuse them
        then, whoever asks. mqadmin is given it by -b, our commands by --admin. 0: they are taken on
        all ports.""",
    )
    remote_config: bool = setting(
        False,
        why="""Let requests (mqadmin updateBrokerConfig, aerobee broker config --set) change the
        settings that a reload may change. Without aclEnable whoever reaches the port may, with it
        an administrator. What they change is kept in config/remote.toml below the store, which
        counts above the broker's file and below its environment and command line.""",
    )
