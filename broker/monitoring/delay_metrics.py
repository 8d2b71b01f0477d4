"""Metric section about delayed messages, by level."""

from __future__ import annotations

from typing import Protocol

from aerobee.broker.delay.delay import LevelFigures
from aerobee.broker.monitoring.families import Fill, Page


class DelayFigures(Protocol):
    """The part of the delay service that is shown."""

    @property
    def highest_level(self) -> int: ...
    @property
    def put_failures(self) -> int: ...
    def figures(self) -> list[LevelFigures]: ...


class Delays:
    """What waits, what was given out, and how late."""

    def __init__(self, service: DelayFigures) -> None:
        self._service = service

    async def take(self) -> Fill:
        service = self._service
        # All levels from the start: a rate needs the zero before.
        levels = {
            number: LevelFigures(number, 0, 0, 0, 0, 0.0)
            for number in range(1, service.highest_level + 1)
        }
        levels |= {figures.level: figures for figures in service.figures()}
        failures = service.put_failures

        def fill(page: Page) -> None:
            waiting = page.gauge("aerobee_delayed_messages", "Messages that wait", ["level"])
            late = page.gauge(
                "aerobee_delayed_late_seconds",
                "For how long the oldest message that waits has been due",
                ["level"],
            )
            delivered = page.counter(
                "aerobee_delayed_delivered_messages_total", "Messages given out", ["level"]
            )
            passed_over = page.counter(
                "aerobee_delayed_passed_over_messages_total",
                "Messages that cannot be read or given out",
                ["level"],
            )
            for number, figures in sorted(levels.items()):
                level = str(number)
                waiting.add(figures.end - figures.offset, level)
                late.add(figures.late_s, level)
                delivered.add(figures.delivered, level)
                passed_over.add(figures.passed_over, level)
            page.counter(
                "aerobee_delayed_put_failures_total",
                "Times a due message could not be stored and was tried again",
            ).add(failures)

        return fill
