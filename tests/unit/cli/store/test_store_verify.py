"""`aerobee store verify` as a process: what it prints, how it ends, what it refuses."""

import contextlib
import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aerobee import testing
from aerobee.cli.main import main
from aerobee.cli.printing.progress_bar import Progress
from tests.unit.cli.store_support import store, store_process
from tests.unit.cli.test_serve import served
from tests.unit.store.at_rest import audit_support as at
from tests.unit.store.support import log_segment


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return at.make(tmp_path_factory.mktemp("audit") / "template")


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    return at.copy(template, tmp_path / "store")


def test_a_sound_store_exits_0_and_is_summed_up(root: Path) -> None:
    code, out, err = store_process("verify", root)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == f"{root} is SOUND"
    assert "103 messages, 2 half messages, 1 rollbacks, stored 2023-11-1" in out
    assert "4 with 103 entries" in out


def test_damage_exits_1_and_says_where_what_and_what_to_do(root: Path) -> None:
    lost = at.of_queue(root, 1)[10]
    at.flip_log(root, lost.log_offset + 95)
    code, out, _ = store("verify", root)
    assert code == 1
    path, position = at.place(lost.log_offset, root)
    assert "DAMAGE  record-damaged" in out
    assert f"  commitlog/{path.name} byte {position}: {lost.size} bytes from" in out
    assert "held message Orders/1 10" in out
    assert "  means  the messages in this range are lost" in out
    assert "  do     restore the file from a backup" in out
    assert out.splitlines()[-1] == f"{root} is DAMAGED: 1 findings"


def test_json_has_all_of_it(root: Path) -> None:
    lost = at.of_queue(root, 1)[10]
    at.flip_log(root, lost.log_offset + 95)
    done = store("verify", root, "--json")
    report = done.json
    assert done.code == 1
    assert (report["sound"], report["clean_stop"]) == (False, True)
    assert report["levels"] == {"damage": 1, "warning": 0, "note": 0}
    assert report["kinds"] == {"record-damaged": 1}
    (finding,) = report["findings"]
    assert finding["log_offset"] == lost.log_offset
    assert finding["file"] == str(at.place(lost.log_offset, root)[0])
    assert report["gaps"][0]["start"] == lost.log_offset
    assert report["counts"]["messages"] == 102


def test_many_findings_of_a_kind_are_cut_short_unless_asked_for(root: Path) -> None:
    for one in at.of_queue(root)[:30]:
        at.flip_log(root, one.log_offset + 95)
    short, long = store("verify", root), store("verify", root, "--all")
    assert "... and 20 more" in short.out
    assert long.out.count("does not match its CRC") == 30


def test_a_missing_table_of_topics_is_named_with_what_a_start_makes_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "store"
    sizes = ("--set", "maxHashSlotNum=5000", "--set", "maxIndexNum=20000")
    with testing.broker(store_path=str(root)) as running:
        servers = ["-n", running.name_server]
        assert main(["topic", "create", "Orders", "--queues", "4", *servers]) == 0
        assert main(["message", "send", "Orders", "x", "--queue", "2", *servers]) == 0
        assert main(["topic", "create", "Empty", *servers]) == 0
    assert store("verify", root, *sizes).out.splitlines()[-1] == f"{root} is SOUND"
    for table in (root / "config").glob("topics.json*"):
        table.unlink()
    code, out, _ = store("verify", root, *sizes)
    assert (code, out.splitlines()[-1]) == (0, f"{root} is SOUND, 1 warnings")
    assert (
        "WARNING  topics-missing\n  config/topics.json: is not there, nor its backup, but the "
        "store has queues of Orders (--queues 3)\n"
    ) in out
    assert "  do     restore config/topics.json from a backup before the next start" in out
    with testing.broker(store_path=str(root)) as running:
        capsys.readouterr()
        assert main(["topic", "list", "--json", "-n", running.name_server]) == 0
    made = {item["topic"]: item["brokers"][0] for item in json.loads(capsys.readouterr().out)}
    assert {name: (one["read_queues"], one["rights"]) for name, one in made.items()} == {
        "Orders": (3, "rw")
    }
    assert store("verify", root, *sizes).out.splitlines()[-1] == f"{root} is SOUND"


def test_a_warning_alone_exits_0(root: Path) -> None:
    (root / "abort").touch()
    code, out, _ = store("verify", root)
    assert code == 0
    assert "WARNING  left-open" in out
    assert out.splitlines()[-1] == f"{root} is SOUND, 1 warnings"


def test_names_in_the_files_cannot_move_the_cursor(root: Path) -> None:
    (root / "\x1b[2Jclear").touch()
    assert "\x1b" not in store("verify", root).out


