"""Changes of files of accounts: given fields change, a wrong change changes nothing."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from aerobee.access.errors import AccountFileError
from aerobee.access.files import account_change
from aerobee.access.files.account_change import AccountChange
from aerobee.access.files.account_file import read_account_file

FILE = """\
# a comment
owner: the team of orders
globalWhiteRemoteAddresses:
- 10.1.2.3
accounts:
- accessKey: account-1
  secretKey: 0012345678
  admin: false
  note: [ours, {since: 2024}]
  topicPerms:
  - orders=PUB
- accessKey: operator
  secretKey: very-secret
  admin: true
dataVersion:
- counter: 41
  timestamp: 1
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "plain_acl.yml"
    path.write_text(FILE)
    path.chmod(0o640)
    return path


def change(path: Path) -> AccountChange:
    return AccountChange(path, lambda: 1234)


def members(path: Path) -> dict[str, Any]:
    found = yaml.safe_load(path.read_bytes())
    assert isinstance(found, dict)
    return found


def test_a_new_account_comes_behind_the_others(path: Path) -> None:
    change(path).put(
        {
            "accessKey": "account-2",
            "secretKey": "another-one",
            "admin": False,
            "topicPerms": ["a=SUB"],
        }
    )
    file = read_account_file(str(path))
    assert [one.access_key for one in file.accounts] == ["account-1", "operator", "account-2"]
    assert list(file.accounts[2].topics) == ["a"]


def test_what_is_not_given_stays(path: Path) -> None:
    change(path).put(
        {"accessKey": "account-1", "secretKey": None, "admin": True, "groupPerms": ["readers=SUB"]}
    )
    one = read_account_file(str(path)).accounts[0]
    assert (one.secret_key, one.admin) == ("0012345678", True)
    assert (list(one.topics), list(one.groups)) == (["orders"], ["readers"])


def test_an_empty_list_takes_the_lines_away(path: Path) -> None:
    change(path).put({"accessKey": "account-1", "topicPerms": [], "admin": False})
    assert read_account_file(str(path)).accounts[0].topics == {}


def test_members_that_are_not_known_stay(path: Path) -> None:
    change(path).put({"accessKey": "account-1", "admin": True})
    found = members(path)
    assert found["owner"] == "the team of orders"
    assert found["accounts"][0]["note"] == ["ours", {"since": "2024"}]


def test_the_data_version_counts_up(path: Path) -> None:
    for number in range(3):
        change(path).set_white([f"10.1.2.{number}"])
    assert members(path)["dataVersion"] == [{"counter": 44, "timestamp": 1234}]


def test_the_mode_of_the_file_stays(path: Path) -> None:
    change(path).set_white(["10.1.2.3"])
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_file_that_is_made_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "new.yml"
    change(path).put({"accessKey": "account-1", "secretKey": "very-secret", "admin": True})
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_account_file(str(path)).counter == 1


@pytest.mark.parametrize("text", ["", "accounts:\n", "# nothing\n", "accounts: []\ndataVersion:\n"])
def test_a_file_with_nothing_in_it_gets_its_first_account(path: Path, text: str) -> None:
    path.write_text(text)
    change(path).put({"accessKey": "account-1", "secretKey": "very-secret", "admin": True})
    assert len(read_account_file(str(path)).accounts) == 1


def test_delete_takes_one_account(path: Path) -> None:
    assert change(path).delete("account-1")
    assert [one.access_key for one in read_account_file(str(path)).accounts] == ["operator"]
    before = path.read_bytes()
    assert not change(path).delete("account-1")
    assert path.read_bytes() == before


def test_white_addresses_are_replaced(path: Path) -> None:
    change(path).set_white(["10.9.9.*", "::1"])
    assert [one.text for one in read_account_file(str(path)).white] == ["10.9.9.*", "::1"]
    change(path).set_white([])
    assert read_account_file(str(path)).white == ()


