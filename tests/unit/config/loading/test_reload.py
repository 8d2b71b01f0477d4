"""A configuration that is read again: its changes, and what the log says of them."""

import logging
import re
from pathlib import Path

import pytest

from aerobee.config.loading.load import load_settings
from aerobee.config.loading.reload import Reload
from aerobee.config.model import SETTINGS


def test_the_last_line_names_what_changed_and_what_needs_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aerobee.config")
    file = tmp_path / "aerobee.toml"
    file.write_text("[limits]\nmax_topics = 100\n")
    settings = load_settings(str(file), environ={}).settings
    reload = Reload(settings, lambda _: load_settings(str(file), environ={}))

    def said(text: str) -> str:
        file.write_text(text)
        caplog.clear()
        loaded = reload.read()
        assert loaded is not None
        reload.take(loaded)
        return caplog.messages[-1]

    assert said("[limits]\nmax_topics = 100\n") == (
        "configuration read again changed=none needs_restart=none"
    )
    both = "[limits]\nmax_topics = 200\nmax_queues = 3000\nconnections = 77\nidle_seconds = 60\n"
    assert said(both) == (
        "configuration read again changed=limits.max_topics,limits.max_queues "
        "needs_restart=limits.idle_seconds,limits.connections"
    )
    # A setting that was taken differs no more; a setting that needs a restart is named until then.
    assert said(both) == (
        "configuration read again changed=none needs_restart=limits.idle_seconds,limits.connections"
    )


def test_the_page_for_operators_lists_what_may_change_and_nothing_else() -> None:
    page = (Path(__file__).parents[4] / "docs" / "operations.md").read_text()
    listed = page.partition("change at once:")[2].partition(", unless")[0]
    assert sorted(re.findall(r"`([^`]+)`", listed)) == sorted(
        setting.full_key for setting in SETTINGS if setting.live
    )
