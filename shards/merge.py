"""One page of metrics made of the pages of all shards: each sample gets the label `shard`.

The text format wants the samples of a family together and its HELP and TYPE once, so the pages are
cut into families first; what the scraper gets is then made one family at a time.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_FAMILY: Final = re.compile(rb"(?m)^(?=# HELP )")
_WITH_LABELS: Final = re.compile(rb"(?m)^([a-zA-Z_:][a-zA-Z0-9_:]*)\{")
_WITHOUT: Final = re.compile(rb"(?m)^([a-zA-Z_:][a-zA-Z0-9_:]*) ")
_SAMPLES: Final = re.compile(rb"(?m)^(?!#)")


def merged(pages: Mapping[str, bytes]) -> Iterator[bytes]:
    """The families of all pages, each by its shard's name, in the order of the first that has
    them."""
    families: dict[bytes, dict[str, bytes]] = {}
    for shard, page in pages.items():
        for block in _FAMILY.split(page):
            if block.startswith(b"# HELP "):
                families.setdefault(block.split(b" ", 3)[2], {})[shard] = block
    for blocks in families.values():
        yield _family(blocks)


def _family(blocks: Mapping[str, bytes]) -> bytes:
    parts: list[bytes] = []
    for shard, block in blocks.items():
        match = _SAMPLES.search(block)
        begin = match.start() if match else len(block)
        if not parts:
            parts.append(block[:begin])
        parts.append(_labelled(block[begin:], shard.encode()))
    return b"".join(parts)


def _labelled(samples: bytes, shard: bytes) -> bytes:
    samples = _WITH_LABELS.sub(rb'\g<1>{shard="' + shard + rb'",', samples)
    return _WITHOUT.sub(rb'\g<1>{shard="' + shard + rb'"} ', samples)
