"""`aerobee acl check` and `aerobee acl explain`, without a broker."""

from pathlib import Path

import pytest

from aerobee.cli.main import main

SECRET = "very-secret-words"
FILE = f"""\
globalWhiteRemoteAddresses:
- 10.1.2.*
accounts:
- accessKey: account-1
  secretKey: {SECRET}
  topicPerms:
  - orders=PUB
- accessKey: operator
  secretKey: {SECRET}
  admin: true
"""


def put(tmp_path: Path, text: str = FILE, mode: int = 0o600) -> str:
    path = tmp_path / "plain_acl.yml"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Code, standard output, standard error; no secret is in either."""
    code = main(["acl", *arguments])
    out, err = capsys.readouterr()
    assert SECRET not in out + err
    return code, out, err


def test_check_of_a_good_file_counts_what_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = put(tmp_path)
    assert run(capsys, "check", file) == (
        0, f"{file}: 2 accounts, 1 of administrators, 1 white addresses, 0 warnings\n", "",
    )  # fmt: skip


def test_check_says_each_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = put(tmp_path, FILE.replace("orders=PUB", "orders=pub") + "acounts: []\n")
    code, out, err = run(capsys, "check", file)
    assert code == 0
    assert out.endswith("2 warnings\n")
    assert err.splitlines() == [
        f"warning: {file}:11: 'acounts' is no word of a file of accounts",
        f"warning: {file}:7: account account-1: topicPerms: orders: 'pub' is no right and counts "
        "as DENY",
    ]


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_check_says_when_others_can_read_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: int
) -> None:
    code, _, err = run(capsys, "check", put(tmp_path, mode=mode))
    assert code == 0
    assert "others on this machine can read its secret keys; chmod 600" in err


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("accounts: 5\n", ":1: accounts must be a list"),
        (FILE[:-12] + ": x: y\n", "no YAML"),
        (f"accounts:\n- accessKey: account-1\n  secretKey: *{SECRET}\n", ":3: no YAML"),
        ("", "nobody may do anything by it; no broker starts with it alone"),
        (f"accounts:\n- accessKey: account-1\n  secretKey: {SECRET}\n", "nobody may do anything"),
    ],
)
def test_check_refuses_what_no_broker_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, why: str
) -> None:
    code, out, err = run(capsys, "check", put(tmp_path, text))
    assert (code, out) == (1, "")
    assert why in err


def test_check_says_each_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = put(tmp_path, FILE.replace("10.1.2.*", "10.1.2.300").replace("=PUB", ""))
    code, out, err = run(capsys, "check", file)
    assert (code, out) == (1, "")
    assert err.splitlines() == [
        f"aerobee: {file}:7: account account-1: topicPerms: 'orders' is not of the form "
        "name=PUB|SUB",
        f"aerobee: {file}:2: '10.1.2.300' is no IP address",
    ]


def folder_of(tmp_path: Path, **files: str) -> Path:
    folder = tmp_path / "acl"
    for name, text in files.items():
        path = folder / name.replace("_", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)
    return folder


def test_check_of_a_folder_looks_at_each_file_and_at_all_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    none = f"accounts:\n- accessKey: account-3\n  secretKey: {SECRET}\n"
    folder = folder_of(
        tmp_path, b_yml=FILE.replace("operator", "operator-2"), a_yaml=FILE, n_yml=none
    )
    (folder / "deep").mkdir()
    (folder / "a.yaml").rename(folder / "deep/a.yaml")
    (folder / "no.txt").write_text("rubbish: : :")
    code, out, err = run(capsys, "check", str(folder))
    assert code == 0
    assert out.splitlines() == [
        f"{folder}/b.yml: 2 accounts, 1 of administrators, 1 white addresses, 0 warnings",
        f"{folder}/deep/a.yaml: 2 accounts, 1 of administrators, 1 white addresses, 0 warnings",
        f"{folder}: 3 files, 4 accounts, 2 of administrators, 2 white addresses, 1 warnings",
    ]
    assert err.splitlines() == [
        f"aerobee: {folder}/n.yml: nobody may do anything by it; no broker starts with it alone",
        f"warning: {folder}/deep/a.yaml:4: account account-1 is in {folder}/b.yml too, that one "
        "counts",
    ]


def test_check_of_a_folder_with_a_file_that_no_broker_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path, a_yml="accounts: 5\n", b_yml=FILE)
    code, out, err = run(capsys, "check", str(folder))
    assert code == 1
    assert out.startswith(f"{folder}/b.yml: 2 accounts")
    assert err.splitlines() == [
        f"aerobee: {folder}/a.yml:1: accounts must be a list",
        f"aerobee: {folder}: 1 of 2 files cannot be taken, and a broker takes all or none",
    ]


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "no file of it ends in .yml or .yaml"),
        (
            {"a_yml": "", "b_yml": ""},
            "nobody may do anything by its 2 files; no broker starts with",
        ),
    ],
)
def test_check_of_a_folder_that_lets_nobody_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], files: dict[str, str], why: str
) -> None:
    folder = folder_of(tmp_path, **files)
    folder.mkdir(exist_ok=True)
    code, out, err = run(capsys, "check", str(folder))
    assert (code, out) == (1, "")
    assert f"aerobee: {folder}: {why}" in err.splitlines()[-1]


def test_explain_takes_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(tmp_path, a_yml=FILE, b_yml=FILE.replace("orders=PUB", "orders=SUB"))
    code, out, _ = run(capsys, "explain", str(folder), "--account", "account-1")
    assert code == 0
    assert out.startswith(f"account account-1 ({folder}/a.yml:4)\n")
    assert "topic orders: PUB" in out


def test_check_and_explain_of_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "none.yml")
    for arguments in (("check", file), ("explain", file, "--account", "account-1")):
        code, out, err = run(capsys, *arguments)
        assert (code, out) == (1, "")
        assert f"{file}: No such file or directory" in err


def test_explain_names_the_line_that_decides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = put(tmp_path)
    code, out, _ = run(capsys, "explain", file, "--account", "account-1", "--topic", "orders")
    assert code == 0
    assert out.splitlines() == [
        f"account account-1 ({file}:4)",
        "  administrator: no",
        f"  send to topic orders: yes (PUB: {file}:7, this line)",
        f"  read topic orders: no (PUB: {file}:7, this line)",
        "whoever comes from 10.1.2.*: everything, without an account "
        f"(globalWhiteRemoteAddresses of {file})",
    ]
    code, out, _ = run(capsys, "explain", file, "--account", "account-1", "--group", "readers")
    assert out.splitlines()[2].startswith("  consume in group readers: no (DENY: no line names it")


def test_explain_looks_into_all_files_and_takes_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = put(tmp_path)
    other = tmp_path / "other.yml"
    other.write_text(FILE.replace("orders=PUB", "orders=SUB").replace("operator", "operator-2"))
    _, out, _ = run(capsys, "explain", file, str(other), "--account", "account-1")
    assert "topic orders: PUB" in out
    _, out, _ = run(capsys, "explain", file, str(other), "--account", "operator-2")
    assert f"account operator-2 ({other}:8)" in out


def test_explain_of_an_account_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = put(tmp_path)
    code, out, err = run(capsys, "explain", file, "--account", "nobody-here")
    assert (code, out) == (1, "")
    assert f"there is no account nobody-here in {file}" in err


def test_control_characters_reach_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = FILE.replace("account-1", '"account-1\\e[2J"').replace("orders=PUB", '"or\\eders=pub"')
    file = put(tmp_path, text)
    for arguments in (("check", file), ("explain", file, "--account", "account-1\x1b[2J")):
        code, out, err = run(capsys, *arguments)
        assert code == 0
        assert "\x1b" not in out + err
