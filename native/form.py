"""Chooses the form of the hot path: the compiled form where it was built, or the plain form.

AEROBEE_NATIVE names the wanted form: `auto` (the default) takes the compiled form if it is there,
`off` never, and `required` ends the start without it. Modules that are there and do not load cause
a warning: the plain form is correct, but slower than users expect.
"""

import os
from importlib.machinery import EXTENSION_SUFFIXES
from typing import TYPE_CHECKING, NamedTuple

from aerobee.store.log.compiled import Compiled

if TYPE_CHECKING:
    from types import ModuleType

    from aerobee.native import guard, pulls, requests, sends, sockets

VARIABLE = "AEROBEE_NATIVE"
WISHES = ("auto", "off", "required")
#: The modules of a broker; `decode` is for Spark's readers.
_MODULES = (
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


class NativeError(Exception):
    """The required form is not available; the text says what to do."""


class CompiledForm(NamedTuple):
    """The parts of the compiled form."""

    store: Compiled
    sends: "type[sends.Sends]"
    route: "type[sends.Route]"
    pulls: "type[pulls.Pulls]"
    pull_route: "type[pulls.PullRoute]"
    requests: "type[requests.Requests]"
    sockets: "type[sockets.Sockets]"
    guard: "type[guard.Guard]"


class _StoreFunctions:
    """The functions that the store is handed, from several modules."""

    def __init__(self) -> None:
        from aerobee.native import derive, dispatch, placing, reads

        self.scan = reads.scan
        self.gather = dispatch.gather
        self.put_keys = dispatch.put_keys
        self.deriver = derive.Deriver
        self.put_hashed = dispatch.put_hashed
        self.place = placing.place


def is_built() -> bool:
    """Whether a part of the compiled form lies beside this module, for this Python; nothing is
    imported for that."""
    return any(map(_file_of, _MODULES))


def wish_text() -> str:
    """The form that a start with this environment would run, for people. Nothing of a broker is
    imported for it: the modules are opened as shared objects, which shows a broken module."""
    text = "without the compiled hot path"
    try:
        if not _is_wanted():
            return f"{text}: {VARIABLE}=off"
    except NativeError as error:
        return str(error)
    fault = _fault()
    if not fault:
        return "with the compiled hot path"
    if is_built():
        text = f"{text}, which is there and does not load ({fault})"
    return f"{text}, and {VARIABLE}=required" if _is_required() else text


def _file_of(module: str) -> str:
    """The path of a compiled module; "" without it."""
    folder = os.path.dirname(__file__)
    for suffix in EXTENSION_SUFFIXES:
        file = os.path.join(folder, module + suffix)
        if os.path.exists(file):
            return file
    return ""


def _fault() -> str:
    """The reason why the compiled form cannot load, as far as it shows from outside; "" if it
    can."""
    import ctypes

    for module in _MODULES:
        file = _file_of(module)
        if not file:
            return f"{module} is missing"
        try:
            ctypes.CDLL(file, mode=os.RTLD_LAZY)
        except OSError as error:
            return str(error)
    return ""


def form_name(form: CompiledForm | None) -> str:
    """The name of the form for people and /metrics."""
    return "plain" if form is None else "compiled"


def chosen() -> CompiledForm | None:
    """The compiled form if it is to run; None: the plain form. Raises NativeError."""
    if not _is_wanted():
        return None
    try:
        return _load()
    except ImportError as error:
        _miss(error)
        return None


def chosen_decode() -> "ModuleType | None":
    """The compiled bulk decode of Spark's readers, chosen like `chosen`. It imports nothing of a
    broker: an executor need not have a broker's packages."""
    if not _is_wanted():
        return None
    try:
        from aerobee.native import decode
    except ImportError as error:
        _miss(error)
        return None
    return decode


def _load() -> CompiledForm:
    """Load all modules. Raises ImportError."""
    from aerobee.native import guard, pulls, requests, sends, sockets

    return CompiledForm(
        _StoreFunctions(),
        sends.Sends,
        sends.Route,
        pulls.Pulls,
        pulls.PullRoute,
        requests.Requests,
        sockets.Sockets,
        guard.Guard,
    )


def _is_wanted() -> bool:
    wish = os.environ.get(VARIABLE) or "auto"
    if wish not in WISHES:
        raise NativeError(f"{VARIABLE} is {wish!r}, it may be one of {', '.join(WISHES)}")
    return wish != "off"


def _is_required() -> bool:
    return os.environ.get(VARIABLE) == "required"


def _miss(error: ImportError) -> None:
    """Report that the compiled form cannot be had: an error if it is required, a warning if it is
    there."""
    what = "is there and does not load" if is_built() else "was not built"
    cure = "install a wheel that has it, or build it where a C compiler is (docs/native.md)"
    if _is_required():
        raise NativeError(
            f"{VARIABLE}=required, but the compiled form {what} ({error}): {cure}, or set "
            f"{VARIABLE}=auto"
        ) from None
    if is_built():
        import logging  # not for `aerobee --version`, which answers at once

        log = logging.getLogger("aerobee.native")
        log.warning("the compiled form %s, plain Python runs error=%s: %s", what, error, cure)