WRONG: list[tuple[str, Callable[[AccountChange], object], str]] = [
    (
        "a right",
        lambda one: one.put({"accessKey": "account-1", "topicPerms": ["orders=ALL"]}),
        "topicPerms: 'orders=ALL' is not of the form",
    ),
    (
        "no name",
        lambda one: one.put({"accessKey": "account-1", "groupPerms": ["=SUB"]}),
        "groupPerms: '=SUB' is not of the form",
    ),
    (
        "no right",
        lambda one: one.put({"accessKey": "account-1", "groupPerms": ["readers"]}),
        "groupPerms: 'readers' is not of the form",
    ),
    (
        "two signs",
        lambda one: one.put({"accessKey": "account-1", "topicPerms": ["a=b=SUB"]}),
        "topicPerms: 'a=b=SUB' is not of the form",
    ),
    (
        "an address of an account",
        lambda one: one.put({"accessKey": "account-1", "whiteRemoteAddress": "10.1"}),
        "'10.1' is no IP address",
    ),
    ("an address", lambda one: one.set_white(["10.1.2.300"]), "'10.1.2.300' is no IP address"),
    (
        "a short key",
        lambda one: one.put({"accessKey": "short", "secretKey": "very-secret"}),
        "accessKey must have more than 6 characters",
    ),
    (
        "no secret",
        lambda one: one.put({"accessKey": "account-2", "secretKey": None}),
        "secretKey is missing",
    ),
    (
        "no text",
        lambda one: one.put({"accessKey": "account-2", "secretKey": "\ud800bcdefgh"}),
        # libyaml, where it is, is before our own words
        "half of a pair of surrogates|invalid Unicode character",
    ),
]


@pytest.mark.parametrize(("make", "why"), [one[1:] for one in WRONG], ids=[one[0] for one in WRONG])
def test_a_wrong_change_leaves_the_bytes_as_they_were(
    path: Path, make: Callable[[AccountChange], object], why: str
) -> None:
    with pytest.raises(AccountFileError) as raised:
        make(change(path))
    assert re.search(why, str(raised.value))
    assert "very-secret" not in str(raised.value)
    assert path.read_text() == FILE


def test_a_damaged_file_is_not_written(path: Path) -> None:
    path.write_text(FILE + "accounts: []\n")
    before = path.read_bytes()
    for make in (
        lambda one: one.put({"accessKey": "account-1", "admin": True}),
        lambda one: one.delete("account-1"),
        lambda one: one.set_white([]),
    ):
        with pytest.raises(AccountFileError, match="'accounts' is there twice"):
            make(change(path))
    assert path.read_bytes() == before


def test_a_file_that_would_be_too_large_is_not_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account_change, "MAX_BYTES", 100)
    with pytest.raises(AccountFileError, match="would be larger"):
        change(path).set_white(["10.1.2.3"])
    assert path.read_text() == FILE


@pytest.mark.parametrize(
    "secret",
    ["0012345678", "1e10000000", "true-true", "~~~~~~~", "null-null", "*star-star", "a: b #c d",
     "'quoted'", '"quoted"', "ünïcödé", "tab\tand\nline", "  blanks  ", "x" * 500, "%percent",
     "=======", "\u2028\u0085\x07\x1babcdef", "2024-01-01", "0x1234567", "1_000_000"],
)  # fmt: skip
def test_any_secret_comes_back_as_it_was_given(path: Path, secret: str) -> None:
    change(path).put({"accessKey": "account-2", "secretKey": secret, "admin": False})
    change(path).set_white(["10.1.2.4"])
    assert read_account_file(str(path)).accounts[2].secret_key == secret


def test_a_bomb_in_what_is_not_known_is_not_taken_apart(path: Path) -> None:
    names = "abcdefghijklmnopqrst"
    lines = ["a: &a [x,x,x,x,x,x,x,x,x]"]
    for before, name in itertools.pairwise(names):
        lines.append(f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]")
    path.write_text(FILE + "\n".join([*lines, "itself: &self [*self]\n"]))
    change(path).set_white(["10.1.2.4"])
    assert path.stat().st_size < 10_000
    change(path).set_white(["10.1.2.5"])
    assert read_account_file(str(path)).counter == 43


def test_a_name_that_is_no_text_is_not_lost(path: Path) -> None:
    path.write_text(FILE + "other: {[a, b]: 1}\n")
    before = path.read_bytes()
    with pytest.raises(AccountFileError, match="a name that is no text"):
        change(path).set_white([])
    assert path.read_bytes() == before


def test_a_link_stays_one(path: Path, tmp_path: Path) -> None:
    """A volume's files may be links that are swapped."""
    target = tmp_path / "target.yml"
    path.rename(target)
    path.symlink_to(target)
    change(path).delete("account-1")
    assert path.is_symlink()
    assert "account-1" not in target.read_text()
