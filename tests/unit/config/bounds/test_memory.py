"""docs/limits.md, and the memory that all limits together allow."""

import logging
import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

import aerobee.testing
from aerobee.access import accounts
from aerobee.access.audit.recorder import MOST_UNDER_WAY
from aerobee.broker.appending.answers import MAX_DECISIONS, MAX_QUESTIONS, MAX_SENDS
from aerobee.broker.broker_stats import BrokerStats, Tally
from aerobee.broker.delay import backlog
from aerobee.broker.lifecycle import daemon
from aerobee.broker.monitoring.http import HttpLimits
from aerobee.broker.requests.administration.consumption import _MOST_RATES
from aerobee.broker.requests.clients.member_lists import KEPT_BYTES
from aerobee.broker.requests.clients.order_locks import MAX_LOCKS
from aerobee.broker.second_step.deleted_topics import MOST_DELETIONS
from aerobee.broker.staging.stage_table import DROPPED_KEPT
from aerobee.broker.tables.clients import ClientTable
from aerobee.broker.transactions.transaction_table import REMEMBERED
from aerobee.client.options import PushOptions
from aerobee.client.producing import message_trace
from aerobee.config.bounds.client_limits import CLIENT
from aerobee.config.bounds.growth import BOUNDED
from aerobee.config.bounds.limits_page import PAGE, page
from aerobee.config.bounds.memory import (
    FIXED,
    Memory,
    available_memory,
    memory_warning,
    size_text,
    worst_cases,
)
from aerobee.config.manual import write_or_check
from aerobee.config.model import SETTINGS, Settings
from aerobee.config.settings.limits import LimitSettings
from aerobee.nameserver import routes
from aerobee.nameserver.routes import RouteLimits
from aerobee.nameserver.server import ALL_CHANGES_WAITING, NAME_SERVER_LIMITS
from aerobee.store.log.commit_log import PENDING_MOST
from aerobee.store.reading import damage
from aerobee.summed_log import MOST_KINDS

MIB = 1 << 20
METRICS = PAGE.parent / "metrics.md"


def test_the_page_is_up_to_date() -> None:
    remedy = "run python -m aerobee.config.bounds.limits_page"
    assert PAGE.read_text(encoding="utf-8") == page(), remedy
    assert write_or_check(PAGE, page(), "aerobee.config.bounds.limits_page", ["--check"]) == 0


def test_every_limit_says_what_it_bounds_and_what_it_costs() -> None:
    """A new setting of that section needs one argument more: limit=Limit(...)."""
    silent = [
        setting.full_key
        for setting in LimitSettings.settings
        if setting.limit is None and setting.type is not bool  # a switch bounds nothing
    ]
    assert silent == []


def test_what_limits_depend_on_is_a_setting_or_a_property_of_them() -> None:
    limits = [setting.limit for setting in SETTINGS] + [fixed.limit for fixed in FIXED]
    names = {name for limit in limits if limit is not None for name in limit.times}
    settings = Settings.for_tests()
    assert {name for name in names if not isinstance(getattr(settings, name), int)} == set()


def test_every_metric_of_the_page_is_one_of_the_broker() -> None:
    known = set(re.findall(r"`((?:aerobee|rocketmq)_\w+)`", METRICS.read_text(encoding="utf-8")))
    named = set(re.findall(r"\b((?:aerobee|rocketmq)_\w+)", page())) - {"aerobee_"}
    assert named - known == set()


def test_constants_are_those_of_their_modules() -> None:
    values = {fixed.name: fixed.value for fixed in FIXED}
    table = ClientTable(Settings(), lambda: 0.0, Tally())
    assert values["client groups"] == table._limit
    assert values["waiting sends"] == MAX_SENDS
    assert values["order locks"] == MAX_LOCKS
    assert values["audited changes under way"] == MOST_UNDER_WAY
    assert values["lists of members"] == KEPT_BYTES
    assert values["waiting questions for batches"] == MAX_QUESTIONS
    assert values["stages given up"] == DROPPED_KEPT
    assert values["counters"] == BrokerStats()._limit
    assert values["deleted topics"] == MOST_DELETIONS
    # One of the broker, one of each port, one of each table of accounts.
    assert values["summed lines of the log"] == 3 * MOST_KINDS
    assert values["unsent HTTP answers"] == HttpLimits().unsent_bytes
    assert values["name server, unfinished frames"] == NAME_SERVER_LIMITS.inbound_total_bytes
    assert values["name server, unsent answers"] == NAME_SERVER_LIMITS.outbound_total_bytes
    assert values["name server, routes"] == RouteLimits().queue_entries
    assert values["name server, topics that went"] == routes._DEPARTED_LIMIT
    assert values["name server, changes that wait"] == ALL_CHANGES_WAITING
    assert values["appended messages"] == PENDING_MOST
    assert values["decided transactions"] == REMEMBERED
    assert values["waiting ends of transactions"] == MAX_DECISIONS
    assert values["rates of groups"] == _MOST_RATES
    assert values["damage reported"] == 2 * damage._MOST_REPORTED
    assert values["places of waiting messages"] == backlog._MOST_PLACES
    assert values["white addresses"] == accounts._KNOWN_ADDRESSES


