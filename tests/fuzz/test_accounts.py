"""Hostile requests against a broker and a name server with accounts, in both forms of the hot path.

`signed.py` has the inputs, `doorman.py` says who may pass, `guarded.py` has the oracle. A failing
input is printed in base64 with the run's seed; `python -m tests.fuzz.runs --accounts --seed N` goes
on from there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aerobee.access.control import AccessControl
from aerobee.access.files.account_change import AccountChange
from aerobee.broker.requests.clients import replies
from aerobee.broker.requests.clients import running_consumers as consumers
from aerobee.native.form import chosen
from aerobee.protocol.codes import RequestCode
from aerobee.protocol.frames.command import Command, encode_success
from aerobee.protocol.frames.signature import Signer
from aerobee.remoting.connections.connection import Connection
from tests import campaign
from tests.contract.conftest import FORMS
from tests.crash.power_cuts.recorded_disk import memory_folder
from tests.forms import compiled_form
from tests.fuzz.guarded import ADMIN, SECRETS, SIGNED, Doorkeeper, GuardedTarget
from tests.fuzz.runs import Result, run
from tests.fuzz.seeds import ACCOUNT_SEEDS, BROKER_SEEDS, NAME_SERVER_SEEDS, OWNER

SUITE = "hostile requests, accounts"
#: Administrators among the inputs may have taken it away.
_TOPIC = next(one for one in BROKER_SEEDS if one.code == RequestCode.UPDATE_AND_CREATE_TOPIC)
#: The planted faults are met within this number of inputs.
SOON = 4_000


@pytest.fixture
def folder() -> Iterator[Path]:
    """A store in memory: saves of tables would be most of the time."""
    with memory_folder() as made:
        yield made


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    # The seeds' consumer answers nothing when it is asked.
    for name in ("PASS_ON_S", "STATUS_S"):
        monkeypatch.setattr(consumers, name, 0.05)
    monkeypatch.setattr(replies, "PUSH_S", 0.05)


def _report(result: Result) -> str:
    shown = "\n".join(result.wrong)
    return f"{len(result.wrong)} of {result.inputs} inputs are answered wrongly:\n{shown}"


async def test_administrators_are_served_with_each_seed(folder: Path) -> None:
    """Otherwise what is bent would be refused for another reason first."""
    async with GuardedTarget(folder) as target:
        assert target.codes["broker"] == {int(one.code) for one in BROKER_SEEDS + ACCOUNT_SEEDS}
        for port, seeds in (("broker", ACCOUNT_SEEDS), ("name server", NAME_SERVER_SEEDS)):
            for seed in seeds:
                answer = await target.ask(seed, port=port)
                assert "AclException" not in (answer.remark or ""), (seed, answer.remark)
                if port == "broker":
                    assert answer.code == 0, (seed, answer.remark)


async def _run(folder: Path, seed: int, count: int) -> tuple[Result, int]:
    """Run it; returns also the number of reads of which the compiled form has served something."""
    async with GuardedTarget(folder) as target:
        await target.furnish()
        result = await run(Doorkeeper(target), seed, count, plan=SIGNED)
        short_cuts = target.short_cuts
        # Accounts with rights are served as before.
        await target.put_back()
        await target.ask(_TOPIC)
        for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.GET_MAX_OFFSET):
            honest = next(one for one in BROKER_SEEDS[4:] if one.code == code)
            answer = await target.ask(honest, OWNER)
            assert answer.code == 0, f"seed {seed}: {answer.remark}"
        return result, short_cuts


@pytest.mark.parametrize("form", FORMS)
async def test_nobody_gets_past_the_table_of_rights(
    folder: Path, seed: int, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if form == "off":
        monkeypatch.setenv("AEROBEE_NATIVE", "off")
    result, short_cuts = await _run(folder, seed, campaign.size(SUITE) // len(FORMS))
    print(f"seed {seed}, {form}: {result.inputs} inputs, answers {dict(result.answers)}")
    campaign.note(
        SUITE,
        result.inputs,
        wrong=len(result.wrong),
        answers=result.answered,
        carried_out=result.answers[0],
        reads_served_by_the_compiled_form=short_cuts,
    )
    if form != "off" and chosen() is not None:
        assert short_cuts > result.inputs / 200
    # Some are let in, and most are not.
    assert 0.1 < result.answers[0] / result.answered < 0.6
    assert not result.wrong, _report(result)


def _believes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Signer, "has_signed", lambda *_: True)


def _asks_no_right(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AccessControl, "_judge", lambda *_: iter(()))


def _lets_the_short_cut_in(patch: pytest.MonkeyPatch) -> None:
    compiled_form()
    patch.setattr(AccessControl, "may", lambda *_: True)


def _logs_what_it_is_given(patch: pytest.MonkeyPatch) -> None:
    put = AccountChange.put

    def saying(change: AccountChange, given: dict[str, object]) -> None:
        logging.getLogger("aerobee.access").info("account %s", given)
        put(change, given)

    patch.setattr(AccountChange, "put", saying)


def _writes_and_forgets(patch: pytest.MonkeyPatch) -> None:
    """A change that is in the file, and not in force."""
    patch.setattr(AccessControl, "put_in_force", lambda *_: None)


def _shows_a_secret(_connection: Connection, command: Command) -> bytes:
    return encode_success(command, ext={"version": SECRETS[ADMIN]})


FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "a signature is believed": _believes,
    "a right is not asked for": _asks_no_right,
    "the compiled form lets everybody in": _lets_the_short_cut_in,
    "the log holds a secret": _logs_what_it_is_given,
    "a change is not put in force": _writes_and_forgets,
}


@pytest.mark.parametrize("control", [*FAULTS, "an answer holds a secret"])
async def test_a_planted_fault_is_caught(
    folder: Path, seed: int, control: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if control in FAULTS:
        FAULTS[control](monkeypatch)
    async with GuardedTarget(folder) as target:
        await target.furnish()
        if control not in FAULTS:
            target.break_router(RequestCode.GET_BROKER_CLUSTER_ACL_INFO, _shows_a_secret)
        result = await run(Doorkeeper(target), seed, SOON, stop_at=1, plan=SIGNED)
    campaign.note_control(SUITE, control, bool(result.wrong), 1)
    assert result.wrong, f"seed {seed}: {control}, and nothing was seen in {result.inputs} inputs"
