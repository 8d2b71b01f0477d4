"""Inputs that coverage leads: atheris on the parsers of what peers and disks hold.

    python -m tests.fuzz.guided -runs=100000 -seed=7 FOLDER

The arguments are libFuzzer's. The first byte of an input chooses the parser; any error of a parser
that does not say whose fault the input is ends the run, and the input is printed. With `--planted`
before them a parser has a fault that must be found: the negative control.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["aerobee.protocol", "aerobee.nameserver.bodies"]):
    from aerobee.nameserver.bodies import read_data_version, read_registration, read_topics
    from aerobee.protocol.bodies.clients import CheckClientConfig, HeartbeatData, LockBatch
    from aerobee.protocol.errors import BadRequest, CorruptRecord
    from aerobee.protocol.frames.fastjson import JsonError, loads
    from aerobee.protocol.frames.frame import FrameDecoder
    from aerobee.protocol.headers.stages import decode_chunk, decode_names, decode_parts
    from aerobee.protocol.message.batch import decode_batch
    from aerobee.protocol.message.properties import decode_properties
    from aerobee.protocol.message.record_check import CHECK_BODY, check_record, scan_records

from tests.fuzz.runs import corpus


def _frames(data: bytes) -> None:
    whole, single = FrameDecoder(), FrameDecoder()
    commands = whole.feed(data)
    others = [one for place in range(len(data)) for one in single.feed(data[place : place + 1])]
    assert repr(commands) == repr(others)
    assert (whole.failed is None) == (single.failed is None)


def _records(data: bytes) -> None:
    for one in scan_records(data, 0, 0, len(data), CHECK_BODY):
        check_record(data, one[0], one[0], len(data), CHECK_BODY)
    check_record(data, 0, 0, len(data), CHECK_BODY)


def _registration(data: bytes) -> None:
    compressed = data[:1] == b"\x78"
    body = read_registration(data, compressed=compressed, max_inflated_bytes=100_000)
    read_topics(body.topics)


def _planted(data: bytes) -> None:
    FrameDecoder().feed(data)
    if data[4:5] == b"\x01" and data[:2] == b"\0\0":
        raise ZeroDivisionError("planted")


PARSERS: tuple[Callable[[bytes], object], ...] = (
    _frames, _records, _registration, decode_batch, decode_chunk, decode_parts, decode_names,
    HeartbeatData.parse, LockBatch.parse, CheckClientConfig.parse, read_data_version, loads,
    decode_properties,
)  # fmt: skip
#: Errors that are the input's fault.
_OWNED = (BadRequest, CorruptRecord, JsonError)


def one_input(data: bytes) -> None:
    """Run one input; libFuzzer calls this."""
    if not data:
        return
    parser = _planted if "--planted" in sys.argv else PARSERS[data[0] % len(PARSERS)]
    try:
        parser(data[1:])
    except _OWNED:
        return
    except UnicodeDecodeError:
        if parser is not decode_properties:  # its callers have checked the text
            raise


def main() -> None:
    folder = Path(sys.argv[-1])
    folder.mkdir(exist_ok=True)
    for number, (_, data) in enumerate(corpus()):
        for place in range(len(PARSERS) if number % 20 == 0 else 1):
            (folder / f"{number}-{place}").write_bytes(bytes((place,)) + data)
    atheris.Setup([one for one in sys.argv if one != "--planted"], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