def test_texts_that_are_remembered_are_few_and_short() -> None:
    """Each cache by its number of texts; long properties and tags are left out."""
    value = {fixed.name: fixed.value for fixed in FIXED}["remembered texts"]
    caches = [
        getattr(import_module(f"aerobee.{module[:-3].replace('/', '.')}"), name[:-2])
        for module, names in BOUNDED["remembered texts"].items()
        for name in names.split()
    ]
    assert sum(cache.cache_parameters()["maxsize"] for cache in caches) <= value


def test_the_limits_of_our_client_are_those_of_its_modules() -> None:
    rows = {row.name: row.value for row in CLIENT}
    assert rows["client, trace"] == f"{message_trace._MOST_WAITING:,} records"
    options = {field.name for field in fields(PushOptions)}
    assert set(re.findall(r"`(\w+)`", rows["client, messages held"])) <= options


def test_worst_case_follows_the_settings() -> None:
    def worst(**changes: object) -> dict[str, int]:
        return {case.name: case.bytes for case in worst_cases(Settings.for_tests(**changes))}

    assert worst(vip_port_enabled=False)["limits.inbound_bytes"] == 128 * MIB
    assert worst(vip_port_enabled=True)["limits.inbound_bytes"] == 256 * MIB
    pool = "store.transient_pool_buffers"
    assert worst()[pool] == 0
    on = worst(transient_pool_enabled=True, commit_log_segment_bytes=MIB, transient_pool_buffers=3)
    assert on[pool] == 3 * MIB
    assert worst(nameserver_enabled=False)["name server, unsent answers"] == 0


def test_too_much_for_the_machine_names_the_largest_settings() -> None:
    settings = Settings.for_tests(held_pull_bytes=2**31 - 1)
    total = sum(case.bytes for case in worst_cases(settings))
    assert memory_warning(settings, Memory(total, "the machine")) is None
    assert memory_warning(settings, None) is None
    text = memory_warning(settings, Memory(total - MIB, "its control group"))
    assert text is not None
    assert "lower limits.held_pull_bytes (2 GiB) (docs/limits.md)" in text
    assert f"its control group has {size_text(total - MIB)}" in text


def test_the_smallest_of_machine_and_control_groups_counts(tmp_path: Path) -> None:
    def write(path: str, text: str) -> None:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    assert available_memory(str(tmp_path)) is None
    write("proc/meminfo", "MemTotal:       4096 kB\nMemFree:  1 kB\n")
    assert available_memory(str(tmp_path)) == Memory(4096 * 1024, "the machine")
    write("proc/self/cgroup", "4:cpu,cpuacct:/a\n3:memory:/a/b\n0::/a/b\n")
    write("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n")
    assert available_memory(str(tmp_path)) == Memory(4096 * 1024, "the machine")
    write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "3000000\n")
    assert available_memory(str(tmp_path)) == Memory(3_000_000, "its control group")
    write("sys/fs/cgroup/a/b/memory.max", "max\n")
    write("sys/fs/cgroup/memory.max", "2000000\n")
    assert available_memory(str(tmp_path)) == Memory(2_000_000, "its control group")
    write("sys/fs/cgroup/a/memory.high", "1500000\n")
    assert available_memory(str(tmp_path)) == Memory(1_500_000, "its control group")


def test_a_start_with_too_little_memory_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(daemon, "available_memory", lambda: Memory(512 * MIB, "its control group"))
    with caplog.at_level(logging.WARNING), aerobee.testing.broker():
        assert "its control group has 512 MiB: give it more, or lower limits." in caplog.text
