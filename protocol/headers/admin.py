"""Typed headers of administration and of the name server (WIRE.md 3.5, 3.6, 3.8, 5.1, 5.2)."""

from msgspec import field

from aerobee.protocol.headers.fields import Header, Int32, Int64


class CreateTopicHeader(Header):
    """UPDATE_AND_CREATE_TOPIC; `order` is accepted and ignored, as upstream does."""

    topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    default_topic: str = ""
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    order: bool = False


class TopicHeader(Header):
    """DELETE_TOPIC_IN_BROKER, GET_TOPIC_CONFIG and other requests about a topic alone."""

    topic: str


class DrainHeader(Header):
    """DRAIN: `action` is begin or undo."""

    action: str
    everything: bool = False


class GroupHeader(Header):
    """GET_SUBSCRIPTIONGROUP_CONFIG."""

    group: str


class DeleteGroupHeader(Header):
    """DELETE_SUBSCRIPTIONGROUP."""

    group_name: str
    remove_offset: bool = False


class ProducerGroupHeader(Header):
    """GET_PRODUCER_CONNECTION_LIST."""

    producer_group: str


class ConsumeStatsHeader(Header):
    """GET_CONSUME_STATS; a blank topic means all topics of the group."""

    consumer_group: str
    topic: str = ""


class BrokerConsumeStatsHeader(Header):
    """GET_BROKER_CONSUME_STATS."""

    is_order: bool


class StatsDataHeader(Header):
    """VIEW_BROKER_STATS_DATA."""

    stats_name: str
    stats_key: str


class PutKvHeader(Header):
    """PUT_KV_CONFIG."""

    namespace: str
    key: str
    value: str


class KvHeader(Header):
    """GET_KV_CONFIG, DELETE_KV_CONFIG."""

    namespace: str
    key: str


class KvValueResponse(Header):
    """The answer to GET_KV_CONFIG."""

    value: str | None = None


class KvNamespaceHeader(Header):
    """GET_KVLIST_BY_NAMESPACE."""

    namespace: str


class RegisterBrokerHeader(Header):
    """REGISTER_BROKER; broker id 0 is the master, a body CRC of 0 is not checked."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64
    ha_server_addr: str = ""
    compressed: bool = False
    body_crc32: Int32 = field(default=0, name="bodyCrc32")


class RegisterBrokerResponse(Header):
    """The answer to REGISTER_BROKER: where a slave finds its master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class BrokerIdentityHeader(Header):
    """QUERY_DATA_VERSION."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class UnregisterBrokerHeader(BrokerIdentityHeader):
    """UNREGISTER_BROKER. `returns` is our own, RocketMQ's name servers pass over it."""

    returns: bool = False


class QueryDataVersionResponse(Header):
    """The answer to QUERY_DATA_VERSION."""

    changed: bool


class RouteHeader(Header):
    """GET_ROUTEINFO_BY_TOPIC."""

    topic: str
    accept_standard_json_only: bool = False


class BrokerNameHeader(Header):
    """WIPE_WRITE_PERM_OF_BROKER, ADD_WRITE_PERM_OF_BROKER."""

    broker_name: str


class WipeWritePermResponse(Header):
    """The answer to WIPE_WRITE_PERM_OF_BROKER."""

    wipe_topic_count: Int32


class AddWritePermResponse(Header):
    """The answer to ADD_WRITE_PERM_OF_BROKER."""

    add_topic_count: Int32


class DeleteTopicHeader(Header):
    """DELETE_TOPIC_IN_NAMESRV; without a cluster name the topic goes everywhere."""

    topic: str
    cluster_name: str | None = None


class ClusterHeader(Header):
    """GET_TOPICS_BY_CLUSTER."""

    cluster: str


class ConsumerClientHeader(Header):
    """GET_CONSUMER_RUNNING_INFO, and the part of CONSUME_MESSAGE_DIRECTLY that names the member."""

    consumer_group: str
    client_id: str


class ConsumeDirectlyHeader(Header):
    """CONSUME_MESSAGE_DIRECTLY; `msg_id` is an offsetMsgId."""

    consumer_group: str
    client_id: str
    msg_id: str


class ConsumerStatusHeader(Header):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS, and GET_CONSUMER_STATUS_FROM_CLIENT without the third;
    `client_addr` is a client id, blank for all members."""

    topic: str
    group: str
    client_addr: str | None = None


class ResetOffsetHeader(Header):
    """INVOKE_BROKER_TO_RESET_OFFSET; `timestamp` in ms, -1 for the ends of the queues. `offset` and
    `queue_id` are of 5.x: a reset of one queue to one offset; -1 stands for no value."""

    topic: str
    group: str
    timestamp: Int64
    is_force: bool = False
    offset: Int64 | None = None
    queue_id: Int32 | None = None


class ResetPushHeader(Header):
    """RESET_CONSUMER_CLIENT_OFFSET."""

    topic: str
    group: str
    timestamp: Int64
    is_force: bool = False


class TimeSpanHeader(Header):
    """QUERY_CONSUME_TIME_SPAN."""

    topic: str
    group: str


class CorrectionOffsetHeader(Header):
    """QUERY_CORRECTION_OFFSET; `filter_groups` are names separated by commas."""

    topic: str
    compare_group: str
    filter_groups: str = ""


class CloneOffsetHeader(Header):
    """CLONE_GROUP_OFFSET; a blank topic means all topics of the source."""

    src_group: str
    dest_group: str
    topic: str = ""
    offline: bool = False


class ConsumeQueueHeader(Header):
    """QUERY_CONSUME_QUEUE; `index` is a queue offset."""

    topic: str
    queue_id: Int32 = 0
    index: Int64 = 0
    count: Int32 = 0
    consumer_group: str | None = None


class BrokerStatusHeader(Header):
    """BROKER_STATUS; with a topic the answer tells of that as well."""

    topic: str | None = None


class ClientsHeader(Header):
    """CLIENTS: which connections are listed; of an address the port may be left out. `details`
    with a client id tells what the client subscribes to, and which queues it holds."""

    group: str | None = None
    topic: str | None = None
    address: str | None = None
    client_id: str | None = None
    details: bool = False
