"""Requests that wait keep memory, and it is counted."""

import ast
from pathlib import Path

from aerobee.protocol.frames.command import Command, encode_success
from aerobee.protocol.frames.pending_request import (
    ANSWERABLE_BYTES,
    keep_for_answer,
    request_bytes,
    text_bytes,
)

ROOT = Path(__file__).resolve().parents[3]


def test_a_request_that_waits_keeps_what_its_answer_needs_and_nothing_else() -> None:
    request = Command(
        code=11,
        opaque=7,
        ext={"x": "y" * 200_000},
        body=b"z" * 200_000,
        remark="r" * 200_000,
        wire_name="w" * 200_000,
    )
    answer = encode_success(request)
    assert request_bytes(request) > 800_000
    keep_for_answer(request)
    assert request_bytes(request) < 2 * ANSWERABLE_BYTES
    assert encode_success(request) == answer


def test_keys_fields_and_wide_characters_count() -> None:
    small = Command(code=1, opaque=1)
    many = Command(code=1, opaque=1, ext={str(number): "" for number in range(1000)})
    assert request_bytes(many) - request_bytes(small) > 100_000
    assert text_bytes("€" * 1000) > 3 * text_bytes("e" * 1000)


def test_each_module_that_lets_requests_wait_lets_go_of_what_they_brought() -> None:
    """A table of waiting requests is a class with a field that is a Command."""
    tables = []
    for folder in ("broker", "nameserver", "remoting"):
        for path in (ROOT / folder).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            fields = [
                field
                for one in ast.walk(tree)
                if isinstance(one, ast.ClassDef)
                for field in one.body
                if isinstance(field, ast.AnnAssign) and ast.unparse(field.annotation) == "Command"
            ]
            if fields:
                tables.append(path.relative_to(ROOT).as_posix())
                assert "keep_for_answer(" in path.read_text(encoding="utf-8"), path
    assert "broker/messages/held_pulls.py" in tables
