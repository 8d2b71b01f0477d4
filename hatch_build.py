"""Builds the compiled form (aerobee/native) into the wheel, or beside its sources.

AEROBEE_NATIVE=off leaves it out, `required` makes a failure the build's; else a machine without a C
compiler or zlib's headers gets a wheel of plain Python, and one line that says so.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODULES = ("decode", "derive", "dispatch", "pulls", "reads", "requests", "sends", "sockets")


class NativeHook(BuildHookInterface[Any]):
    """Hatchling's hook of this project; see the module."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build before files are gathered; `version` is of hatchling's kinds of wheel."""
        wish = os.environ.get("AEROBEE_NATIVE") or "auto"
        if wish == "off" or self.target_name != "wheel":
            return
        root = Path(self.root)
        beside = root / "aerobee" / "native" if version == "editable" else None
        try:
            built = build(root)
        except Exception as error:
            if beside is not None:
                # What was built from other sources is not to run.
                for path in beside.glob("*.so"):
                    path.unlink()
            if wish == "required":
                raise
            self.app.display_warning(
                f"the compiled form is left out, plain Python will run ({error})"
            )
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for path in built:
            if beside is None:
                build_data["force_include"][str(path)] = f"aerobee/native/{path.name}"
            else:
                # A process that runs keeps what it has.
                shutil.copy(path, beside / f"{path.name}.new")
                os.replace(beside / f"{path.name}.new", beside / path.name)


def build(root: Path, options: Sequence[str] = ("-O2",)) -> list[Path]:
    """Compile the modules of native/ in `root`, with these options of the C compiler and its
    linker; where they are, below build/. Raises what the tools do."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    before = Path.cwd()
    os.chdir(root)
    try:
        extensions = cythonize(
            [
                Extension(
                    f"aerobee.native.{module}",
                    [f"aerobee/native/{module}.pyx"],
                    libraries=["z"],
                    extra_compile_args=list(options),
                    extra_link_args=list(options),
                )
                for module in MODULES
            ],
            build_dir="build/native",
            include_path=["."],
            quiet=True,
        )
        command = build_ext(Distribution({"name": "aerobee", "ext_modules": extensions}))
        command.build_temp = "build/native"
        command.build_lib = "build/native/lib"
        command.ensure_finalized()
        command.run()
        return [root / path for path in command.get_outputs()]
    finally:
        os.chdir(before)
