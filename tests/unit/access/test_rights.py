"""Rights as bits, and the words that a file has for them."""

import pytest

from aerobee.access.rights import ANY, DENY, PUB, SUB, allows, is_right, parse_right, right_name


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("DENY", DENY),
        ("PUB", PUB),
        ("SUB", SUB),
        ("PUB|SUB", PUB | SUB),
        ("SUB|PUB", PUB | SUB),
        (" PUB ", PUB),
    ],
)
def test_words_for_rights(text: str, right: int) -> None:
    assert is_right(text)
    assert parse_right(text) == right


@pytest.mark.parametrize("text", ["", "pub", "PUB,SUB", "PUB | SUB", "ANY", "DENY|PUB", "ALL"])
def test_any_other_word_is_no_right_and_counts_as_deny(text: str) -> None:
    assert not is_right(text)
    assert parse_right(text) == DENY


def test_no_word_is_deny() -> None:
    assert parse_right(None) == DENY


@pytest.mark.parametrize("owned", [DENY, PUB, SUB, PUB | SUB, DENY | PUB | SUB, 0])
@pytest.mark.parametrize("needed", [PUB, SUB, ANY])
def test_who_has_it_is_allowed_and_deny_refuses_beside_all_else(owned: int, needed: int) -> None:
    wanted = {PUB, SUB} if needed == ANY else {needed}
    expected = not owned & DENY and any(owned & one for one in wanted)
    assert allows(owned, needed) is bool(expected)


def test_names_read_back() -> None:
    for right in (DENY, PUB, SUB, PUB | SUB):
        assert parse_right(right_name(right)) == right
    assert right_name(ANY) == "PUB or SUB"
