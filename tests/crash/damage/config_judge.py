"""Judges cases of the tables kept as JSON: read as stored, or the backup, or a refusal that names
the file; never a traceback, never nothing in silence."""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from aerobee.broker.tables.files.state_file import StateFileError
from aerobee.file_replacement import DAMAGED
from tests.crash.damage.case import Case, Heard
from tests.crash.damage.originals import Original, snapshot
from tests.crash.damage.outcomes import TABLE, Outcome
from tests.crash.damage.tables import LIGHT, LOADERS, OFFSETS, Contents

#: A flipped bit in a name takes away one entry and makes another.
_MOST_CHANGED = 2


class ConfigJudge:
    """Judges cases of one original, in `scratch`."""

    def __init__(self, original: Original, scratch: Path) -> None:
        self._original = original
        self._scratch = scratch
        root = scratch / "tables"
        self._write(root)
        with Heard().listening():
            self._stored = _load_all(root)
            for name in LOADERS:
                (root / name).unlink()
            self._backed = _load_all(root)
            for name in LOADERS:
                (root / f"{name}.bak").unlink()
            self._nothing = _load_all(root)
        shutil.rmtree(root)

    def _write(self, root: Path) -> None:
        for name, data in self._original.files.items():
            if name.startswith(("config/", "namesrv/")):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_bytes(data)

    def judge(self, case: Case) -> list[str]:
        """All complaints about a case."""
        root = self._scratch / "tables"
        try:
            self._write(root)
            case.apply(root)
            wrong: list[str] = []
            for name in LOADERS:
                wrong += self._judge(case, root, name)
            return wrong
        finally:
            shutil.rmtree(root)
            for path in self._scratch.iterdir():
                path.unlink()

    def _judge(self, case: Case, root: Path, name: str) -> list[str]:
        """One table; those that are not damaged have to be as they were."""
        before = snapshot(root)
        heard = Heard()
        found: Contents | None = None
        refusal = ""
        with heard.listening():
            try:
                found = LOADERS[name](root)
            except (StateFileError, OSError) as error:
                refusal = str(error)
        wrong = [f"reading {name} changed something"] if _kept(root) != _as_kept(*before) else []
        if name not in case.tables:
            if found != self._stored[name]:
                wrong.append(f"{name} is not as it was: {refusal or found}")
            return wrong
        said = "\n".join(heard.lines)
        return wrong + self._complaints(TABLE[case.kind], name, found, refusal, said)

    def _complaints(
        self, outcome: Outcome, name: str, found: Contents | None, refusal: str, said: str
    ) -> list[str]:
        if outcome is Outcome.REFUSED:
            if found is not None:
                return [f"{name} is not refused: {found}"]
            return [] if name in refusal else [f"the refusal does not name {name}: {refusal}"]
        if found is None:
            return [f"{name} is refused: {refusal}"]
        used_backup = found == self._backed[name]
        if outcome is Outcome.BACKUP:
            if not used_backup:
                return [f"{name} is not its backup: {found}"]
            return [] if name in said else [f"that {name} is its backup is not said: {said!r}"]
        if outcome is Outcome.ASIDE:
            known = [self._stored[name], self._backed[name], self._nothing[name]]
            known.append(self._stored[OFFSETS] if name == LIGHT else {})
            made_up = [key for key, value in found.items() if value not in _of(known, key)]
            if made_up:
                return [f"{name} holds what nobody wrote: {made_up}"]
            return [] if name in said else [f"that {name} is lost is not said: {said!r}"]
        if outcome is Outcome.SERVED:
            return [] if found == self._stored[name] else [f"{name} is not as it was: {found}"]
        if outcome is Outcome.EMPTY:
            # A broker new to light queues goes on from the offsets of the one before.
            if found in (self._nothing[name], name == LIGHT and self._stored[OFFSETS]):
                return []
            return [f"{name} is not empty: {found}"]
        assert outcome is Outcome.UNGUARDED
        if used_backup:
            return []
        changed = differing(found, self._stored[name])
        return [f"{name} differs in {changed}"] if len(changed) > _MOST_CHANGED else []


def _of(tables: Iterable[Contents], key: str) -> list[Any]:
    return [table[key] for table in tables if key in table]


def _kept(root: Path) -> tuple[dict[str, bytes], set[str]]:
    return _as_kept(*snapshot(root))


def _as_kept(
    files: Mapping[str, bytes], folders: Iterable[str]
) -> tuple[dict[str, bytes], set[str]]:
    """All that is there, by the names that it had before it was kept aside."""
    return {_name_of(name): data for name, data in files.items()}, set(map(_name_of, folders))


def _name_of(name: str) -> str:
    return name.partition(DAMAGED)[0]


def _load_all(root: Path) -> dict[str, Contents]:
    return {name: load(root) for name, load in LOADERS.items()}


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names of the entries that are not the same in both."""
    return [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
