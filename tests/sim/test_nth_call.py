"""R5: the n-th call fails, for every n, in every way, once and from then on."""

import logging
from collections.abc import Iterator

import pytest

from tests.sim.failing_calls import CALLS, Fault
from tests.sim.nth_call import run_with


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from-then-on"])
@pytest.mark.parametrize("kind", CALLS)
def test_no_failing_call_costs_an_acknowledged_message(kind: str, lasting: bool) -> None:
    wrong: list[str] = []
    stopped = 0
    for nth in range(1, 2000):
        run = run_with(Fault(kind, nth, lasting))
        if not run.fault.hit:
            break
        stopped += run.broke
        wrong += [f"{kind} {nth} ({run.fault.hit}) lasting={lasting}: {text}" for text in run.wrong]
    print(f"{kind}, lasting={lasting}: {nth - 1} runs, {stopped} stopped the store")
    assert not wrong, "\n".join(wrong[:20])
    assert nth > 20
