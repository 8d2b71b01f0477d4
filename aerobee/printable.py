"""Makes texts that a peer chose fit for a terminal and a log.

A name, a remark or a body must not move the cursor, set the terminal's title, or change the order
in which its characters are shown. So control characters (C0, DEL, C1), marks of direction,
separators of lines, invisible format characters and lone halves of surrogate pairs are written as
escapes. Characters that join two others stay (U+200C, U+200D): whole scripts need them, and so do
many emoji.
"""

import re
from typing import Final

# C0, DEL and C1; Arabic letter mark; marks, embeddings, overrides and isolates of direction;
# separators of lines and paragraphs; soft hyphen, separators without width, invisible operators,
# byte order mark, annotations, marks of shorthand and music, tags.
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f"
    "\xad\u180e\u200b\U0001bca0-\U0001bca3\U0001d173-\U0001d17a]"
)


def printable(text: str, keep: str = "") -> str:
    """Returns `text` with an escape for each character that a terminal would obey, or that would
    mislead a reader; characters in `keep` stay."""
    return _UNPRINTABLE.sub(lambda found: found[0] if found[0] in keep else _escape(found[0]), text)


def printable_json(document: str) -> str:
    """Returns the JSON document with JSON's own escapes for such characters; its content is the
    same, and the line breaks of the document stay."""
    return _UNPRINTABLE.sub(lambda found: _json_escape(found[0]), document)


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escape(character: str) -> str:
    if character == "\n":
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
