"""Compiled expressions and the filters of groups: they are kept, replaced, refused, forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from aerobee.broker.tables import expressions as module
from aerobee.broker.tables.expressions import Expressions
from aerobee.broker.tables.files.state_file import JsonStateFile, StateFileError
from aerobee.broker.tables.filters import ConsumerFilter, FilterTable
from aerobee.config.model import Settings
from aerobee.protocol.errors import BadRequest
from aerobee.protocol.filters import sql_filter
from aerobee.protocol.filters.property_filter import PropertyFilter, TypedExpression
from aerobee.protocol.filters.subscription import Subscription
from tests.inline_loop import INLINE, drive

KEEP_MS = 1_000
LIMITS = Settings.for_tests(
    max_sql_chars=200, max_sql_depth=10, max_sql_nodes=20, sql_filter_bytes=9_000
)


class World:
    """A table, the expressions it is made of, and a clock that is moved by hand."""

    def __init__(self, folder: Path, limit_bytes: int = 1 << 21, now_ms: int = 10_000) -> None:
        self.now_ms = now_ms
        self.expressions = Expressions(INLINE, LIMITS)
        self.file = JsonStateFile(folder / "consumerFilter.json")
        settings = Settings.for_tests(
            filter_error_percent=20,
            filter_groups=32,
            filter_keep_ms=KEEP_MS,
            sql_filter_bytes=limit_bytes,
        )
        self.table = FilterTable(settings, self.file, lambda: self.now_ms)

    def save(self) -> bool:
        """Whether there was something to save."""
        changes = self.table.take_changes()
        if changes is not None:
            self.table.save(changes)
        return changes is not None

    def beat(self, group: str, version: int = 1, **topics: str) -> None:
        """A heartbeat; `*` is a subscription by tag."""
        said = [
            Subscription(topic, text, "TAG" if text == "*" else "SQL92", version)
            for topic, text in topics.items()
        ]
        compiled: dict[TypedExpression, PropertyFilter] = {}
        for one in said:
            try:
                compiled[one.typed_expression] = drive(
                    self.expressions.compiled(one.typed_expression)
                )
            except BadRequest:
                continue
        in_force = {one.topic: one for one in said}
        drive(self.table.register(group, said, in_force, compiled))

    def of(self, topic: str, group: str) -> ConsumerFilter:
        found = self.table.get(topic, group)
        assert found is not None
        return found


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_filter_is_born_with_its_first_heartbeat_and_keeps_its_time(world: World) -> None:
    world.beat("g", 1, T="a > 1", U="*")
    assert world.table.get("U", "g") is None
    born = world.of("T", "g")
    assert (born.expression, born.client_version, born.born_ms) == ("a > 1", 1, 10_000)
    world.now_ms += 5
    world.beat("g", 7, T="a > 1")
    assert (world.of("T", "g").client_version, world.of("T", "g").born_ms) == (7, 10_000)
    world.beat("g", 8, T="a > 2")
    assert (world.of("T", "g").client_version, world.of("T", "g").born_ms) == (8, 10_005)
    compiled = world.of("T", "g").compiled
    assert compiled is not None
    assert compiled.matches(b"a\x013")


def test_what_is_in_force_counts_whatever_its_version_is(world: World) -> None:
    world.beat("g", 5, T="a > 1")
    world.beat("g", 4, T="a > 2")
    assert (world.of("T", "g").expression, world.of("T", "g").client_version) == ("a > 2", 4)


def test_a_filter_of_a_file_gives_way_to_a_client_whose_clock_is_behind(tmp_path: Path) -> None:
    before = World(tmp_path)
    before.beat("g", 1_000, T="a > 1")
    assert before.save()
    world = World(tmp_path)
    world.beat("g", 5, T="a > 2")
    assert (world.of("T", "g").expression, world.of("T", "g").client_version) == ("a > 2", 5)


def test_what_a_member_says_beside_what_is_in_force_is_no_filter_of_the_group(world: World) -> None:
    world.beat("g", 1, T="a > 1")
    in_force = {"T": Subscription("T", "a > 1", "SQL92", 1)}
    stated = [Subscription("T", "a > 2", "SQL92", 9)]
    drive(world.table.register("g", stated, in_force, {}))
    assert (world.of("T", "g").expression, world.of("T", "g").client_version) == ("a > 1", 1)


def test_a_wrong_expression_takes_the_place_of_the_one_before(world: World) -> None:
    world.beat("g", 1, T="a >")
    assert world.table.get("T", "g") is None
    world.beat("g", 1, T="a > 1")
    world.beat("g", 1, T="a >")
    assert world.table.get("T", "g") is None
    assert world.table.bytes == 0


def test_a_filter_dies_with_its_subscription_or_group_and_lives_again(world: World) -> None:
    world.beat("g", 1, T="a > 1", U="b > 1")
    world.beat("g", 2, T="a > 1")
    assert (world.of("T", "g").dead_ms, world.of("U", "g").dead_ms) == (0, 10_000)
    world.now_ms += 1
    world.table.group_left("g")
    assert (world.of("T", "g").dead_ms, world.of("U", "g").dead_ms) == (10_001, 10_000)
    # This expression is enough to live again.
    world.beat("g", 2, T="a > 1")
    assert (world.of("T", "g").dead_ms, world.of("U", "g").dead_ms) == (0, 10_000)
    world.beat("g", 0, U="b > 1")
    assert (world.of("T", "g").dead_ms, world.of("U", "g").dead_ms) == (10_001, 0)


def test_dead_filters_are_forgotten_in_time(world: World) -> None:
    world.beat("g", 1, T="a > 1")
    world.beat("h", 1, T="a > 1")
    world.table.group_left("g")
    world.now_ms += KEEP_MS - 1
    world.table.forget_dead()
    assert len(world.table) == 2
    world.now_ms += 1
    world.table.forget_dead()
    assert world.table.get("T", "g") is None
    assert world.of("T", "h").dead_ms == 0
    world.now_ms += 10 * KEEP_MS
    world.table.forget_dead()
    assert len(world.table) == 1


def test_the_dead_make_room_and_then_it_is_refused(tmp_path: Path) -> None:
    one = 1024 + drive(World(tmp_path).expressions.compiled(("SQL92", "a > 1"))).size
    world = World(tmp_path, limit_bytes=3 * one)
    for group in ("g1", "g2", "g3"):
        world.beat(group, 1, T="a > 1")
    world.table.group_left("g2")
    world.beat("g4", 1, T="a > 1")
    assert world.table.get("T", "g2") is None
    with pytest.raises(BadRequest, match="sql_filter_bytes") as caught:
        world.beat("g5", 1, T="a > 1")
    assert caught.value.code == 1
    assert world.table.bytes == 3 * one
    # A filter that exists already is always taken.
    world.beat("g1", 2, T="a > 2")
    assert world.of("T", "g1").expression == "a > 2"


def test_many_subscriptions_are_noted_in_steps(world: World) -> None:
    said = [Subscription(f"T{number}", "a > 1", "SQL92", 1) for number in range(320)]
    in_force = {one.topic: one for one in said}
    compiled = {("SQL92", "a > 1"): drive(world.expressions.compiled(("SQL92", "a > 1")))}
    counts = [len(world.table) for _ in world.table.register("g", said, in_force, compiled)]
    assert counts == list(range(4, 321, 4))


# --- the file -------------------------------------------------------------------------------------

FILE = """{
	"filterDataByTopic":{
		"T":{
			"groupFilterData":{
				"g":{
					"bloomFilterData":{
						"bitNum":112,
						"bitPos":[90,68,28]
					},
					"bornTime":10000,
					"clientVersion":1,
					"consumerGroup":"g",
					"dead":false,
					"deadTime":0,
					"expression":"a > '\u00fc'",
					"expressionType":"SQL92",
					"topic":"T"
				}
			},
			"topic":"T"
		}
	}
}"""


def test_the_file_is_what_rocketmq_writes(world: World) -> None:
    assert not world.save()
    world.beat("g", 1, T="a = '\u00fc'")
    assert world.save()
    assert world.file.path.read_text() == FILE.replace(" > ", " = ")
    assert not world.save()
    world.table.group_left("g")
    assert world.save()
    assert '"dead":true,\n\t\t\t\t\t"deadTime":10000,' in world.file.path.read_text()


def test_after_a_start_all_are_dead_until_a_heartbeat_names_them(
    world: World, tmp_path: Path
) -> None:
    world.beat("g", 3, T="a > 1", U="a > 2")
    world.beat("g", 4, T="a > 1")
    world.save()
    for later_ms, dead_ms in ((5, 10_000), (90_000, 70_000)):
        again = World(tmp_path, now_ms=10_000 + later_ms)
        loaded = again.of("T", "g")
        assert (loaded.born_ms, loaded.client_version, loaded.compiled) == (10_000, 4, None)
        assert (loaded.dead_ms, again.of("U", "g").dead_ms) == (dead_ms, 10_000)
        assert again.table.bytes > 0
        again.beat("g", 4, T="a > 1")
        alive = again.of("T", "g")
        assert (alive.born_ms, alive.dead_ms) == (10_000, 0)
        assert alive.compiled is not None
    again.now_ms += 10 * KEEP_MS
    again.table.forget_dead()
    assert len(again.table) == 1


@pytest.mark.parametrize(
    ("found", "born_ms"), [("112", 10_000), ("120", 77_000), ('112,\n\t\t\t\t\t\t"x":0', 10_000)]
)
def test_maps_of_another_size_say_nothing_of_a_filter(
    tmp_path: Path, found: str, born_ms: int
) -> None:
    """RocketMQ takes the maps of messages stored after `bornTime` for its filter's."""
    (tmp_path / "consumerFilter.json").write_text(FILE.replace("112", found))
    assert World(tmp_path, now_ms=77_000).of("T", "g").born_ms == born_ms
    (tmp_path / "consumerFilter.json").write_text(FILE.replace("90,68,28", "90,68,28,1"))
    assert World(tmp_path, now_ms=77_000).of("T", "g").born_ms == 77_000


