"""The plain form alone: what is counted are calls of Python, and the compiled form makes none. What
a large request is, is for the plain form in either case (docs/native.md); what each costs others
with the compiled form in place, tests/crash/crowds/test_largest_inputs.py measures."""

from collections.abc import Iterator

import pytest

from aerobee.native.form import VARIABLE


@pytest.fixture(scope="module", autouse=True)
def plain_form() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "off")
        yield
