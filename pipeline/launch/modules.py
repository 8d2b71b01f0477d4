"""An archive of Aerobee's modules, for executors where Aerobee is not installed.

Spark puts archives that end in .zip on the workers' path; Python imports plain modules from an
archive, but no compiled modules, so those are left out.
"""

from __future__ import annotations

import atexit
import os
import tempfile
import zipfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

#: Names the archive in the environment of who deletes it.
ARCHIVE: Final = "AEROBEE_SPARK_MODULES"
_FORMATS: Final = ("pyspark_aerobee", "pyspark_aerobee_store")
_LEFT_OUT: Final = frozenset({".so", ".pyc", ".pyx", ".pxd", ".c"})


def write_modules() -> Path:
    """A new file aerobee.zip in a folder of its own below the place for temporary files."""
    import aerobee

    package = Path(str(aerobee.__file__)).parent
    path = Path(tempfile.mkdtemp(prefix="aerobee-")) / "aerobee.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for folder, folders, names in os.walk(package, followlinks=True):
            folders[:] = sorted(one for one in folders if one != "__pycache__")
            for name in sorted(names):
                if Path(name).suffix not in _LEFT_OUT:
                    file = Path(folder, name)
                    archive.write(file, Path(package.name, file.relative_to(package)))
        for name in _FORMATS:
            spec = find_spec(name)
            if spec is not None and spec.origin is not None:
                archive.write(spec.origin, Path(spec.origin).name)
    return path


def delete_at_exit() -> None:
    """Delete the archive that the environment names, if any, when this process ends."""
    path = os.environ.pop(ARCHIVE, None)
    if path is not None:
        atexit.register(delete, Path(path))


def delete(path: Path) -> None:
    """Delete an archive with its folder."""
    with suppress(OSError):
        path.unlink()
        path.parent.rmdir()
