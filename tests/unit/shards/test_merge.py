"""Pages of metrics become one page that Prometheus' own parser takes."""

from prometheus_client.parser import text_string_to_metric_families

from aerobee.shards.pages import merged

FIRST = b"""\
# HELP a_total Some { of } these
# TYPE a_total counter
a_total{topic="T {x} 1"} 1.0
a_total{topic="say \\"# HELP b c\\"\\n"} 2.0
# HELP up Plain
# TYPE up gauge
up 3.0
"""
SECOND = b"""\
# HELP up Plain
# TYPE up gauge
up 4.0
# HELP only Here alone, without a sample
# TYPE only gauge
# HELP a_total Some { of } these
# TYPE a_total counter
a_total{topic="T"} 5.0
"""


def values(page: bytes) -> dict[tuple[str, str, str], float]:
    return {
        (sample.name, sample.labels["shard"], sample.labels.get("topic", "")): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def test_each_sample_says_its_shard() -> None:
    assert values(b"".join(merged({"0": FIRST, "1": SECOND}))) == {
        ("a_total", "0", "T {x} 1"): 1,
        ("a_total", "0", 'say "# HELP b c"\n'): 2,
        ("a_total", "1", "T"): 5,
        ("up", "0", ""): 3,
        ("up", "1", ""): 4,
    }


def test_a_family_stands_in_one_place() -> None:
    parts = list(merged({"0": FIRST, "1": SECOND}))
    assert len(parts) == 3
    page = b"".join(parts)
    for name in (b"a_total", b"up", b"only"):
        assert page.count(b"# HELP " + name + b" ") == 1
        assert page.count(b"# TYPE " + name + b" ") == 1


def test_a_shard_without_a_page_is_left_out() -> None:
    assert {key[1] for key in values(b"".join(merged({"1": SECOND})))} == {"1"}
    assert b"".join(merged({})) == b""
