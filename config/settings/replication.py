"""Settings of masters and slaves (docs/decisions/0026-replication.md).

A stock broker.conf names brokerRole, so a broker that is started with one opens the port for
slaves, as RocketMQ's does; a broker that nobody told of replication does not
(`config/setting_rules.py`).
"""

from typing import ClassVar

from aerobee.config.settings.setting import I64_MAX, Section, setting

_DAY_MS = 86_400_000


class ReplicationSettings(Section):
    """Master and slaves."""

    section: ClassVar[str] = "replication"

    broker_role: str = setting(
        "ASYNC_MASTER",
        "brokerRole",
        choices=("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"),
        why="""An ASYNC_MASTER answers a send without waiting for slaves, a SYNC_MASTER when there
        are as many copies as in_sync_replicas says. A SLAVE follows its master: it has the master's
        brokerName and brokerClusterName, and a brokerId above 0.""",
    )
    ha_enabled: bool = setting(
        False,
        "haEnabled",
        key_of="Aerobee",
        why="""Open the port for slaves. On by itself when a configuration names brokerRole or
        another setting of this section; false then keeps an ASYNC_MASTER's port closed.""",
    )
    ha_host: str = setting(
        "", "brokerIP2", why="Address told to slaves. Empty: the advertised address."
    )
    ha_listen_port: int = setting(
        0,
        "haListenPort",
        within=(0, 65_535),
        why="""Port for slaves. 0: listen_port + 1. In a broker.conf always listen_port + 1, because
        RocketMQ 4.9 overwrites what stands there.""",
    )
    ha_slave_addresses: str = setting(
        "",
        "haSlaveAddresses",
        key_of="Aerobee",
        separator=";",
        why="""Addresses that slaves may connect from, separated by ";", each in a form of
        plain_acl.yml: 10.1.2.3, 10.1.2.{3,4}, 10.1.*.*, 2001:db8:*. A slave gets every message, and
        signs nothing. Empty: with aclEnable the globalWhiteRemoteAddresses of plain_acl.yml,
        otherwise everybody, as with RocketMQ, which has no such setting.""",
    )
    ha_heartbeat_interval_ms: int = setting(
        5000,
        "haSendHeartbeatInterval",
        within=(100, _DAY_MS),
        why="""Pause between two signs of life, of a master to its slaves, and of a slave to its
        master. It has to be below the ha_housekeeping_interval_ms of the other machine, or an idle
        connection is closed again and again.""",
    )
    ha_housekeeping_interval_ms: int = setting(
        20_000,
        "haHousekeepingInterval",
        within=(1000, _DAY_MS),
        why="""A replication connection is closed when the other machine has said nothing for this
        long, so it has to be above the ha_heartbeat_interval_ms of that one.""",
    )
    ha_transfer_batch_bytes: int = setting(
        524_288,
        "haTransferBatchSize",
        within=(1024, 4_194_292),
        why="""Largest piece of log sent to a slave at a time. RocketMQ's own is 32,768, so that
        each piece and its report cost more than its bytes; its slaves take pieces of up to 4 MiB
        less a header of 12 bytes, and hang for ever on a larger one.""",
    )
    ha_master_address: str = setting(
        "",
        "haMasterAddress",
        why="""The port for slaves of the master that a slave follows, host:port. Empty, or shorter
        than 6 characters as in RocketMQ: asked of the name server.""",
    )
    ha_slave_behind_max_bytes: int = setting(
        268_435_456,
        "haSlaveFallbehindMax",
        within=(1, I64_MAX),
        why="A slave further behind than this does not count as a copy.",
    )
    ha_ack_durable: bool = setting(
        False,
        "haAckDurable",
        key_of="Aerobee",
        why="""A slave reports the bytes that it has synced, not those that it has written. On by
        itself for a SLAVE with SYNC_FLUSH. RocketMQ has no such setting: its slaves report what
        they have in memory.""",
    )
    in_sync_replicas: int = setting(
        2,
        "inSyncReplicas",
        key_of="RocketMQ 5",
        unit="copies",
        within=(1, 16),
        why="""Copies that the answer of a SYNC_MASTER promises, the master's own included. 1 waits
        for no slave. RocketMQ 4.9 has 2 and no such setting; 5.0's default is 1.""",
    )
    sync_from_last_file: bool = setting(
        False,
        "syncFromLastFile",
        key_of="RocketMQ 5",
        why="""A slave that reports 0 gets the newest segment only, as from RocketMQ 4.9; its copy
        lacks the rest then. False: it gets all segments, from the first one on. RocketMQ 4.9 has
        no such setting.""",
    )
    slave_timeout_ms: int = setting(
        3000,
        "slaveTimeout",
        within=(1, 600_000),
        why="A SYNC_MASTER send no slave has by then is answered FLUSH_SLAVE_TIMEOUT.",
    )
    offset_check_in_slave: bool = setting(
        False, "offsetCheckInSlave", why="A slave corrects pull offsets too."
    )
