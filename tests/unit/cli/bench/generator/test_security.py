"""Keys and certificates on their way to the generator's processes: used, and never shown."""

from __future__ import annotations

import ssl
from pathlib import Path

import msgspec
import pytest

from aerobee.cli.bench.generator.load import LoadSettings
from aerobee.cli.bench.generator.request_frames import Payload
from aerobee.cli.bench.generator.security import Secured, Security, is_refusal
from aerobee.cli.bench.generator.worker import WorkerSpec
from aerobee.client.errors import CallerError, ClientError
from aerobee.client.options import ProducerOptions
from aerobee.protocol.frames.signature import Signer
from tests.tls import CERTIFICATE, KEY

SECRET = "never-to-be-shown"
ACCOUNT = Security(access_key="user", secret_key=SECRET)
SETTINGS = LoadSettings(in_flight=1, timeout_s=5.0)


def test_no_text_of_it_shows_a_key() -> None:
    spec = WorkerSpec(SETTINGS, Payload(10), [], [], ACCOUNT)
    for one in (ACCOUNT, spec, ACCOUNT.secured()):
        assert SECRET not in f"{one} {one!r}"
    assert repr(ACCOUNT) == "Security(signed=True, encrypted=False)"


def test_a_process_gets_what_was_given_here() -> None:
    spec = WorkerSpec(SETTINGS, Payload(10), [], [], ACCOUNT)
    line = msgspec.json.encode({"do": "load", "spec": msgspec.to_builtins(spec)})
    there = msgspec.convert(msgspec.json.decode(line)["spec"], WorkerSpec)
    assert there.security == ACCOUNT
    account = there.security.secured().account
    assert account is not None
    assert account.access_key == "user"
    assert account.signer.sign(b"x") == Signer(SECRET).sign(b"x")


def test_without_keys_and_tls_nothing_is_secured() -> None:
    assert Security().secured() == Secured(None, None)
    assert (Security().signed, Security().encrypted, Security().text) == (False, False, "")


def test_it_is_told_for_people() -> None:
    assert ACCOUNT.text == "signed"
    assert Security(use_tls=True).text == "over TLS"
    both = msgspec.structs.replace(ACCOUNT, use_tls=True)
    assert (both.text, both.signed, both.encrypted) == ("signed, over TLS", True, True)


def test_clients_are_secured_in_the_same_way() -> None:
    options = msgspec.structs.replace(ACCOUNT, use_tls=True, trust_store="x.pem").options(
        ProducerOptions
    )
    assert (options.access_key, options.secret_key) == ("user", SECRET)
    assert (options.use_tls, options.trust_store) == (True, "x.pem")
    assert options.certificate is None


def test_certificates_are_checked_only_where_some_are_trusted() -> None:
    unchecked = Security(use_tls=True).secured().tls
    checked = Security(use_tls=True, trust_store=str(CERTIFICATE)).secured().tls
    assert unchecked is not None
    assert checked is not None
    assert unchecked.verify_mode is ssl.CERT_NONE
    assert checked.verify_mode is ssl.CERT_REQUIRED
    Security(use_tls=True, certificate=str(CERTIFICATE), certificate_key=str(KEY)).secured()


@pytest.mark.parametrize("name", ["trust_store", "certificate"])
def test_a_file_that_holds_no_certificate_is_the_callers_fault(tmp_path: Path, name: str) -> None:
    file = tmp_path / "empty.pem"
    file.write_text("nothing\n")
    security = msgspec.structs.replace(ACCOUNT, use_tls=True, **{name: str(file)})
    with pytest.raises(CallerError, match=r"empty\.pem") as error:
        security.secured()
    assert SECRET not in str(error.value)


def test_a_refusal_is_known_by_the_name_that_both_brokers_begin_it_with() -> None:
    remark = "org.apache.rocketmq.acl.common.AclException: No acl config for user"
    assert is_refusal(ClientError("x", remark=remark))
    assert not is_refusal(ClientError("x", remark="[TIMEOUT_CLEAN_QUEUE]broker busy"))
    assert not is_refusal(ClientError("x"))
