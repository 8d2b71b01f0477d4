"""A build where the compiled form is not wanted, or is not to be had."""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from Cython import Utils

from aerobee.native import form
from aerobee.native.form import VARIABLE
from hatch_build import MODULES, ZLIB, NativeHook, crc_library
from tests.native_builds import make_empty_modules

OTHER = "requests.cpython-39-x86_64-linux-gnu.so"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The modules, all empty, beside what older builds have left."""
    folder = make_empty_modules(tmp_path)
    for module in MODULES:
        (folder / (module + EXTENSION_SUFFIXES[0])).write_text("old")
    (folder / OTHER).write_text("another Python's")
    Utils.clear_function_caches()  # Cython remembers the folders it has made
    return tmp_path


def built(tree: Path, version: str) -> tuple[dict[str, Any], list[str]]:
    """The build data that the hook asks of hatchling, and its output."""
    said: list[str] = []
    app = SimpleNamespace(display_warning=said.append, abort=sys.exit)
    asked: Any = (str(tree), {}, None, None, str(tree), "wheel", app)
    data: dict[str, Any] = {"force_include": {}}
    NativeHook(*asked).initialize(version, data)
    return data, said


def left_in(tree: Path) -> set[str]:
    return {path.name for path in (tree / "aerobee" / "native").glob("*.so")}


@pytest.mark.parametrize("compiler", ["/bin/false", "/nowhere/cc"])
def test_without_a_compiler_one_line_is_said_and_the_wheel_is_plain(
    tree: Path, monkeypatch: pytest.MonkeyPatch, compiler: str
) -> None:
    monkeypatch.setenv(VARIABLE, "auto")
    monkeypatch.setenv("CC", compiler)
    data, said = built(tree, "standard")
    assert data == {"force_include": {}}
    assert len(said) == 1
    assert "plain Python will run" in said[0]
    assert "\n" not in said[0]


def test_required_makes_it_the_failure_of_the_build(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "required")
    monkeypatch.setenv("CC", "/bin/false")
    with pytest.raises(SystemExit, match="needs a C compiler") as ended:
        built(tree, "standard")
    assert "\n" not in str(ended.value), "no traceback of somebody else's"


@pytest.mark.parametrize("compiler", ["/bin/false", "/nowhere/cc"])
def test_crc_is_zlibs_where_libdeflate_cannot_be_linked(
    monkeypatch: pytest.MonkeyPatch, compiler: str
) -> None:
    monkeypatch.setenv("CC", compiler)
    assert crc_library() is ZLIB


@pytest.mark.parametrize(("wish", "compiler"), [("off", "cc"), ("auto", "/bin/false")])
def test_what_an_older_build_left_is_not_to_run(
    tree: Path, monkeypatch: pytest.MonkeyPatch, wish: str, compiler: str
) -> None:
    monkeypatch.setenv(VARIABLE, wish)
    monkeypatch.setenv("CC", compiler)
    built(tree, "editable")
    assert left_in(tree) == {OTHER}, "another Python has its own"


def test_a_wish_that_is_none_is_refused(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "yes")
    with pytest.raises(SystemExit, match="auto, off, required"):
        built(tree, "standard")


def test_another_pythons_modules_are_not_the_compiled_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(form, "__file__", str(tmp_path / "form.py"))
    (tmp_path / OTHER).touch()
    assert not form.is_built()
    (tmp_path / ("requests" + EXTENSION_SUFFIXES[0])).touch()
    assert form.is_built()


def test_modules_that_are_missing_or_broken_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(form, "__file__", str(tmp_path / "form.py"))
    monkeypatch.setenv(VARIABLE, "auto")
    assert form.wish_text() == "without the compiled hot path"
    (tmp_path / ("derive" + EXTENSION_SUFFIXES[0])).write_bytes(b"junk")
    assert "there and does not load (" in form.wish_text()
    assert "file too short" in form.wish_text()
    (tmp_path / ("derive" + EXTENSION_SUFFIXES[0])).unlink()
    (tmp_path / ("pulls" + EXTENSION_SUFFIXES[0])).write_bytes(b"junk")
    assert "does not load (derive is missing)" in form.wish_text()
