"""One file of accounts: a whole one, and each kind of damage, named with its line and no secret."""

import contextlib
import gc
import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.access.accounts import Grant
from aerobee.access.errors import AccountFileError
from aerobee.access.files import account_file, account_nodes
from aerobee.access.files.account_file import (
    MAX_BYTES,
    MAX_FAULTS,
    AccountFile,
    parse_account_file,
    read_account_file,
)
from aerobee.access.rights import DENY, PUB, SUB

SECRET = "top-secret-words"
WHOLE = f"""\
globalWhiteRemoteAddresses:
- 10.1.2.*
- 192.168.7.{{3,4}}
accounts:
- accessKey: account-1
  secretKey: {SECRET}
  whiteRemoteAddress: 10.9.9.9
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - orders=PUB|SUB
  - ' returns = SUB '
  groupPerms:
  - readers=SUB
- accessKey: "12345678"
  secretKey: 12345678
  admin: true
dataVersion:
- counter: 7
  timestamp: 1700000000000
"""
# The first lines of a file with one account, to which a test adds some.
ONE = f"accounts:\n- accessKey: account-1\n  secretKey: {SECRET}\n"


@pytest.fixture(scope="module", autouse=True, params=["libyaml", "Python"])
def _parsers(request: pytest.FixtureRequest) -> Iterator[None]:
    """PyYAML with libyaml, and without."""
    loaders = {"libyaml": account_nodes._loader(), "Python": account_nodes._Loader}
    assert len(set(loaders.values())) == 2, "this PyYAML is built without libyaml"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(account_nodes, "_LOADER", loaders[request.param])
        yield


def parse(text: str) -> AccountFile:
    return parse_account_file("f.yml", text.encode())


def refusal(content: str | bytes) -> str:
    """The error text for a file that cannot be taken."""
    with pytest.raises(AccountFileError) as raised:
        parse_account_file("f.yml", content.encode() if isinstance(content, str) else content)
    text = str(raised.value)
    assert SECRET not in text
    return text


def test_a_whole_file() -> None:
    file = parse(WHOLE)
    assert file.warnings == ()
    assert (file.path, file.counter, file.timestamp) == ("f.yml", 7, 1_700_000_000_000)
    assert [one.text for one in file.white] == ["10.1.2.*", "192.168.7.{3,4}"]
    user, operator = file.accounts
    assert (user.access_key, user.secret_key, user.admin) == ("account-1", SECRET, False)
    assert user.addresses.text == "10.9.9.9"
    assert (user.default_topic, user.default_group) == (Grant(DENY, 9), Grant(SUB, 10))
    assert user.topics == {"orders": Grant(PUB | SUB, 12), "returns": Grant(SUB, 13)}
    assert user.groups == {"readers": Grant(SUB, 15)}
    assert (user.path, user.line) == ("f.yml", 5)
    assert (operator.access_key, operator.secret_key, operator.admin) == (
        "12345678", "12345678", True,
    )  # fmt: skip


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "accounts:\n", "accounts: []\n"])
def test_a_file_with_nothing_in_it_is_empty(text: str) -> None:
    assert parse(text).accounts == ()


def test_an_empty_white_address_is_nobodys() -> None:
    found = parse("globalWhiteRemoteAddresses:\n- ''\n-\n- 10.1.2.3\n")
    assert [one.text for one in found.white] == ["10.1.2.3"]


@pytest.mark.parametrize("text", ["true", "True", "yes", "on", '"true"'])
def test_words_that_make_an_administrator(text: str) -> None:
    assert parse(f"{ONE}  admin: {text}\n").accounts[0].admin


