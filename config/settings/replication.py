"""Settings of slaves: they are understood, but what they steer is not built yet.

They are declared so that a broker.conf is taken as it is and its values are checked. Where going on
without the part would break a promise the setting makes (a slave's copy), the value is refused and
the start stops instead.
"""

from typing import ClassVar

from aerobee.config.settings.setting import I64_MAX, Effect, Section, setting

_DAY_MS = 86_400_000
_NO_SLAVES = "is not supported yet: replication is missing; use ASYNC_MASTER"


class ReplicationSettings(Section):
    """Master and slaves."""

    section: ClassVar[str] = "replication"
    effect: ClassVar[Effect] = "later"

    broker_role: str = setting(
        "ASYNC_MASTER",
        "brokerRole",
        choices=("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"),
        effect="now",
        why="""A SYNC_MASTER's answer promises a copy on a slave, a SLAVE follows its master: both
        are refused until that is built, rather than promised and not kept.""",
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
    ha_heartbeat_interval_ms: int = setting(
        5000,
        "haSendHeartbeatInterval",
        within=(100, _DAY_MS),
        why="Pause between two signs of life to a slave.",
    )
    ha_housekeeping_interval_ms: int = setting(
        20_000,
        "haHousekeepingInterval",
        within=(1000, _DAY_MS),
        why="A silent replication connection is closed after this.",
    )
    ha_transfer_batch_bytes: int = setting(
        32_768,
        "haTransferBatchSize",
        within=(1024, 16_777_216),
        why="Largest piece of log sent to a slave at a time.",
    )
    ha_master_address: str = setting(
        "",
        "haMasterAddress",
        why="The master a slave follows, host:port. Empty: asked of the name server.",
    )
    ha_slave_behind_max_bytes: int = setting(
        268_435_456,
        "haSlaveFallbehindMax",
        within=(1, I64_MAX),
        why="A slave further behind than this does not count as a copy.",
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
    in_sync_replicas: int = setting(
        2,
        "inSyncReplicas",
        within=(1, 16),
        why="Copies that an answer of a SYNC_MASTER promises, the master's own included.",
    )
    ha_ack_durable: bool = setting(
        False, "haAckDurable", why="A slave reports what is synced, not what is written."
    )
    ha_slave_addresses: str = setting(
        "", "haSlaveAddresses", why="The addresses from which slaves may come."
    )
    sync_from_last_file: bool = setting(
        False, "syncFromLastFile", why="An empty slave gets the newest segment only."
    )
