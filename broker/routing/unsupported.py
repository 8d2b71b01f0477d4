"""The answer of a broker to a request code that it has no handler for (protocol/WIRE.md 1.10).

The text begins like the reference's, because clients may look at it. It goes on with the request's
name and the feature that the request belongs to, because few people know codes by their numbers.
"""

from typing import Final

from aerobee.protocol.codes import RequestCode as Code

_REPLIES: Final = "request-reply"
_ACCESS: Final = "access control"
_POP: Final = "POP consumption of RocketMQ 5"
_OF_5: Final = "RocketMQ 5"
_CONTROLLER: Final = "the controller of RocketMQ 5"
_COLD_DATA: Final = "control of cold data of RocketMQ 5"
_ACCESS_OF_5: Final = "users and access control lists of RocketMQ 5"
_LITE_TOPICS: Final = "lite topics of RocketMQ 5"
_TIMER: Final = "administration of the timer of RocketMQ 5"
_RESET: Final = "offset reset"
_CONSUMERS: Final = "looking into a running consumer"

#: The feature that each request belongs to.
FEATURES: Final[dict[int, str]] = {
    Code.PUSH_REPLY_MESSAGE_TO_CLIENT: _REPLIES,
    Code.GET_BROKER_CLUSTER_ACL_CONFIG: _ACCESS,
    Code.RESET_CONSUMER_CLIENT_OFFSET: _RESET,
    Code.RESET_CONSUMER_OFFSET_IN_BROKER: _RESET,
    Code.GET_CONSUMER_STATUS_FROM_CLIENT: _CONSUMERS,
    Code.REGISTER_FILTER_SERVER: "filter servers",
    Code.REGISTER_MESSAGE_FILTER_CLASS: "filter servers",
    **dict.fromkeys(
        (
            Code.POP_MESSAGE,
            Code.ACK_MESSAGE,
            Code.PEEK_MESSAGE,
            Code.CHANGE_MESSAGE_INVISIBLETIME,
            Code.NOTIFICATION,
            Code.POLLING_INFO,
            Code.POP_ROLLBACK,
            Code.BATCH_ACK_MESSAGE,
            Code.QUERY_ASSIGNMENT,
            Code.SET_MESSAGE_REQUEST_MODE,
            Code.GET_ALL_MESSAGE_REQUEST_MODE,
        ),
        _POP,
    ),
    Code.GET_TIMER_CHECK_POINT: _TIMER,
    Code.GET_TIMER_METRICS: _TIMER,
    **dict.fromkeys(
        (
            Code.CONTROLLER_ALTER_SYNC_STATE_SET,
            Code.CONTROLLER_ELECT_MASTER,
            Code.CONTROLLER_REGISTER_BROKER,
            Code.CONTROLLER_GET_REPLICA_INFO,
            Code.CONTROLLER_GET_METADATA_INFO,
            Code.CONTROLLER_GET_SYNC_STATE_DATA,
            Code.GET_BROKER_EPOCH_CACHE,
            Code.NOTIFY_BROKER_ROLE_CHANGED,
            Code.UPDATE_CONTROLLER_CONFIG,
            Code.GET_CONTROLLER_CONFIG,
            Code.CLEAN_BROKER_DATA,
            Code.CONTROLLER_GET_NEXT_BROKER_ID,
            Code.CONTROLLER_APPLY_BROKER_ID,
            Code.BROKER_CLOSE_CHANNEL_REQUEST,
            Code.CHECK_NOT_ACTIVE_BROKER_REQUEST,
            Code.GET_BROKER_LIVE_INFO_REQUEST,
            Code.GET_SYNC_STATE_DATA_REQUEST,
            Code.RAFT_BROKER_HEART_BEAT_EVENT_REQUEST,
        ),
        _CONTROLLER,
    ),
    **dict.fromkeys(
        (
            Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
            Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
            Code.GET_COLD_DATA_FLOW_CTR_INFO,
            Code.SET_COMMITLOG_READ_MODE,
        ),
        _COLD_DATA,
    ),
    **dict.fromkeys(
        (
            Code.AUTH_CREATE_USER,
            Code.AUTH_UPDATE_USER,
            Code.AUTH_DELETE_USER,
            Code.AUTH_GET_USER,
            Code.AUTH_LIST_USER,
            Code.AUTH_CREATE_ACL,
            Code.AUTH_UPDATE_ACL,
            Code.AUTH_DELETE_ACL,
            Code.AUTH_GET_ACL,
            Code.AUTH_LIST_ACL,
        ),
        _ACCESS_OF_5,
    ),
    **dict.fromkeys(
        (
            Code.POP_LITE_MESSAGE,
            Code.LITE_SUBSCRIPTION_CTL,
            Code.ACK_LITE_MESSAGE,
            Code.NOTIFY_UNSUBSCRIBE_LITE,
            Code.GET_BROKER_LITE_INFO,
            Code.GET_PARENT_TOPIC_INFO,
            Code.GET_LITE_TOPIC_INFO,
            Code.GET_LITE_CLIENT_INFO,
            Code.GET_LITE_GROUP_INFO,
            Code.TRIGGER_LITE_DISPATCH,
        ),
        _LITE_TOPICS,
    ),
    Code.SWITCH_TIMER_ENGINE: _TIMER,
    **dict.fromkeys(
        (
            Code.UPDATE_AND_CREATE_TOPIC_LIST,
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            Code.GET_CLIENT_CONFIG,
            Code.QUERY_TOPICS_BY_CONSUMER,
            Code.QUERY_SUBSCRIPTION_BY_CONSUMER,
            Code.UPDATE_AND_GET_GROUP_FORBIDDEN,
            Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
            Code.EXPORT_ROCKSDB_CONFIG_TO_JSON,
            Code.UPDATE_AND_CREATE_STATIC_TOPIC,
            Code.GET_BROKER_MEMBER_GROUP,
            Code.ADD_BROKER,
            Code.REMOVE_BROKER,
            Code.BROKER_HEARTBEAT,
            Code.NOTIFY_MIN_BROKER_ID_CHANGE,
            Code.EXCHANGE_BROKER_HA_INFO,
            Code.RESET_MASTER_FLUSH_OFFSET,
        ),
        _OF_5,
    ),
}

