"""Shards differ: no two share a port, a store or a name."""

from itertools import pairwise

import pytest

from aerobee.config.bounds.memory import Memory, memory_of, memory_warning, worst_cases
from aerobee.config.errors import ConfigError
from aerobee.config.model import Settings
from aerobee.config.ports import VIP_BELOW, check_clashes
from aerobee.shards.shard_plan import STRIDE, all_listeners, check_plan, shard_changes

GIB = 1 << 30


def shards_of(base: Settings, count: int, memory: Memory | None = None) -> list[Settings]:
    return [
        base.with_changes(**shard_changes(base, number, count, memory)) for number in range(count)
    ]


def test_the_first_shard_has_name_and_port_of_a_broker_without_shards() -> None:
    base = Settings.for_tests(broker_name="vm", store_path="/srv/store")
    first, second, third = shards_of(base, 3)
    assert (first.broker_name, first.listen_port) == ("vm", 10911)
    assert (second.broker_name, third.broker_name) == ("vm-1", "vm-2")
    assert [shard.listen_port for shard in (second, third)] == [10921, 10931]
    assert [shard.http_port for shard in (first, second, third)] == [5558, 5559, 5560]
    assert second.store_path == "/srv/store/shard-1"
    assert {shard.cluster_name for shard in (first, second, third)} == {base.cluster_name}


def test_64_shards_take_no_port_twice() -> None:
    base = Settings.for_tests()
    shards = shards_of(base, 64)
    check_plan(base, 64)
    check_clashes(all_listeners(base, shards))
    # VIP port, port and HA port of each lie apart from those of the next.
    for one, other in pairwise(shards):
        assert one.listen_port + 1 < other.listen_port - VIP_BELOW


def test_each_has_a_port_for_slaves_and_follows_the_shard_of_its_number() -> None:
    base = Settings.for_tests(broker_role="SLAVE", ha_master_address="master:10912")
    shards = shards_of(base, 3)
    assert [shard.ha_listen_port for shard in shards] == [10912, 10922, 10932]
    masters = [shard.ha_master_address for shard in shards]
    assert masters == ["master:10912", "master:10922", "master:10932"]
    keys = [one.key for one in all_listeners(base, shards) if one.port == 10922]
    assert keys == ["replication.ha_listen_port of shard 1"]
    check_clashes(all_listeners(base, shards_of(base, 64)))


def test_no_setting_of_slaves_is_named_where_there_are_none() -> None:
    """A setting that is named opens the port."""
    changes = shard_changes(Settings.for_tests(), 1, 2, None)
    assert not changes.keys() & {"ha_listen_port", "ha_master_address"}


def test_a_clash_with_the_name_server_names_the_shard() -> None:
    base = Settings.for_tests(nameserver_port=10911 + STRIDE)
    with pytest.raises(ConfigError, match=r"10921.*nameserver\.port"):
        check_clashes(all_listeners(base, shards_of(base, 2)))


@pytest.mark.parametrize(
    ("changes", "count", "key"),
    [
        ({"listen_port": 65_530}, 2, "broker.listen_port"),
        ({"http_port": 65_535}, 2, "http.port"),
        ({"ha_enabled": True, "ha_listen_port": 65_530}, 2, "replication.ha_listen_port"),
    ],
)
def test_too_many_for_the_ports_there_are_is_said(
    changes: dict[str, int], count: int, key: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_plan(Settings.for_tests(**changes), count)
    assert caught.value.key == key


def test_all_register_at_the_one_name_server_and_none_runs_its_own() -> None:
    for shard in shards_of(Settings.for_tests(listen_host="0.0.0.0"), 2):
        assert (shard.nameserver_enabled, shard.name_servers) == (False, "127.0.0.1:9876")


def test_name_servers_that_are_given_stay() -> None:
    base = Settings.for_tests(name_servers="a:1;b:2", nameserver_enabled=False)
    assert {shard.name_servers for shard in shards_of(base, 2)} == {"a:1;b:2"}


def test_each_has_a_directory_of_its_own_on_each_disk() -> None:
    base = Settings.for_tests(
        store_path="/store", commit_log_path="/a,/b", read_only_commit_log_paths="/old"
    )
    second = shards_of(base, 2)[1]
    assert second.commit_log_path == "/a/shard-1,/b/shard-1"
    assert second.read_only_commit_log_paths == "/old/shard-1"


def test_the_shares_of_memory_and_what_runs_beside_fit_the_machine() -> None:
    base, memory = Settings.for_tests(), Memory(8 * GIB, "the machine")
    shares = [shard.memory_bytes for shard in shards_of(base, 4, memory)]
    assert len(set(shares)) == 1
    name_server = sum(case.bytes for case in worst_cases(base)) - sum(
        case.bytes for case in worst_cases(base.with_changes(nameserver_enabled=False))
    )
    assert sum(shares) + name_server < memory.bytes
    assert sum(shares) > memory.bytes / 2


def test_limits_that_fit_one_broker_are_warned_of_when_there_are_several() -> None:
    base, memory = Settings.for_tests(), Memory(4 * GIB, "the machine")
    assert memory_warning(base, memory_of(base, memory)) is None
    shard = shards_of(base, 2, memory)[0]
    text = memory_warning(shard, memory_of(shard, memory))
    assert text is not None
    assert "its share (broker.memory_bytes)" in text


def test_what_counts_as_recent_is_shared_as_well() -> None:
    base = Settings.for_tests()
    assert base.memory_ratio_percent == 40
    assert shards_of(base, 4)[0].memory_ratio_percent == 10
    assert shards_of(base, 64)[0].memory_ratio_percent == 1
