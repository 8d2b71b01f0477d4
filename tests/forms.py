"""The compiled form, for tests that compare it or run on it."""

import os

import pytest

from aerobee.native.form import VARIABLE, CompiledForm, chosen

#: The wish when this run began. A test that leaves another wish behind takes the compiled form from
#: all tests that follow it, and they may not skip for that.
_WISH = os.environ.get(VARIABLE) or "auto"


def compiled_form() -> CompiledForm:
    """The compiled form; the test is skipped without it, and fails where it is required."""
    wish = os.environ.get(VARIABLE) or "auto"
    assert wish == _WISH, f"{VARIABLE} was {_WISH!r} when the run began, and is {wish!r} now"
    form = chosen()
    if form is None:
        pytest.skip(f"the compiled form was not built, or {VARIABLE} is off")
    return form
