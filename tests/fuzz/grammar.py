"""Hostile inputs, made from valid requests: wrong values, wrong headers, wrong frames.

Each input is what one peer sends on one connection: mostly one frame, sometimes several, of which
some parts are wrong. Three floors are bent, each with its own chance, so that much gets past the
decoder and reaches the handlers: the fields and the body of a request; the header's text or bytes,
which is written here and not by the product, because the product cannot write a duplicate key; the
two length words and the frame's bytes. Everything follows from the `random.Random` it is given.
"""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgpack

from tests.fuzz.seeds import CLIENT, GROUP, TOPIC, Seed

#: Names and values in the order in which they are sent; a name may be there twice.
Fields: TypeAlias = list[tuple[str, str]]
I32, I64 = 1 << 31, 1 << 63
#: Values in the place of a number.
NUMBERS = (
    "-1", "0", "1", "", "00", "+1", "-0", " 1", "1_000", "1.0", "1e3", "1e400", "NaN", "Infinity",
    "-Infinity", "0x10", "null", "true", str(I32 - 1), str(I32), str(-I32), str(-I32 - 1),
    str(I64 - 1), str(I64), str(-I64), str(-I64 - 1), "9" * 400, "9" * 5_000, "\u0661\u0662",
)  # fmt: skip
#: Values in the place of a name or text.
TEXTS = (
    "", " ", "..", "../../etc/passwd", "a/b", "a.b", "a@b", "\0", "a\nb", "\x01", "\x02", "x" * 127,
    "x" * 128, "x" * 255, "x" * 256, "y" * 40_000, "%LMQ%a", "%RETRY%" + GROUP, "%DLQ%" + GROUP,
    "%RETRY%", "SCHEDULE_TOPIC_XXXX", "TBW102", "RMQ_SYS_TRANS_HALF_TOPIC", "OFFSET_MOVED_EVENT",
    "\ud83d", "\udcff", "\U0001f600", "\u202e", "\ufeff", "e\u0301", "{}", "[]", "null", "true",
    '"', "\\", "${jndi:ldap://x}", "%s%n", "*", "||", "a||" * 2_000, TOPIC, GROUP, CLIENT, "Other",
    "TAGS\x01a\x02", "DELAY\x0199\x02", "DELAY\x01x\x02", "INNER_MULTI_DISPATCH\x01%LMQ%x,..\x02",
    "TRAN_MSG\x01true\x02", "__STARTDELIVERTIME\x019\x02", "KEYS\x01" + "k " * 2_000 + "\x02",
    "\x01\x02\x01\x02", "REAL_TOPIC\x01../x\x02", "UNIQ_KEY\x01\x02UNIQ_KEY\x01a\x02",
    # Texts that a file of accounts would take for more than text, and patterns of addresses.
    "- a: b", "a: |\n  b", "#, #", "&a [*a]", "!!python/object:x", "\u2028\x85", "=PUB", "*.*.*.*",
    "a=PUB|SUB", TOPIC + "=PUB," + TOPIC + "=DENY", "10.1.2.300", "10.1.{2,3}", "::1-20:*",
    "conf/acl/../x.yml",
)  # fmt: skip
#: Bodies that belong to nothing.
BODIES = (
    b"", b"\0", b"\xff" * 64, b"{", b"[]", b"{}", b"null", b"NaN", b'{"a":NaN}', b"1e400",
    b"[" * 10_000, b'{"a":' * 10_000, b"[" * 40 + b"]" * 40, b'{"clientID":"\xed\xa0\x80"}',
    b'{"clientID":"a","clientID":"b"}', b'{"@type":"java.lang.Runtime"}', b'"' + b"\\" * 999,
    b'{"clientID":' + b"9" * 5_000 + b"}", b"\xef\xbb\xbf{}", b"/*" * 5_000, b"{" + b"," * 5_000,
    zlib.compress(bytes(4_000_000)), zlib.compress(b"\x7f\xff\xff\xff" * 100),
    struct.pack(">i", I32 - 1) * 8, struct.pack(">i", -1) * 8, bytes(70_000),
)  # fmt: skip
_LENGTHS = (-I32, -1, 0, 1, 3, 4, 5, 16_777_212, 16_777_213, I32 - 1)
_HEADER_LENGTHS = (0, 1, 3, 0x3FFFF, 0x40000, 0x40001, 0xFFFFFF)
_INTERESTING = (0, 1, 3, 4, 0x22, 0x2C, 0x2F, 0x5C, 0x7B, 0x7D, 0x7F, 0x80, 0xC0, 0xED, 0xFF)
_CODES = (-1, 0, 999, 31_005, 31_999, 32_767, 32_768, 65_536, 200_050, I32 - 1, -I32)
_RAW_VALUES = (
    "null", "true", "1", "-1", "1.5", "[]", "{}", '[{"a":[1,2]}]', "NaN", "1e400", "'x'", "",
    "9" * 400, '"\\ud83d"', '"\\u0000"', '"\\x"', "/* c */1", "[" * 50, '{"a":1,"a":2}', "x",
)  # fmt: skip