#: Requests to a name server. A broker gets them if a client was given the broker's port for the
#: name server's.
TO_NAME_SERVERS: Final = frozenset(
    {
        Code.PUT_KV_CONFIG,
        Code.GET_KV_CONFIG,
        Code.DELETE_KV_CONFIG,
        Code.REGISTER_BROKER,
        Code.UNREGISTER_BROKER,
        Code.GET_ROUTEINFO_BY_TOPIC,
        Code.GET_BROKER_CLUSTER_INFO,
        Code.WIPE_WRITE_PERM_OF_BROKER,
        Code.ADD_WRITE_PERM_OF_BROKER,
        Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        Code.DELETE_TOPIC_IN_NAMESRV,
        Code.REGISTER_TOPIC_IN_NAMESRV,
        Code.GET_KVLIST_BY_NAMESPACE,
        Code.GET_TOPICS_BY_CLUSTER,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        Code.GET_UNIT_TOPIC_LIST,
        Code.GET_HAS_UNIT_SUB_TOPIC_LIST,
        Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        Code.UPDATE_NAMESRV_CONFIG,
        Code.GET_NAMESRV_CONFIG,
        Code.QUERY_DATA_VERSION,
    }
)


def unsupported_text(code: int) -> str:
    """The remark of the answer to a request that nobody here serves."""
    begin = f" request type {code} not supported"
    if code in FEATURES:
        return f"{begin}: {Code(code).name} ({FEATURES[code]}) is not served by this version"
    if code in TO_NAME_SERVERS:
        return f"{begin}: {Code(code).name} is for a name server, and this is a broker's port"
    return begin
