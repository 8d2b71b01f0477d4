"""Signatures as brokers with access control compute them (protocol/WIRE.md 7.1)."""

import base64
import hashlib
import hmac

from aerobee.protocol.frames.signature import Signer, signed, signed_values


def expected(content: bytes, secret_key: str) -> str:
    return base64.b64encode(hmac.new(secret_key.encode(), content, hashlib.sha1).digest()).decode()


def test_values_are_signed_in_the_order_of_their_keys_then_the_body() -> None:
    fields = signed({"topic": "t", "b": "2", "Zone": "z"}, b"body", "the-key", "secret")
    # Capital letters sort first: AccessKey, Zone, b, topic.
    assert fields["Signature"] == expected(b"the-keyz2tbody", "secret")
    assert fields["AccessKey"] == "the-key"


def test_values_that_are_put_together_already_have_the_same_signature() -> None:
    fields = {"topic": "t\u00fc", "b": "2", "Signature": "of another", "AccessKey": "the-key"}
    assert signed_values(fields) == "the-key2t\u00fc".encode()
    signature = Signer("secret").sign(signed_values(fields) + b"body")
    assert signature.decode() == Signer("secret").signature(fields, b"body")


def test_the_signature_itself_is_not_signed() -> None:
    fields = signed({"a": "\u00fc"}, b"", "key", "secret")
    assert Signer("secret").signature(fields, b"") == fields["Signature"]
    assert Signer("other").signature(fields, b"") != fields["Signature"]