@pytest.mark.parametrize("text", ["false", "no", "off", "", "1", "nobody", "~"])
def test_any_other_word_does_not(text: str) -> None:
    assert not parse(f"{ONE}  admin: {text}\n").accounts[0].admin


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("accounts", "f.yml:1: the file must be a map of names and values"),
        ("- 1", "f.yml:1: the file must be a map of names and values"),
        ("accounts: 5", "f.yml:1: accounts must be a list"),
        ("accounts: {a: 1}", "f.yml:1: accounts must be a list"),
        ("accounts:\n- 5", "f.yml:2: an account must be a map of names and values"),
        ("accounts: []\naccounts: []", "f.yml:2: 'accounts' is there twice"),
        (
            f"accounts:\n- secretKey: {SECRET}",
            "f.yml:2: accessKey is missing",
        ),
        (
            "accounts:\n- accessKey: account-1",
            "f.yml:2: secretKey is missing",
        ),
        (
            "accounts:\n- accessKey: account-1\n  secretKey: sixsix\n",
            "f.yml:2: secretKey must have more than 6 characters",
        ),
        (
            f"accounts:\n- accessKey: sixsix\n  secretKey: {SECRET}\n",
            "f.yml:2: accessKey must have more than 6 characters",
        ),
        (
            f"accounts:\n- accessKey: account-1\n  secretKey: [{SECRET}]\n",
            "f.yml:3: secretKey must be a text",
        ),
        (f"{ONE}  secretKey: {SECRET}\n", "f.yml:4: 'secretKey' is there twice"),
        (f"{ONE}  ? [a]\n  : 1\n", "f.yml:4: a name must be a text"),
        (f"{ONE}  whiteRemoteAddress: 10.1\n", "f.yml:4: '10.1' is no IP address"),
        (f"{ONE}  topicPerms: orders=SUB\n", "f.yml:4: topicPerms must be a list"),
        (
            f"{ONE}  topicPerms:\n  - orders\n",
            "f.yml:5: account account-1: topicPerms: 'orders' is not of the form name=PUB|SUB",
        ),
        (
            f"{ONE}  groupPerms:\n  - a=b=SUB\n",
            "f.yml:5: account account-1: groupPerms: 'a=b=SUB' is not of the form name=PUB|SUB",
        ),
        (
            f"{ONE}  topicPerms:\n  - orders: SUB\n",
            "f.yml:5: account account-1: topicPerms must be a text",
        ),
        (
            "globalWhiteRemoteAddresses:\n- 10.1.2.3\n- 10.1.2.300\n",
            "f.yml:3: '10.1.2.300' is no IP address",
        ),
        ("globalWhiteRemoteAddresses: '*'", "f.yml:1: globalWhiteRemoteAddresses must be a list"),
        (
            "dataVersion:\n- counter: many\n",
            "f.yml:2: counter and timestamp of dataVersion must be numbers",
        ),
        (
            f"accounts:\n- accessKey: account-1\n  secretKey: {SECRET}: x\n",
            "f.yml:3: no YAML: mapping values are not allowed",
        ),
        (f'{ONE}  admin: "{SECRET}\n', "f.yml:5: no YAML: found unexpected end of stream"),
        (f"{ONE}\t- a\n", "no YAML: "),
        ("a: 1\n---\nb: 2\n", "f.yml:2: no YAML: but found another document"),
        ("!!python/object/new:os.system {}", "f.yml:1: the file must be a map of names and values"),
        (
            f"base: &base {{secretKey: {SECRET}}}\naccounts:\n- <<: *base\n  accessKey: account\n",
            "f.yml:3: merges (<<) are not read; write out what is merged",
        ),
        # Where nothing lacks: a right that is merged may take others away.
        (f"{ONE}  admin: true\n  <<: {{topicPerms: [a=SUB]}}\n", "f.yml:5: merges (<<) are not"),
        (f"<<: {{a: 1}}\n{ONE}", "f.yml:1: merges (<<) are not read; write out what is merged"),
    ],
)  # fmt: skip
def test_damage_is_named_with_its_line(text: str, why: str) -> None:
    assert why in refusal(text)


def faults(text: str) -> list[str]:
    """Each, without the file's name."""
    with pytest.raises(AccountFileError) as raised:
        parse(text)
    return [fault.removeprefix("f.yml:") for fault in raised.value.faults]


