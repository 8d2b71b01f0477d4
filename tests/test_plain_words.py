"""Every docstring, comment and page can be read once (CONTRIBUTING.md, "Words")."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.plain_words import findings, judge, page_texts, python_texts, texts_of

ROOT = Path(__file__).parents[1]


def kept_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.md", ":!.github"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = (ROOT / line for line in listed.stdout.splitlines())
    return [path for path in paths if path.is_file()]


@pytest.mark.parametrize(
    "text",
    [
        "Of one store.",
        "Behind the last entry.",
        "As `wait`, for answers that were made already.",
        "The same of a file.",
        "What moves the committed mark.",
        "Whoever opens a pipe waits.",
        "A file. Whoever opens it waits.",
        "The record, None if there is none.",
        "At most so many answers.",
        "A record, or one that was cut off.",
        "The queue, if there is one.",
        "Those and the told.",
    ],
)
def test_what_has_to_be_read_twice_is_found(text: str) -> None:
    assert list(judge(text))


@pytest.mark.parametrize(
    "text",
    [
        "The store's marks.",
        "Returns the record, None without one more try.",
        "What is a mark? It says how far the log has got.",
        "Nobody waits so long.",
        "A client that asks for queues gets one queue.",
        "Says `As`, `Of` and `is none` in code only.",
        "The client is told its queues.",
    ],
)
def test_plain_sentences_pass(text: str) -> None:
    assert list(judge(text)) == []


def test_blocks_of_comments_and_docstrings_are_read_whole() -> None:
    source = 'def f():\n    """Does it."""\n    # First.\n    # As second.\n    x = 1  # Of\n'
    assert [text for _, text in python_texts(source)] == ["Does it.", "First. As second."]


def test_paragraphs_and_items_of_a_page_are_read() -> None:
    page = (
        "# Of pages\n\nOne\ntwo.\n\n- three\n  four\n- five\n\n```\nAs code\n```\n| as | table |\n"
    )
    assert [text for _, text in page_texts(page)] == ["One two.", "three four", "five"]


def test_no_sentence_has_to_be_read_twice() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {rule}: {words}"
        for path in kept_files()
        for line, rule, words in findings(texts_of(path))
    ]
    assert wrong == [], "\n".join([f"{len(wrong)} sentences have to be read twice", *wrong[:40]])
