"""Claims about what the supervisor's watchdog learns of a flush thread."""

import threading

import pytest

from aerobee.store.disk.files import Clock
from aerobee.store.flush import services as flush


class Blocked(flush.FlushService):
    """A service whose disk does not answer until the test says so."""

    def __init__(self) -> None:
        super().__init__(Clock(), interval_ms=0, thorough_interval_ms=0)
        self.entered = threading.Event()
        self.disk = threading.Event()

    def _tick(self) -> bool:
        self.entered.set()
        return self.disk.wait(30) and False

    def _last(self) -> None:
        pass


def test_stuck_thread_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Blocked()
    service.start()
    assert service.entered.wait(5)
    was_alive = service.alive
    monkeypatch.setattr(flush, "_STUCK_S", 0.0)
    assert (was_alive, service.alive) == (True, False)
    service.disk.set()
    service.stop()


def test_thread_that_ended_is_not_alive() -> None:
    service = Blocked()
    assert not service.alive
    service.start()
    assert service.entered.wait(5)
    service.disk.set()
    service.stop()
    assert not service.alive