def test_each_account_right_and_address_that_is_wrong_is_named() -> None:
    text = (
        f"{ONE}  topicPerms:\n  - orders\n  - a=PUB\n  - b=c=SUB\n"
        f"- accessKey: account-2\n"
        f"- accessKey: account-3\n  secretKey: {SECRET}\n  whiteRemoteAddress: 10.1\n"
        "globalWhiteRemoteAddresses:\n- 10.1.2.3\n- 10.1.2.300\n- 1\n"
    )
    found = faults(text)
    assert [line.split(":")[0] for line in found] == ["5", "7", "8", "11", "14", "15"]
    assert "'b=c=SUB' is not of the form" in found[1]
    assert refusal(text) == f"f.yml:{found[0]} (and 5 more)"
    assert faults(text.replace("- 10.1.2.3\n", "").replace("- 10.1.2.300\n- 1", " x"))[4:] == [
        "13: globalWhiteRemoteAddresses must be a list"
    ]


def test_no_more_faults_are_collected_than_somebody_reads() -> None:
    text = "globalWhiteRemoteAddresses:\n" + "- x\n" * (2 * MAX_FAULTS)
    assert len(faults(text)) == MAX_FAULTS


@pytest.mark.parametrize(
    "text",
    [
        f"accounts:\n- accessKey: account-1\n  secretKey: *{SECRET}\n",
        f"accounts:\n- accessKey: account-1\n  secretKey: !{SECRET}!x abcdefgh\n",
        f"a: &{SECRET} 1\nb: &{SECRET} 2\nc: *{SECRET}x\n",
        f"accounts:\n- accessKey: account-1\n  secretKey: %{SECRET}\n",
        f"accounts:\n- accessKey: account-1\n  secretKey: @{SECRET}\n",
        f"%TAG !{SECRET}! tag:a\n%TAG !{SECRET}! tag:b\n---\na: 1\n",
        f"accounts:\n- {{accessKey: account-1, secretKey:{SECRET}, secretKey:{SECRET}}}\n",
    ],
)
def test_a_secret_that_is_syntax_to_yaml_is_not_said(text: str) -> None:
    """Aliases, tags, directives are quoted by the parser, and words that are twice there by us."""
    refusal(text)


def test_a_secret_that_sticks_to_its_name_is_not_said() -> None:
    """`secretKey:x` without a blank is one word of YAML within braces."""
    file = parse(
        f"accounts:\n- {{accessKey: account-1, secretKey: abcdefgh, secretKey:{SECRET}}}\n"
    )
    assert file.warnings == ("f.yml:2: account account-1: 'secretKey' is no word of an account",)


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("account: []\n", "f.yml:1: 'account' is no word of a file of accounts"),
        (f"{ONE}  topicPerm: []\n", "f.yml:4: account account-1: 'topicPerm' is no word of an acc"),
        (
            f"{ONE}  defaultTopicPerm: ALL\n",
            "f.yml:4: account account-1: defaultTopicPerm: 'ALL' is no right and counts as DENY",
        ),
        (
            f"{ONE}  topicPerms:\n  - orders=pub\n",
            "f.yml:5: account account-1: topicPerms: orders: 'pub' is no right and counts as DENY",
        ),
        (
            f"{ONE}  topicPerms:\n  - orders=PUB\n  - orders=SUB\n",
            "f.yml:6: account account-1: topicPerms: orders is there twice, the last counts",
        ),
        (
            f"{ONE}  groupPerms:\n  - '*=SUB'\n",
            "f.yml:5: account account-1: groupPerms: *: a star stands for itself here; for all it "
            "is defaultGroupPerm",
        ),
        (
            f"{ONE}  admin: '1'\n",
            "f.yml:4: account account-1: admin is neither true nor false, and counts as false",
        ),
        (
            f"accounts:\n- accessKey: account-1\n  secretKey: {'0x12345678'}\n",
            "f.yml:3: secretKey is no text to YAML, and RocketMQ may read another one; put it in q",
        ),
        (
            "accounts:\n- accessKey: account-1\n  secretKey: 1234.5678\n",
            "f.yml:3: secretKey is no text to YAML",
        ),
        (
            f"{ONE}- accessKey: account-1\n  secretKey: another-one\n",
            "f.yml:4: account account-1 is there twice, the first counts",
        ),
        (
            f"{ONE}  whiteRemoteAddress: 10.*.1.1\n",
            "f.yml:4: address '10.*.1.1' means 10.*.*.*: as with RocketMQ, what follows the first ",
        ),
        (
            f"globalWhiteRemoteAddresses:\n- 10.1.5-20.1\n{ONE}",
            "f.yml:2: address '10.1.5-20.1' means 10.1.5-20.*: ",
        ),
    ],
)
def test_what_the_reference_takes_in_silence_is_a_warning(text: str, warning: str) -> None:
    (said,) = parse(text).warnings
    assert said.startswith(warning)
    assert SECRET not in said
    assert "1234" not in said