class Grammar:
    """Inputs from the requests it is given, by its chance."""

    def __init__(self, rng: random.Random, seeds: Sequence[Seed]) -> None:
        self._rng = rng
        self._seeds = seeds
        self._opaque = 0
        #: How many parts of a request are bent.
        self._bends: Sequence[int] = (0, 1, 1, 1, 2, 3)
        #: The sender's, an ordinal of RocketMQ's releases.
        self._version = 401

    def next(self) -> bytes:
        """One connection's bytes."""
        rng = self._rng
        frames = [self._frame() for _ in range(rng.choice((1, 1, 1, 1, 2, 5)))]
        data = b"".join(frames)
        roll = rng.random()
        if roll < 0.06:
            data = data[: rng.randrange(len(data) + 1)]
        elif roll < 0.12:
            data = self.bent(data)
        return data

    def bent(self, data: bytes, most: int = 6) -> bytes:
        """The bytes with a few of them changed, gone or doubled."""
        rng = self._rng
        changed = bytearray(data or b"\0")
        for _ in range(rng.randint(1, most)):
            position = rng.randrange(len(changed))
            match rng.randrange(5):
                case 0:
                    changed[position] = rng.choice(_INTERESTING)
                case 1:
                    changed[position] ^= 1 << rng.randrange(8)
                case 2 if len(changed) > 9:
                    del changed[position : position + rng.randint(1, 8)]
                case 3:
                    changed[position:position] = rng.randbytes(rng.randint(1, 8))
                case _:
                    changed[position:position] = changed[position : position + rng.randint(1, 20)]
        return bytes(changed)

    # --- the request ----------------------------------------------------------------------------

    def _frame(self) -> bytes:
        rng = self._rng
        seed = rng.choice(self._seeds)
        code, ext, body = seed.code, dict(seed.ext), seed.body
        for _ in range(rng.choice(self._bends)):
            if ext and rng.random() < 0.8:
                self._bend_field(ext)
            else:
                body = self._other_body(body)
        if rng.random() < 0.02:
            code = rng.choice(_CODES)
        elif rng.random() < 0.02:
            code = rng.choice(self._seeds).code  # with another request's fields
        self._opaque += 1
        fields, body = self._presented(ext, body)
        serialization = rng.choice((0, 0, 0, 1, 2))
        write = (self._json, self._binary, self._msgpack)[serialization]
        header = write(code, fields, 2 if rng.random() < 0.05 else 0)
        if rng.random() < 0.05:
            header = self.bent(header, 3)
        return self._framed(serialization, header, body)

    def _presented(self, ext: dict[str, str], body: bytes) -> tuple[Fields, bytes]:
        """The fields in their order, and the body, as they are sent: `signed.py` signs them."""
        return list(ext.items()), body

    def _bend_field(self, ext: dict[str, str]) -> None:
        rng = self._rng
        name = rng.choice(list(ext))
        roll = rng.random()
        is_number = ext[name].lstrip("-").isdigit()
        if roll < 0.08:
            del ext[name]
        elif roll < 0.12:
            ext[rng.choice((*TEXTS, name.upper()))[:300]] = ext[name]
        elif roll < 0.2:
            ext[name] = ext[name][: rng.randrange(len(ext[name]) + 1)] + rng.choice(TEXTS)[:50]
        elif is_number and roll < 0.45:
            ext[name] = str(rng.choice((1, -1)) * rng.randrange(1 << rng.randrange(1, 70)))
        elif is_number == (roll < 0.95):
            ext[name] = rng.choice(NUMBERS)
        else:
            ext[name] = rng.choice(TEXTS)

    def _other_body(self, body: bytes) -> bytes:
        rng = self._rng
        roll = rng.random()
        if roll < 0.25 or not body:
            return rng.choice(BODIES)
        # A body that has grown already is not grown again.
        value = _parsed(body) if roll < 0.8 and len(body) < 2_000 else None
        if value is not None:
            text = json.dumps(self._other_value(value))
            # The text gets the duplicate key, bare word or half surrogate that `json` would not
            # write.
            return text.replace('"@RAW@"', rng.choice(_RAW_VALUES)).encode("utf-8", "surrogatepass")
        if roll < 0.9:
            return self.bent(body)
        return body[: rng.randrange(len(body))]

    def _other_value(self, value: Any) -> Any:
        """The JSON value with one of its parts replaced."""
        rng = self._rng
        if isinstance(value, dict) and value and rng.random() < 0.85:
            name = rng.choice(list(value))
            if rng.random() < 0.1:
                return {key: one for key, one in value.items() if key != name}
            return {**value, name: self._other_value(value[name])}
        if isinstance(value, list) and value and rng.random() < 0.8:
            place = rng.randrange(len(value))
            copies = [self._other_value(value[place])] * (1 if rng.random() < 0.98 else 1_100)
            return value[:place] + copies + value[place + 1 :]
        return rng.choice(
            (
                "@RAW@", "@RAW@", None, True, -1, 0, 1 << 40, 1 << 70, 1.5, [], {}, [value],
                {"a": value}, rng.choice(TEXTS)[:3_000],
            )
        )  # fmt: skip

    # --- the header -----------------------------------------------------------------------------

    def _json(self, code: int, ext: Fields, flag: int) -> bytes:
        rng = self._rng
        fields = [f"{json.dumps(name)}:{json.dumps(text)}" for name, text in ext]
        if fields and rng.random() < 0.15:
            place = rng.randrange(len(fields))
            name = fields[place].split(":")[0]
            other = f"{name}:{rng.choice(_RAW_VALUES)}"
            fields[place:place] = [other]
            if rng.random() < 0.5:
                del fields[place + 1]
        members = [
            f'"code":{code}', f'"flag":{flag}', '"language":"JAVA"', f'"opaque":{self._opaque}',
            '"serializeTypeCurrentRPC":"JSON"', f'"version":{self._version}',
            '"extFields":{' + ",".join(fields) + "}",
        ]  # fmt: skip
        if rng.random() < 0.1:
            place = rng.randrange(len(members))
            name = members[place].split(":")[0]
            members.insert(rng.randrange(len(members)), f"{name}:{rng.choice(_RAW_VALUES)}")
        if rng.random() < 0.3:
            rng.shuffle(members)
        return ("{" + ",".join(members) + "}").encode("utf-8", "surrogatepass")

    def _binary(self, code: int, ext: Fields, flag: int) -> bytes:
        fields = b""
        for name, text in ext:
            key = name.encode("utf-8", "surrogatepass")[:32_767]
            value = text.encode("utf-8", "surrogatepass")
            fields += struct.pack(">h", len(key)) + key + struct.pack(">i", len(value)) + value
        code = (code + 32_768) % 65_536 - 32_768
        fixed = struct.pack(">hBhii", code, 0, self._version, self._opaque, flag)
        remark = self._rng.choice((b"", b"", b"", b"r", b"\xff\xfe"))
        return (
            fixed
            + struct.pack(">i", len(remark))
            + remark
            + struct.pack(">i", len(fields))
            + fields
        )

    def _msgpack(self, code: int, ext: Fields, flag: int) -> bytes:
        packer = msgpack.Packer(unicode_errors="surrogatepass")
        values: list[Any] = [code, 0, self._version, self._opaque, flag, None]
        parts = [*map(packer.pack, values), packer.pack_map_pairs(ext)]
        if self._rng.random() < 0.1:
            parts[self._rng.randrange(7)] = packer.pack(
                self._rng.choice(
                    (None, "x", b"\xff", [], {}, {1: 2}, -1, 1.5, True, {"a": 1}, {"a": None})
                )
            )
        return bytes(packer.pack_array_header(len(parts))) + b"".join(parts)

    # --- the frame ------------------------------------------------------------------------------

    def _framed(self, serialization: int, header: bytes, body: bytes) -> bytes:
        rng = self._rng
        total, header_bytes = 4 + len(header) + len(body), len(header) & 0xFFFFFF
        roll = rng.random()
        if roll < 0.01:
            total = rng.choice(_LENGTHS)
        elif roll < 0.02:
            total += rng.choice((-5, -1, 1, 5))
        elif roll < 0.03:
            header_bytes = rng.choice(
                (*_HEADER_LENGTHS, header_bytes + 1, max(0, header_bytes - 1))
            )
        elif roll < 0.04:
            serialization = rng.choice((0, 1, 2, 3, 9, 127, 255))
        return struct.pack(">iI", total, serialization << 24 | header_bytes) + header + body


def _parsed(body: bytes) -> Any:
    """The body as JSON; None for a body that is no JSON (any more)."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
