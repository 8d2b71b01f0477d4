"""All files of a broker together: their order, duplicates, stamps, and what a name may reach."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from aerobee.access.accounts import Rules
from aerobee.access.errors import AccountFileError
from aerobee.access.files import account_files
from aerobee.access.files.account_files import AccountFiles, differences
from aerobee.access.pauses import Pauses

SECRET = "very-secret"


def text(*keys: str, more: str = "  defaultTopicPerm: SUB\n", secret: str = SECRET) -> str:
    one = "".join(f"- accessKey: {key}\n  secretKey: {secret}\n{more}" for key in keys)
    return f"accounts:\n{one}"


def put(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(0o600)
    return path


def test_the_default_file_is_last_and_folders_are_sorted(tmp_path: Path) -> None:
    for name in ("b.yml", "a.yaml", "deep/er/c.yml", "no.txt", "plain_acl.yml.tmp"):
        put(tmp_path / "conf/acl" / name, text("account-1"))
    put(tmp_path / "conf/tools.yml", "accessKey: none")
    files = AccountFiles(str(tmp_path))
    assert [files.name_of(str(path)) for path in files.paths()] == [
        *("conf/acl/a.yaml", "conf/acl/b.yml", "conf/acl/deep/er/c.yml"),
        "conf/plain_acl.yml",
    ]


@pytest.mark.parametrize("named", ["conf/mine.yml", "/whole/path.yml"])
def test_another_default_file_may_be_named(tmp_path: Path, named: str) -> None:
    files = AccountFiles(str(tmp_path), named)
    assert files.default == tmp_path / named
    assert files.paths() == [files.default]


def test_a_default_file_of_the_folder_is_there_once(tmp_path: Path) -> None:
    path = put(tmp_path / "conf/acl/a.yml", text("account-1"))
    put(tmp_path / "conf/acl/b.yml", text("account-2"))
    files = AccountFiles(str(tmp_path), "conf/acl/a.yml")
    assert files.paths() == [tmp_path / "conf/acl/b.yml", path]


def test_without_a_home_a_whole_path_stands_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may write to the directory of the start."""
    monkeypatch.chdir(tmp_path)
    path = put(tmp_path / "elsewhere/mine.yml", text("account-1"))
    put(tmp_path / "conf/acl/a.yml", text("account-2"))
    files = AccountFiles("", str(path))
    assert files.paths() == [path]
    assert files.name_of(str(path)) == "mine.yml"
    assert list(files.load().rules.accounts) == ["account-1"]


@pytest.mark.parametrize("named", ["", "conf/mine.yml"])
def test_without_a_home_the_folder_is_below_the_directory_of_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    files = AccountFiles("", named)
    put(files.default, text("account-1", more="  admin: true\n"))
    assert files.load().rules.accounts["account-1"].admin
    before = files.stamp()
    # It comes later, and takes rights away.
    put(tmp_path / "conf/acl/deep/a.yaml", text("account-1", more="  defaultTopicPerm: SUB\n"))
    assert files.stamp() != before
    loaded = files.load()
    assert not loaded.rules.accounts["account-1"].admin
    assert len(loaded.files) == 2
    names = [files.name_of(str(path)) for path in files.paths()]
    assert names == ["conf/acl/deep/a.yaml", files.default.name]
    assert [files.path_of(name) for name in names] == files.paths()


def test_a_whole_path_into_the_folder_is_there_once_without_a_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = put(tmp_path / "conf/acl/a.yml", text("account-1"))
    assert AccountFiles("", str(path)).paths() == [path]


def test_several_files_make_one_set_of_rules(tmp_path: Path) -> None:
    put(tmp_path / "conf/acl/a.yml", text("account-1", "account-2"))
    put(tmp_path / "conf/plain_acl.yml", "globalWhiteRemoteAddresses: [10.1.2.3]\n")
    put(tmp_path / "conf/acl/b.yml", "globalWhiteRemoteAddresses: [10.1.2.4]\n" + text("account-3"))
    loaded = AccountFiles(str(tmp_path)).load()
    assert sorted(loaded.rules.accounts) == ["account-1", "account-2", "account-3"]
    assert loaded.rules.is_white("10.1.2.3")
    assert loaded.rules.is_white("10.1.2.4")
    assert len(loaded.files) == 3