def test_of_an_account_that_is_there_twice_the_first_counts() -> None:
    file = parse(f"{ONE}- accessKey: account-1\n  secretKey: another-one\n  admin: true\n")
    (one,) = file.accounts
    assert (one.secret_key, one.admin) == (SECRET, False)


def test_numbers_are_the_text_that_they_are() -> None:
    (one,) = parse("accounts:\n- accessKey: 12345678\n  secretKey: 0012345678\n").accounts
    assert (one.access_key, one.secret_key) == ("12345678", "0012345678")


# --- content that is meant to hurt


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? ", "[{a: "])
def test_deep_nesting_is_refused_and_costs_no_stack(opening: str) -> None:
    assert (
        "it is nested too deeply" in refusal("accounts: " + opening * 20_000) or opening in "- ? "
    )
    refusal(opening * 20_000)


def test_a_bomb_of_aliases_is_not_taken_apart() -> None:
    """Twenty levels of nine: 10**19 texts if each was followed."""
    lines = ["a: &a [x,x,x,x,x,x,x,x,x]"]
    names = "abcdefghijklmnopqrst"
    for before, name in itertools.pairwise(names):
        lines.append(f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]")
    assert len(parse("\n".join(lines)).warnings) == len(names)
    assert "must be a text" in refusal("\n".join([*lines, f"{ONE}  topicPerms: *t"]))


def test_entries_that_aliases_repeat_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is within the size of a file, their product is not."""
    monkeypatch.setattr(account_file, "MAX_ENTRIES", 1000)
    perms = "".join(f"  - topic-{number}=SUB\n" for number in range(200))
    text = f"{ONE}  topicPerms: &perms\n{perms}"
    for number in range(2, 20):
        text += f"- accessKey: account-{number}\n  secretKey: {SECRET}\n  topicPerms: *perms\n"
    assert "f.yml:4: more than 1000 entries, those of aliases counted" in refusal(text)


@pytest.mark.parametrize("text", ["accounts: &a [*a]", "&a {accounts: [*a]}", "&a {*a : 1}"])
def test_what_holds_itself_is_refused(text: str) -> None:
    refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "accounts: !!python/object/apply:os.system ['touch {made}']\n",
        "accounts:\n- accessKey: !!python/object/apply:os.system ['touch {made}']\n",
        "accounts:\n- !!python/object/apply:os.system ['touch {made}']\n",
        "!!python/object/apply:os.system ['touch {made}']\n",
        "? !!python/object/apply:os.system ['touch {made}']\n: 1\n",
    ],
)
def test_a_file_can_name_no_class(text: str, tmp_path: Path) -> None:
    made = tmp_path / "made"
    refusal(text.format(made=made))
    assert not made.exists()


def test_a_tag_on_a_text_makes_nothing_of_it() -> None:
    text = ONE.replace("account-1", "!!python/name:os.system account-1")
    file = parse(text)
    assert file.accounts[0].access_key == "account-1"
    assert "is no text to YAML" in file.warnings[0]


@pytest.mark.parametrize(
    "content",
    [
        bytes(range(256)),
        b"\xff\xfe\x00",
        b"accounts: \x00",
        b"\x80\x81\x82",
        b"\x89PNG\r\n\x1a\n" + b"\0" * 64,
        b'accounts: "\\UFFFFFFFF"',
        b"%YAML " + b"9" * 5000 + b".1\n---\na: 1",
        b'accounts:\n- accessKey: account-1\n  secretKey: "\\uD800bcdefgh"\n',
        b'accounts:\n- accessKey: "\\uDC00bcdefgh"\n  secretKey: abcdefgh\n',
    ],
    ids=lambda content: repr(content[:16]),
)
def test_rubbish_is_refused_by_a_sentence(content: bytes) -> None:
    assert refusal(content).startswith("f.yml")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (
            b"accounts:\n- accessKey: \xe4lter-eins\n",
            ":2: no YAML: byte 14 of this line is no UTF-8",
        ),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 64, ":1: no YAML: byte 1 of this line is no UTF-8"),
        (b"accounts: []\n \0\0\n", ":2: no YAML: byte 2 of this line is NUL"),
        (b"\x1f\x8b\x08\0", ":1: no YAML: byte 1 of this line is no printable character"),
        (b"a: \xc3\xbc \x1b[2J\n", ":1: no YAML: byte 7 of this line is no printable character"),
        (b"a: \xed\xa0\x80\n", ":1: no YAML: byte 4 of this line is no UTF-8"),
        ("a: []\n".encode("utf-16")[:-1], ": no YAML: it begins as UTF-16 and is damaged"),
    ],
    ids=lambda one: repr(one[:16]),
)
def test_where_a_file_is_no_text_is_said(content: bytes, why: str) -> None:
    assert refusal(content) == f"f.yml{why}; the file must be UTF-8 text"


@given(st.binary(max_size=200))
def test_any_bytes_are_a_file_or_are_refused(content: bytes) -> None:
    with contextlib.suppress(AccountFileError):
        parse_account_file("f.yml", content)


@given(
    st.integers(0, len(WHOLE)),
    st.integers(0, len(WHOLE)),
    st.sampled_from(list(" \t:-[]{}*&!%@\"'\n\\|>?")),
)
def test_a_file_with_a_mistake_is_never_more_than_refused(at: int, end: int, typed: str) -> None:
    """A character that has slipped in, then what stands before it alone: a file half written."""
    text = WHOLE[:at] + typed + WHOLE[at:]
    for one in (text, text[: min(end, len(text))]):
        said = ""
        try:
            said = "".join(parse(one).warnings)
        except AccountFileError as error:
            said = str(error)
        assert SECRET not in said


def test_size_is_bounded_before_it_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "f.yml"
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(AccountFileError, match="larger than 8 MiB"):
        read_account_file(str(path))
    assert "larger than 8 MiB" in refusal(b"#" * (MAX_BYTES + 1))
    assert math.log2(MAX_BYTES) == 23


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(AccountFileError, match="No such file"):
        read_account_file(str(tmp_path / "none.yml"))
    with pytest.raises(AccountFileError, match="is no regular file"):
        read_account_file(str(tmp_path))


@pytest.mark.parametrize(
    "end", ["", "\n", "white: [1]\n", "dataVersion:\n- counter: x\n", "accounts: []\n",
            "x: *none\n", "---\n", "- a\n", "other: {[a]: b}\n", "<<: {a: b}\n"]
)  # fmt: skip
@pytest.mark.parametrize(
    "account", ["", "- x\n", "- accessKey: short\n  secretKey: x\n", "- {accessKey: &n account-2,"
                " secretKey: *n, topicPerms: [a=PUB, a=SUB, b]}\n"]
)  # fmt: skip
def test_accounts_that_are_read_one_by_one_are_those_of_the_whole_file(
    account: str, end: str
) -> None:
    """A list that has a name of its own is composed whole."""

    def said(begin: str) -> object:
        try:
            found = parse(begin + ONE.removeprefix("accounts:") + account + end)
        except AccountFileError as error:
            return error.faults
        return found

    assert said("accounts:") == said("accounts: &all")


def test_the_collector_of_garbage_looks_at_no_account() -> None:
    file = parse(f"{ONE}  topicPerms: [orders=SUB]\n  groupPerms: [readers=SUB]\n")
    [account] = file.accounts
    for one in (account, account.topics, account.groups, *account.topics.values()):
        assert not gc.is_tracked(one)
    assert SECRET not in repr(account)
