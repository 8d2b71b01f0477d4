"""Settings of the broker's face: who it is, where it listens, what its clients may do.

The attributes are those of `Settings` (model.py); RocketMQ's key stands beside each.
"""

from typing import ClassVar

from aerobee.config.settings.setting import I64_MAX, Section, setting

_PORT_HIGH = 65535
_PERMISSIONS_HIGH = 7


class BrokerSettings(Section):
    """Names, addresses and the conduct of the connection with clients and name servers."""

    section: ClassVar[str] = "broker"

    listen_host: str = setting(
        "127.0.0.1",
        "bindAddress",
        why="""Address the broker's ports are bound to. Loopback unless an address is given; beyond
        it aclEnable keeps strangers out. 0.0.0.0 is every IPv4 interface, :: every interface.
        """,
    )
    listen_port: int = setting(
        10911,
        "listenPort",
        within=(0, _PORT_HIGH),
        why="Port for clients. 0 takes a free one and prints it.",
    )
    vip_port_enabled: bool = setting(
        True,
        why="""Listen also on listen_port - 2: Java clients before 4.5.1 send there unless told not
        to (vipChannelEnabled). The same broker answers on both.""",
    )
    advertised_host: str = setting(
        "",
        "brokerIP1",
        why="""Address or host name told to clients and written into every message as its store
        host. Empty: chosen at the start from listen_host and printed.""",
    )
    broker_name: str = setting(
        "",
        "brokerName",
        why="""Name under which clients know the broker; master and slaves share it. Empty: the
        host's name, with characters that no topic name may have turned into '-'.""",
    )
    cluster_name: str = setting(
        "DefaultCluster", "brokerClusterName", why="Name of the cluster the broker belongs to."
    )
    broker_id: int = setting(
        0,
        "brokerId",
        within=(0, I64_MAX),
        why="0 is the master and every master's number; slaves have numbers above 0.",
    )
    broker_permission: int = setting(
        6,
        "brokerPermission",
        within=(0, _PERMISSIONS_HIGH),
        live=True,
        why="""What the whole broker allows: 4 read + 2 write (+ 1 inherit). A topic is registered
        with what both it and this allow, so 4 drains the senders: they go to other brokers as soon
        as they read the route again, within half a minute.""",
    )
    name_servers: str = setting(
        "",
        "namesrvAddr",
        separator=";",
        why="""Name servers to register with, host:port, separated by ';' or ','. Empty: the
        embedded one. Without this setting the environment's NAMESRV_ADDR counts, as with
        RocketMQ.""",
    )
    region_id: str = setting(
        "DefaultRegion", "regionId", why="Region told to clients in send answers (message traces)."
    )
    trace_on: bool = setting(
        True, "traceOn", why="Tells clients in send answers that message traces are welcome."
    )
    long_polling: bool = setting(
        True,
        "longPollingEnable",
        why="Hold a pull that found nothing until a message arrives or its time is over.",
    )
    short_polling_ms: int = setting(
        1000,
        "shortPollingTimeMills",
        within=(1, 120_000),
        why="How long such a pull is held when long polling is off.",
    )
    notify_consumer_ids_changed: bool = setting(
        True,
        "notifyConsumerIdsChangedEnable",
        why="""Tell the consumers of a group at once when one comes or goes. Otherwise they notice
        at their next rebalance, 20 seconds later at worst.""",
    )
    flush_consumer_offset_interval_ms: int = setting(
        1000,
        "flushConsumerOffsetInterval",
        within=(100, 3_600_000),
        why="""How often committed offsets are written to disk while commits go on; a kill loses at
        most this much. The first ones after a pause are written within 200 ms. RocketMQ: 5 s.""",
    )
    register_interval_ms: int = setting(
        30_000,
        "registerNameServerPeriod",
        within=(10_000, 60_000),
        clamp=True,
        why="Pause between renewals with the name servers, which forget it after 120 s.",
    )
    register_timeout_ms: int = setting(
        6000,
        "registerBrokerTimeoutMills",
        within=(100, 60_000),
        why="Time a name server gets to answer one registration.",
    )
    force_register: bool = setting(
        True,
        "forceRegister",
        why="""Renew with the whole topic table every time. Otherwise the name servers are first
        asked whether theirs is out of date.""",
    )
    compressed_register: bool = setting(
        False,
        "compressedRegister",
        why="Deflate the registration body: helps with many thousands of topics.",
    )
    start_accept_send_timestamp_ms: int = setting(
        0,
        "startAcceptSendRequestTimeStamp",
        unit="ms since 1970",
        within=(0, I64_MAX),
        why="Sends are refused before this moment: lets a broker warm up with readers only.",
    )
    memory_bytes: int = setting(
        0,
        within=(0, I64_MAX),
        why="""Memory that all limits together are held against at the start (docs/limits.md), for a
        broker that shares its machine. 0: what the machine or the control group has. Shards get
        equal parts of it by themselves.""",
    )
    lock_lease_ms: int = setting(
        60_000,
        "lockMaxLiveTime",
        within=(1000, 3_600_000),
        aliases=("rocketmq.broker.rebalance.lockMaxLiveTime",),
        why="""How long an orderly consumer keeps its lock on a queue without renewing it (clients
        renew every 20 s). RocketMQ: a JVM property.""",
    )
    client_expiry_ms: int = setting(
        120_000,
        within=(1000, 3_600_000),
        why="A producer or consumer without heartbeat for this long is forgotten (120 s upstream).",
    )
    slave_read: bool = setting(
        False, "slaveReadEnable", why="Suggest to lagging consumers that they read from a slave."
    )
    transfer_by_heap: bool = setting(
        True,
        "transferMsgByHeap",
        effect="never",
        why="Pull answers are always handed to the socket as views of the file, never copied.",
    )
    store_reply_message: bool = setting(
        True, "storeReplyMessageEnable", why="Store the answers of request-reply conversations too."
    )
    rocketmq_home: str = setting(
        "",
        "rocketmqHome",
        why="""RocketMQ's installation directory, from the environment's ROCKETMQ_HOME: where
        conf/plain_acl.yml is looked for. Aerobee runs without one.""",
    )
    message_plug_in: str = setting(
        "", "messageStorePlugIn", effect="never", why="Class names of Java store plug-ins."
    )
    config_black_list: str = setting(
        "configBlackList;brokerConfigPath",
        "configBlackList",
        separator=";",
        effect="never",
        why="Keys that must not be changed remotely; here no key can be until an allow-list is.",
    )


