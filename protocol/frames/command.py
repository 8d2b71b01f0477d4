"""The envelope of every request and response (protocol/WIRE.md 1).

A `Command` is what a frame means: a code, text fields (`ext`), a body, and `opaque`, by which an
answer finds its request. All that a peer put into extFields, numbers and booleans included, is text
here: the decoder turned it into text. Answers copy the request's opaque and serialization; nothing
else may pick a serialization, so a peer never sees a form it has not used itself.

`Command` is also what the JSON decoder fills directly (see header_decode.py), hence the renamed
fields and their bounds: a header that breaks them takes the tolerant way.
"""

import itertools
from collections.abc import Mapping
from typing import Annotated

import msgspec

from aerobee.protocol.codes import PROTOCOL_VERSION, LanguageName, ResponseCode
from aerobee.protocol.frames.header_encode import HEADER_ENCODERS, JSON, frame

RESPONSE_FLAG = 1
ONEWAY_FLAG = 2
OUR_LANGUAGE: LanguageName = "PYTHON"

Int32 = Annotated[int, msgspec.Meta(ge=-0x80000000, le=0x7FFFFFFF)]

_opaques = itertools.count(1)


class Command(
    msgspec.Struct,
    kw_only=True,
    gc=False,
    forbid_unknown_fields=True,
    rename={"ext": "extFields", "wire_name": "serializeTypeCurrentRPC"},
):
    """One request or response. `ext` is {} when absent; `body` is b"" when absent.

    `serialization` is 0 JSON, 1 ROCKETMQ, 2 MSGPACK. Of the binary form, an empty ext value (which
    Java reads as an absent field) stays an empty string here.
    """

    # In the order clients write them: the decoder guesses the next key by it.
    code: Int32
    ext: dict[str, str] = {}
    flag: Int32 = 0
    language: LanguageName = "JAVA"
    opaque: Int32
    remark: str | None = None
    # Only swallows the JSON member of that name; the frame's own byte decides.
    wire_name: str | None = None
    version: Int32 = 0
    # The decoder overwrites these two whatever the header says.
    body: bytes = b""
    serialization: int = JSON

    @property
    def is_response(self) -> bool:
        """Whether this answers a request of ours."""
        return self.flag & RESPONSE_FLAG != 0

    @property
    def is_oneway(self) -> bool:
        """Whether the sender wants no answer."""
        return self.flag & ONEWAY_FLAG != 0

    def encode(self) -> bytes:
        """The whole frame. ValueError for a code that the binary form cannot carry."""
        # A request without fields has no extFields member, as Java writes it.
        ext = self.ext if self.ext or self.is_response else None
        header = HEADER_ENCODERS[self.serialization](
            self.code, ext, self.flag, self.language, self.opaque, self.remark, self.version
        )
        return frame(self.serialization, header, self.body)


def next_opaque() -> int:
    """A correlation id, unique in this process for 2**31 calls."""
    return next(_opaques) & 0x7FFFFFFF


def make_request(
    code: int,
    ext: Mapping[str, str] | None = None,
    body: bytes = b"",
    *,
    oneway: bool = False,
    serialization: int = JSON,
) -> Command:
    """A request with a fresh opaque."""
    return Command(
        code=int(code),
        ext=dict(ext) if ext else {},
        flag=ONEWAY_FLAG if oneway else 0,
        language=OUR_LANGUAGE,
        opaque=next_opaque(),
        version=PROTOCOL_VERSION,
        body=body,
        serialization=serialization,
    )


def make_response(
    request: Command,
    code: int,
    remark: str | None = None,
    ext: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> Command:
    """The answer to `request` as a Command; `encode_response` is the quicker way to bytes."""
    return Command(
        code=int(code),
        ext=dict(ext) if ext else {},
        flag=RESPONSE_FLAG,
        language=OUR_LANGUAGE,
        opaque=request.opaque,
        remark=remark,
        version=PROTOCOL_VERSION,
        body=body,
        serialization=request.serialization,
    )


def encode_response(
    request: Command,
    code: int,
    remark: str | None = None,
    ext: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> bytes:
    """The whole frame of an answer; `ext` None leaves extFields out, {} writes an empty one."""
    serialization = request.serialization
    header = HEADER_ENCODERS[serialization](
        code, ext, RESPONSE_FLAG, OUR_LANGUAGE, request.opaque, remark, PROTOCOL_VERSION
    )
    return frame(serialization, header, body)


def encode_success(
    request: Command, body: bytes = b"", ext: Mapping[str, str] | None = None
) -> bytes:
    """The whole frame of an answer of success; `ext` as of `encode_response`."""
    return encode_response(request, ResponseCode.SUCCESS, None, ext, body)
