"""Builds the compiled form (aerobee/native) into the wheel, or beside its sources.

AEROBEE_NATIVE=off leaves it out, `required` makes a failure the build's; else a machine without a C
compiler or zlib's headers gets a wheel of plain Python. One line says which of these it was.

Files below build/ belong to one Python, so that those of several neither meet nor mix; they are
made anew when a source changes, or anything else that they were made from. Cython's C, half of the
work, is the same whatever the options and the Python: it is kept by the content of what it was made
from, and a build finds it there if any build before has made it.

CRC-32 is libdeflate's where its headers and its static library are, and zlib's elsewhere: the same
numbers, for 256 bytes in an eighth of the time.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODULES = (
    "decode",
    "derive",
    "dispatch",
    "guard",
    "placing",
    "pulls",
    "reads",
    "requests",
    "sends",
    "sha1",
    "sockets",
)
#: Options of the C compiler and its linker. Without the last two a change of one function made
#: others some per cent slower by their new places, and calls of the interpreter took a jump more.
OPTIONS = ("-O2", "-g0", "-falign-functions=64", "-fno-plt")


class Library(NamedTuple):
    """A library with CRC-32: what chooses it in `native/bytes.pxd`, and how to link it."""

    macros: tuple[tuple[str, str | None], ...]
    link: tuple[str, ...]


ZLIB = Library((), ("-lz",))
#: Its static library, so that the modules need no more than the C library where they run.
LIBDEFLATE = Library((("AEROBEE_LIBDEFLATE", None),), ("-l:libdeflate.a",))
#: Cython's C of all builds in a working tree.
KEPT = Path("build", "native", "c")


class NativeHook(BuildHookInterface[Any]):
    """Hatchling's hook of this project; see the module."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build before files are gathered; `version` is of hatchling's kinds of wheel."""
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        beside = root / "aerobee" / "native" if version == "editable" else None
        built = self._built(root)
        if beside is not None:
            replace_beside(beside, built)
        if built:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
        if beside is None:
            for path in built:
                build_data["force_include"][str(path)] = f"aerobee/native/{path.name}"

    def _built(self, root: Path) -> list[Path]:
        """The modules, made as AEROBEE_NATIVE wishes; empty where plain Python is to run."""
        wish = os.environ.get("AEROBEE_NATIVE") or "auto"
        if wish not in ("auto", "off", "required"):
            self.app.abort(f"AEROBEE_NATIVE is {wish!r}, it may be one of auto, off, required")
        if wish == "off":
            return []
        from setuptools.errors import BaseError, CCompilerError

        try:
            return build(root)
        except (BaseError, CCompilerError, OSError) as error:
            # The compiler, or something that it needs, is missing. Sources that Cython refuses are
            # a fault of ours.
            if wish == "required":
                self.app.abort(
                    "AEROBEE_NATIVE=required, but the compiled form cannot be built, which needs a "
                    f"C compiler and the headers of zlib and Python ({error})"
                )
            self.app.display_warning(
                f"the compiled form is left out, plain Python will run ({error})"
            )
            return []


def replace_beside(folder: Path, built: Iterable[Path]) -> None:
    """Put modules beside their sources. Earlier modules of this Python are deleted, also when there
    are no new ones: a build from other sources must not run."""
    names = {path.name for path in built}
    for path in built:
        # A process that runs keeps what it has.
        shutil.copy(path, folder / f"{path.name}.new")
        os.replace(folder / f"{path.name}.new", folder / path.name)
    for module in MODULES:
        for suffix in EXTENSION_SUFFIXES:
            if module + suffix not in names:
                (folder / (module + suffix)).unlink(missing_ok=True)


def build(root: Path, options: Sequence[str] = OPTIONS, kept: Path | None = None) -> list[Path]:
    """Compile the modules of native/ in `root`, with these options of the C compiler and its
    linker; where they are, below build/. `kept` is the folder with the C of earlier builds, else
    one below build/. Raises what the tools do."""
    import Cython

    before = Path.cwd()
    os.chdir(root)
    try:
        work = Path("build", "native", str(sys.implementation.cache_tag))
        crc = crc_library()
        about = repr((Cython.__version__, sys.version, *options, crc, Path(__file__).read_text()))
        made_from = work / "made-from"
        if not made_from.exists() or made_from.read_text() != about:
            shutil.rmtree(work, ignore_errors=True)
        built = _compiled(work, options, crc, kept or KEPT)
        made_from.write_text(about)
        return [root / path for path in built]
    finally:
        os.chdir(before)


def crc_library() -> Library:
    """The library whose CRC-32 a build takes: libdeflate if a module with it can be linked."""
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    program = "#include <libdeflate.h>\nvoid *crc(void) { return (void *) libdeflate_crc32; }\n"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "crc.c")
        source.write_text(program)
        command = [*shlex.split(compiler), "-shared", "-fPIC", str(source), *LIBDEFLATE.link]
        try:
            subprocess.run([*command, "-o", f"{source}.so"], capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return ZLIB
    return LIBDEFLATE


def _translations(work: Path, kept: Path) -> list[tuple[Path, Path]]:
    """For each module the place where its C is made, and the place where it is kept: its name
    follows from everything that it is made from. In Cython's own cache the name also has the path
    of Cython, which differs in each build by pip."""
    import Cython

    folder = Path("aerobee", "native")
    declared = [(path.name, path.read_bytes()) for path in sorted(folder.glob("*.pxd"))]
    found = []
    for module in MODULES:
        source = (folder / f"{module}.pyx").read_bytes()
        about = hashlib.sha256(repr((Cython.__version__, source, declared)).encode())
        name = f"{module}-{about.hexdigest()[:32]}.c"
        found.append((work / folder / f"{module}.c", kept / name))
    return found


def _take_kept(c: Path, as_kept: Path) -> None:
    """Take the C that is kept, with the time of now if it differs from the C that was there. If no
    C is kept, delete the one there, so that it is made whatever the times say."""
    if not as_kept.exists():
        c.unlink(missing_ok=True)
    elif not c.exists() or c.read_bytes() != as_kept.read_bytes():
        _replace(c, as_kept)


def _replace(target: Path, source: Path) -> None:
    """Put a copy of the source there, whole at any time."""
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_name(f"{target.name}.{os.getpid()}.new")
    shutil.copyfile(source, new)
    os.replace(new, target)


def _compiled(work: Path, options: Sequence[str], crc: Library, kept: Path) -> list[str]:
    """The modules, from the working directory's sources; those older than their source are made."""
    translations = _translations(work, kept)
    for c, as_kept in translations:
        _take_kept(c, as_kept)
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    extensions = cythonize(
        [
            Extension(
                f"aerobee.native.{module}",
                [f"aerobee/native/{module}.pyx"],
                define_macros=list(crc.macros),
                extra_compile_args=list(options),
                extra_link_args=[*options, *crc.link],
            )
            for module in MODULES
        ],
        build_dir=str(work),
        include_path=["."],
        quiet=True,
    )
    for c, as_kept in translations:
        _replace(as_kept, c)
    command = build_ext(Distribution({"name": "aerobee", "ext_modules": extensions}))
    command.build_temp = str(work)
    command.build_lib = str(work / "lib")
    command.parallel = True  # a compiler for each core
    command.ensure_finalized()
    command.run()
    outputs: list[str] = command.get_outputs()
    return outputs