class TopicSettings(Section):
    """Which topics and groups exist without having been made by an administrator."""

    section: ClassVar[str] = "topics"

    default_topic_queues: int = setting(
        8,
        "defaultTopicQueueNums",
        within=(1, 1024),
        why="Queues of TBW102, and so the most that a topic made by a first send gets.",
    )
    auto_create_topic: bool = setting(
        True,
        "autoCreateTopicEnable",
        why="""Make a topic when a client first sends to it. Comfortable to start with; in
        production a misspelt name becomes a topic, so turn it off there.""",
    )
    auto_create_group: bool = setting(
        True, "autoCreateSubscriptionGroup", why="Accept consumer groups nobody declared."
    )
    auto_create_per_minute: int = setting(
        600,
        within=(1, 1_000_000),
        live=True,
        why="Most topics made by sends in one minute: making topics is a way to fill a disk.",
    )
    cluster_topic: bool = setting(
        True,
        "clusterTopicEnable",
        why="Whether the topic named like the cluster may be written and read.",
    )
    broker_topic: bool = setting(
        True,
        "brokerTopicEnable",
        why="Whether the topic named like the broker may be written and read.",
    )
    trace_topic: bool = setting(
        False, "traceTopicEnable", why="Keep a topic for message traces sent by clients."
    )
    trace_topic_name: str = setting(
        "RMQ_SYS_TRACE_TOPIC", "msgTraceTopicName", why="Name of that topic."
    )