def test_an_account_of_several_files_is_the_first_ones(tmp_path: Path) -> None:
    first = put(tmp_path / "conf/acl/a.yml", text("account-1"))
    second = put(tmp_path / "conf/plain_acl.yml", text("account-1", more="  admin: true\n"))
    loaded = AccountFiles(str(tmp_path)).load()
    account = loaded.rules.accounts["account-1"]
    assert (account.path, account.admin) == (str(first), False)
    assert loaded.warnings == (f"{second}:2: account account-1 is in {first} too, that one counts",)


def test_files_are_taken_together_or_not_at_all(tmp_path: Path) -> None:
    put(tmp_path / "conf/acl/a.yml", text("account-1"))
    wrong = put(tmp_path / "conf/plain_acl.yml", "accounts: 5\n")
    with pytest.raises(AccountFileError, match=f"^{wrong}:1: accounts must be a list$"):
        AccountFiles(str(tmp_path)).load()


def test_no_file_and_empty_ones_are_refused(tmp_path: Path) -> None:
    files = AccountFiles(str(tmp_path))
    with pytest.raises(AccountFileError, match="no file of accounts is there"):
        files.load()
    put(files.default, "")
    with pytest.raises(AccountFileError, match="nobody may do anything"):
        files.load()
    put(files.default, text("account-1", more=""))
    with pytest.raises(AccountFileError, match="nobody may do anything"):
        files.load()


def test_of_a_file_that_grants_nothing_by_a_wrong_word_the_word_is_said(tmp_path: Path) -> None:
    files = AccountFiles(str(tmp_path))
    put(files.default, text("account-1", more="  topicPerms:\n  - orders=WRITE\n"))
    with pytest.raises(AccountFileError, match=r":5: account .*'WRITE' is no right and counts as"):
        files.load()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "; is it empty, or half written?"),
        ("# accounts:\n", "; is it empty, or half written?"),
        (
            text("account-1", more="", secret="0x12345678"),
            "; no account of theirs has a right, or is an administrator",
        ),
        ("acounts: []\n", ": {file}:1: 'acounts' is no word of a file of accounts"),
        (
            text("account-1", more="  topicPerms: [a=SUB, a=DENY]\n", secret="0x12345678"),
            ": {file}:4: account account-1: topicPerms: a is there twice, the last counts",
        ),
    ],
)
def test_why_nobody_may_do_anything_is_no_other_warning(
    tmp_path: Path, content: str, why: str
) -> None:
    """Others can read the file, and some of the secrets are numbers to YAML."""
    files = AccountFiles(str(tmp_path))
    put(files.default, content).chmod(0o644)
    said = "nobody may do anything by the files of accounts" + why.format(file=files.default)
    with pytest.raises(AccountFileError) as raised:
        files.load()
    assert str(raised.value) == f"{files.default}: {said}"


def test_of_accounts_that_an_earlier_file_has_without_rights_it_is_said(tmp_path: Path) -> None:
    put(tmp_path / "conf/acl/a.yml", text("account-1", more=""))
    put(tmp_path / "conf/plain_acl.yml", text("account-1")).chmod(0o644)
    with pytest.raises(AccountFileError, match=r"files of accounts: .*plain_acl.yml:2: account ac"):
        AccountFiles(str(tmp_path)).load()


def test_where_a_file_is_missed_is_said_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = rf"^{tmp_path}/conf/my.yml: no file of accounts is there \(ROCKETMQ_HOME is not set\)"
    with pytest.raises(AccountFileError, match=wanted):
        AccountFiles("", "conf/my.yml").load()