def test_a_save_that_failed_is_made_again(world: World) -> None:
    world.beat("g", 1, T="a > 1")
    assert world.table.take_changes() is not None
    assert world.table.take_changes() is None
    world.table.mark_unsaved()
    assert world.save()


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"filterDataByTopic":[]}', '{"filterDataByTopic":{"T":{}}}', FILE[:-9] + "1}"],
)
def test_a_damaged_file_is_read_from_its_backup_or_stops_the_start(
    tmp_path: Path, content: str
) -> None:
    file = JsonStateFile(tmp_path / "consumerFilter.json")
    file.path.write_text(content)
    file.backup.write_text(FILE)
    assert len(World(tmp_path).table) == 1
    file.backup.unlink()
    with pytest.raises(StateFileError, match=r"consumerFilter\.json cannot be read"):
        World(tmp_path)


# --- expressions ----------------------------------------------------------------------------------


def compiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The expressions that are really compiled from now on."""
    seen: list[str] = []
    sql_filter.load_parser()
    monkeypatch.setattr(sql_filter, "load_parser", lambda: None)
    compile_in_steps = sql_filter.compile_in_steps

    def counted(expression: str) -> object:
        seen.append(expression)
        return compile_in_steps(expression)

    monkeypatch.setattr(sql_filter, "compile_in_steps", counted)
    return seen


def refused(expressions: Expressions, text: str, kind: str = "SQL92") -> str:
    with pytest.raises(BadRequest) as caught:
        drive(expressions.compiled((kind, text)))
    assert caught.value.code == 23
    assert expressions.why_refused((kind, text)) in (caught.value.remark, "")
    return caught.value.remark


def test_an_expression_is_compiled_once_right_or_wrong(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = compiles(monkeypatch)
    first = drive(world.expressions.compiled(("SQL92", "a > 1")))
    assert drive(world.expressions.compiled(("SQL92", "a > 1"))) is first
    why = refused(world.expressions, "a >")
    assert (
        refused(world.expressions, "a >") == why == world.expressions.why_refused(("SQL92", "a >"))
    )
    assert seen == ["a > 1", "a >"]


def test_the_last_ones_are_remembered_as_far_as_there_is_room(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = compiles(monkeypatch)
    texts = [f"a > {number}" for number in range(20)]
    for text in texts:
        drive(world.expressions.compiled(("SQL92", "kept > 1")))
        drive(world.expressions.compiled(("SQL92", text)))
    assert world.expressions.bytes <= LIMITS.sql_filter_bytes
    assert seen == ["kept > 1", *texts]
    drive(world.expressions.compiled(("SQL92", texts[0])))
    assert seen[-1] == texts[0]


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("CEL", "a", "no expression type 'CEL'"),
        ("SQL92", "", "is empty"),
        ("SQL92", "a = 1" + " " * 200, "205 characters, the limit is 200 (limits.max_sql_chars)"),
        ("SQL92", "(" * 10 + "a" + ")" * 10, "11 levels"),
        (
            *("SQL92", "(-" * 60 + "a" + ")" * 60),
            "the SQL92 expression has more than 100 levels of operators and parentheses, the limit "
            "is 10 (limits.max_sql_depth)",
        ),
        ("SQL92", " OR ".join("abcdefghijk"), ""),
        ("SQL92", " AND ".join(["a"] * 21), "22 operands and operators, the limit is 20"),
    ],
)
def test_limits_are_named(world: World, kind: str, text: str, why: str) -> None:
    if not why:
        drive(world.expressions.compiled((kind, text)))
    else:
        assert why in refused(world.expressions, text, kind)


async def test_who_asks_for_the_same_meanwhile_gets_that_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = compiles(monkeypatch)
    loop = asyncio.get_running_loop()
    expressions = Expressions(loop, Settings.for_tests(sql_filter_bytes=1 << 20))
    text = " OR ".join(f"a = {number}" for number in range(100))

    async def ask() -> PropertyFilter:
        steps = expressions.compiled(("SQL92", text))
        while True:
            try:
                waits_for = next(steps)
            except StopIteration as end:
                found: PropertyFilter = end.value
                return found
            await (waits_for or asyncio.sleep(0))

    found = await asyncio.gather(*[ask() for _ in range(5)])
    assert len({id(one) for one in found}) == 1
    assert seen == [text]


def test_a_broker_without_expressions_does_not_load_the_parser() -> None:
    """It takes 80 ms and some megabytes."""
    names: Mapping[str, object] = vars(module)
    assert "lark" not in names
    assert "compile_in_steps" not in names
