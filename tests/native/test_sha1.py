"""HMAC-SHA1 of the compiled form against hashlib's, by libcrypto itself and by hashlib."""

from __future__ import annotations

import hmac
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.native import sha1
from aerobee.protocol.frames.signature import Signer

SECRETS = st.text(min_size=1, max_size=200).filter(lambda text: "\0" not in text and _is_utf8(text))


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@pytest.fixture(scope="class", params=["libcrypto", "hashlib"])
def _way(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "hashlib":
        sha1.use_hashlib()
    yield request.param
    sha1.use_libcrypto()


@pytest.mark.usefixtures("_way")
class TestBothWays:
    @given(secret=SECRETS, head=st.binary(max_size=300), body=st.binary(max_size=300))
    def test_it_is_hashlibs(self, secret: str, head: bytes, body: bytes) -> None:
        key = sha1.Key(*Signer(secret).blocks)
        for _ in range(2):  # the states are as before
            found = key.signature(head, body)
            assert found == hmac.digest(secret.encode(), head + body, "sha1")

    def test_blocks_have_a_size(self) -> None:
        with pytest.raises(ValueError, match="64 bytes"):
            sha1.Key(b"short", bytes(64))


def test_libcrypto_is_called_itself_where_hashlib_has_it() -> None:
    import _hashlib

    assert sha1.is_direct() is bool(getattr(_hashlib, "__file__", ""))


def test_a_key_made_by_one_way_goes_on_so() -> None:
    blocks = Signer("twelve-letters").blocks
    expected = hmac.digest(b"twelve-letters", b"text", "sha1")
    direct = sha1.Key(*blocks)
    sha1.use_hashlib()
    try:
        for key in (direct, sha1.Key(*blocks)):
            assert key.signature(b"te", b"xt") == expected
    finally:
        sha1.use_libcrypto()