def test_a_file_that_nobody_can_look_at_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the rules of the other files would be in force alone."""
    put(tmp_path / "conf/acl/a.yml", text("account-1"))
    files = AccountFiles(str(tmp_path))
    # The default file is below a file, so it cannot exist. A file below a closed folder may exist.
    assert list(AccountFiles(str(tmp_path), "conf/acl/a.yml/b.yml").load().rules.accounts)
    real = Path.stat

    def stat(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path == files.default:
            raise PermissionError(13, "Permission denied")
        return real(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", stat)
    with pytest.raises(AccountFileError, match=r"plain_acl\.yml: "):
        files.load()


def test_a_folder_that_nobody_can_look_into_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "conf/plain_acl.yml", text("account-1"))
    put(tmp_path / "conf/acl/deep/a.yml", text("account-2"))
    files = AccountFiles(str(tmp_path))
    assert len(files.load().files) == 2
    real = os.scandir

    def scandir(path: str) -> object:
        if path.endswith("deep"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(AccountFileError, match="^" + str(tmp_path / "conf/acl/deep") + ": "):
        files.load()


def test_a_stamp_moves_with_every_change(tmp_path: Path) -> None:
    path = put(tmp_path / "conf/plain_acl.yml", text("account-1"))
    files = AccountFiles(str(tmp_path))
    stamps = [files.stamp()]
    put(path, text("account-12"))
    stamps.append(files.stamp())
    # Another file has this size and time.
    other = put(tmp_path / "other", text("account-21"))
    found = path.stat()
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    other.replace(path)
    stamps.append(files.stamp())
    put(tmp_path / "conf/acl/a.yml", text("account-3"))
    stamps.append(files.stamp())
    path.unlink()
    stamps.append(files.stamp())
    assert len(set(stamps)) == len(stamps)
    assert files.load().stamp == files.stamp() == stamps[-1]


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../conf/plain_acl.yml", "conf/../conf/plain_acl.yml", "conf/tools.yml", "conf",
     "conf/acl", "conf/acl/none.yml", "plain_acl.yml",
     "./conf/plain_acl.yml", "\0", " ", "conf/acl/x"],
)  # fmt: skip
def test_a_name_reaches_no_foreign_path(tmp_path: Path, name: str) -> None:
    put(tmp_path / "conf/acl/a.yml", text("account-1"))
    put(tmp_path / "conf/acl/x", text("account-1"))
    put(tmp_path / "conf/tools.yml", "accessKey: none")
    assert AccountFiles(str(tmp_path)).path_of(name) is None


def test_a_name_reaches_the_files_that_there_are(tmp_path: Path) -> None:
    path = put(tmp_path / "conf/acl/a.yml", text("account-1"))
    files = AccountFiles(str(tmp_path))
    assert files.path_of("") == files.path_of("conf/plain_acl.yml") == files.default
    assert files.path_of(str(files.default)) == files.default
    assert files.path_of("conf/acl/a.yml") == files.path_of(str(path)) == path


def rules(tmp_path: Path, content: str) -> Rules:
    return AccountFiles("", str(put(tmp_path / "f.yml", content))).load().rules


def test_differences_are_said_without_secrets(tmp_path: Path) -> None:
    before = rules(
        tmp_path,
        "globalWhiteRemoteAddresses: [10.1.2.3]\n"
        + text("account-1", "account-2", more="  topicPerms: [a=SUB, b=PUB]\n"),
    )
    more = (
        "  admin: true\n  whiteRemoteAddress: 10.2.2.2\n  defaultTopicPerm: SUB\n"
        "  defaultGroupPerm: PUB|SUB\n  topicPerms: [a=DENY, c=SUB]\n  groupPerms: [g=SUB]\n"
    )
    after = rules(
        tmp_path,
        "globalWhiteRemoteAddresses: [10.1.2.4]\n"
        + text("account-2", "account-3", more=more, secret="another-secret"),
    )
    lines = list(differences(before, after))
    assert lines == [
        "- account account-1",
        "+ account account-3",
        "~ account account-2: another secretKey",
        "~ account account-2: admin False -> True",
        "~ account account-2: whiteRemoteAddress '' -> '10.2.2.2'",
        "~ account account-2: defaultTopicPerm DENY -> SUB",
        "~ account account-2: defaultGroupPerm DENY -> PUB|SUB",
        "~ account account-2: topic a SUB -> DENY",
        "~ account account-2: topic b PUB -> -",
        "~ account account-2: topic c - -> SUB",
        "~ account account-2: group g - -> SUB",
        "- white address 10.1.2.3",
        "+ white address 10.1.2.4",
    ]
    assert not any(SECRET in line or "another-secret" in line for line in lines)
    assert list(differences(after, after)) == []


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["fifo", "directory"])
def test_what_is_no_file_keeps_nobody_waiting(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "conf/plain_acl.yml"
    path.parent.mkdir()
    make(path)
    with pytest.raises(AccountFileError, match="is no regular file"):
        AccountFiles(str(tmp_path)).load()


def test_a_stamp_moves_with_rights_and_owner(tmp_path: Path) -> None:
    path = put(tmp_path / "conf/plain_acl.yml", text("account-1"))
    files = AccountFiles(str(tmp_path))
    before = files.stamp()
    path.chmod(0o000)
    assert files.stamp() != before


def test_a_file_that_others_can_read_is_warned_of(tmp_path: Path) -> None:
    path = put(tmp_path / "conf/plain_acl.yml", text("account-1"))
    files = AccountFiles(str(tmp_path))
    for mode, warned in ((0o600, []), (0o644, [path]), (0o640, [path])):
        path.chmod(mode)
        found = files.load().warnings
        assert found == tuple(
            f"{one}: others on this machine can read its secret keys; chmod 600" for one in warned
        )


def test_who_is_let_in_without_a_signature_is_granted_something(tmp_path: Path) -> None:
    own = text("account-1", more="  whiteRemoteAddress: 10.1.1.1\n")
    assert rules(tmp_path, own).grants_something


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("globalWhiteRemoteAddresses: ['*']\n", "globalWhiteRemoteAddresses has *"),
        ("globalWhiteRemoteAddresses: ['*.*.*.*', 10.1.1.1]\n", "has *.*.*.*"),
        (text("account-1", more="  whiteRemoteAddress: '*'\n"), "account account-1"),
        ("globalWhiteRemoteAddresses: [10.1.1.*]\n", None),
        (text("account-1"), None),
    ],
)
def test_what_is_open_to_everybody_is_said(tmp_path: Path, content: str, said: str | None) -> None:
    found = rules(tmp_path, content).open_to_all
    assert (found is None) if said is None else (found is not None and said in found)


class Counted(Pauses):
    """How often there might have been a pause."""

    asked = 0

    def take(self) -> None:
        self.asked += 1


def test_reading_beside_a_loop_may_pause_at_each_account_and_right(tmp_path: Path) -> None:
    many = [f"account-{number}" for number in range(200)]
    perms = "".join(f"  - topic-{number}=SUB\n" for number in range(300))
    one = text("account-x", more=f"  topicPerms:\n{perms}").removeprefix("accounts:\n")
    put(tmp_path / "conf/plain_acl.yml", text(*many) + one)
    pauses = Counted()
    before = AccountFiles(str(tmp_path)).load(pauses).rules
    assert pauses.asked >= 500
    pauses = Counted()
    assert list(differences(before, before, pauses)) == []
    assert pauses.asked >= 201


def test_all_files_together_are_bounded_in_bytes_and_accounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "conf/acl/a.yml", text("account-1", "account-2"))
    last = put(tmp_path / "conf/plain_acl.yml", text("account-3"))
    files = AccountFiles(str(tmp_path))
    monkeypatch.setattr(account_files, "MAX_ACCOUNTS", 3)
    assert len(files.load().rules.accounts) == 3
    monkeypatch.setattr(account_files, "MAX_ACCOUNTS", 2)
    with pytest.raises(AccountFileError) as caught:
        files.load()
    assert str(caught.value) == f"{last}: with it the files have 3 accounts, the limit is 2"
    total = sum(path.stat().st_size for path in files.paths())
    monkeypatch.setattr(account_files, "MAX_BYTES", total - 1)
    with pytest.raises(AccountFileError, match=f"have {total} bytes together, the limit is"):
        files.load()