def test_a_terminal_shows_a_bar(root: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "aerobee.cli", "store", "verify", root],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    ) as process:
        os.close(theirs)
        drawn = b""
        with contextlib.suppress(OSError):  # EIO is the end of a terminal
            while data := os.read(ours, 4096):
                drawn += data
        os.close(ours)
    assert process.returncode == 0
    assert b"reading the log" in drawn
    assert "━".encode() in drawn


def test_a_pipe_gets_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter([0.0, 1.0, 6.0, 7.0, 12.0])
    monkeypatch.setattr("aerobee.cli.printing.progress_bar.time.monotonic", lambda: next(times))
    with Progress() as progress:
        for done in range(5):
            progress("reading", done << 20, 8 << 20)
    assert capsys.readouterr().err == (
        "reading: 2.0 MiB of 8.0 MiB (25%), 341.3 KiB/s, 18 s left\n"
        "reading: 4.0 MiB of 8.0 MiB (50%), 341.3 KiB/s, 12 s left\n"
    )


# --- what is refused ---------------------------------------------------------------------------


def test_no_store_exits_3_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for name, text in (("none", "does not exist"), ("file", "is a file"), ("empty", "is empty")):
        code, out, err = store("verify", tmp_path / name)
        assert (code, out) == (3, "")
        assert err.startswith(f"aerobee: {tmp_path / name} ")
        assert text in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file"]


def test_wrong_usage_exits_2() -> None:
    assert store("verify").code == 2
    assert store("verify", "a", "b").code == 2
    assert store("mend", "a").code == 2


def test_a_wrong_setting_exits_78(root: Path) -> None:
    code, _, err = store("verify", root, "--set", "store.segment=1")
    assert code == 78
    assert "store.segment" in err


def test_sizes_that_no_file_has_exit_3(root: Path) -> None:
    code, _, err = store("verify", root, "--set", "store.commit_log_segment_bytes=65536")
    assert code == 3
    assert "no file of the commit log has the 65536 bytes" in err
    assert "they have 4096" in err


def test_the_brokers_configuration_names_another_commit_log(root: Path, tmp_path: Path) -> None:
    shutil.move(root / "commitlog", tmp_path / "log")
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathCommitLog={tmp_path / 'log'}\n")
    assert store("verify", root).code == 1
    code, out, _ = store("verify", root, "-c", conf)
    assert (code, out.splitlines()[-1]) == (0, f"{root} is SOUND")


def test_a_running_broker_is_left_in_peace(tmp_path: Path) -> None:
    with served("serve", "--dev", "--store", str(tmp_path)) as daemon:
        daemon.wait_ready()
        code, _, err = store_process("verify", tmp_path)
        assert code == 3
        assert "a broker runs on it" in err
        assert daemon.stop() == 0
    assert store("verify", tmp_path).code == 0


def test_two_may_read_at_once(root: Path) -> None:
    from aerobee.store.disk.files import Files
    from aerobee.store.disk.lock import StoreLock

    lock = StoreLock(Files(), str(root))
    assert lock.take_to_read()
    try:
        assert store_process("verify", root).code == 0
    finally:
        lock.release()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_no_permission_exits_3_and_names_the_file(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (root, *root.parents):
        if path.stat().st_uid == 0 and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o055)
    log_segment(root).chmod(0o600)
    assert main(["store", "verify", str(root)]) == 0  # and everything is imported
    capsys.readouterr()
    os.seteuid(65534)
    try:
        code = main(["store", "verify", str(root)])
    finally:
        os.seteuid(0)
    err = capsys.readouterr().err
    assert code == 3
    assert f"{log_segment(root)}: Permission denied" in err
    assert "as the user the broker runs as" in err


@contextmanager
def read_only_mount(source: Path, target: Path) -> Iterator[None]:
    target.mkdir()
    made = subprocess.run(["mount", "--bind", source, target], check=False, capture_output=True)
    if made.returncode:
        pytest.skip("mount refuses a bind mount; it needs root and CAP_SYS_ADMIN")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", target], check=True)
        yield
    finally:
        subprocess.run(["umount", target], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount")
@pytest.mark.parametrize("with_lock", [True, False], ids=["lock", "no lock"])
def test_a_read_only_file_system_is_verified(root: Path, tmp_path: Path, with_lock: bool) -> None:
    if not with_lock:
        (root / "lock").unlink()
    with read_only_mount(root, tmp_path / "mounted"):
        code, out, _ = store("verify", tmp_path / "mounted")
    assert code == 0, out
    assert (root / "lock").exists() == with_lock
