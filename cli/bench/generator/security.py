"""Accounts and TLS of the generator: the values that its processes are given, and the objects that
each makes of them once.

The keys reach a process by its standard input alone: its arguments and its environment are there
for others on the machine to see. No repr shows them, and so no message of an error.
"""

import ssl
from typing import Final, NamedTuple

import msgspec

from aerobee.access.errors import JAVA_NAME
from aerobee.client.connections.session import make_tls
from aerobee.client.errors import ClientError
from aerobee.client.options import ClientOptions, OptionsT
from aerobee.protocol.frames.signature import Signer


class Account(NamedTuple):
    """The account for which requests are signed, with the secret key prepared."""

    access_key: str
    signer: Signer


class Secured(NamedTuple):
    """Account and TLS that the connections of one process share; plain ones have neither."""

    account: Account | None = None
    tls: ssl.SSLContext | None = None


class Security(msgspec.Struct, frozen=True, kw_only=True):
    """Signing and encryption, under the names of `ClientOptions`, where each is explained."""

    access_key: str | None = None
    secret_key: str | None = None
    use_tls: bool = False
    trust_store: str | None = None
    certificate: str | None = None
    certificate_key: str | None = None

    def __repr__(self) -> str:
        return f"Security(signed={self.signed}, encrypted={self.encrypted})"

    @property
    def signed(self) -> bool:
        """Whether requests carry a signature."""
        return self.secret_key is not None

    @property
    def encrypted(self) -> bool:
        """Whether connections speak TLS."""
        return self.use_tls

    @property
    def text(self) -> str:
        """Both for people; "" for neither."""
        parts = ("signed", self.signed), ("over TLS", self.encrypted)
        return ", ".join(text for text, is_so in parts if is_so)

    def options(self, kind: type[OptionsT]) -> OptionsT:
        """Options of a client that is secured in the same way."""
        return kind(**msgspec.structs.asdict(self))

    def secured(self) -> Secured:
        """Account and TLS to make connections with. CallerError for files without certificates."""
        account = None
        if self.access_key is not None and self.secret_key is not None:
            account = Account(self.access_key, Signer(self.secret_key))
        return Secured(account, make_tls(self.options(ClientOptions)))


#: Neither.
PLAIN: Final = Security()


def is_refusal(error: ClientError) -> bool:
    """Whether a broker refused the account, or found that it lacks the right."""
    return (error.remark or "").startswith(JAVA_NAME)
