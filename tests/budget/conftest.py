"""The plain form alone: calls of Python are counted, and the compiled form makes none. The plain
form serves large requests in either case (docs/native.md);
tests/crash/crowds/test_largest_inputs.py measures the cost of each to others with the compiled form
in place."""

from collections.abc import Iterator

import pytest

from aerobee.native.form import VARIABLE


@pytest.fixture(scope="module", autouse=True)
def plain_form() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "off")
        yield
