"""Requests to the scrub: segments in which a read found damage, and whole passes.

Threads: any may ask; the scrub takes.
"""

import threading
from collections import deque

from aerobee.store.segments.mapped_file import MappedFile
from aerobee.store.segments.mapped_file_queue import MappedFileQueue


class ScrubRequests:
    """The requests to the scrub of one store, which may have none: then nobody takes them."""

    def __init__(self, segments: MappedFileQueue) -> None:
        self._segments = segments
        # Segments asked for, by their beginnings.
        self._asked: deque[int] = deque()
        self.pass_asked = False
        #: Ends the scrub's wait for something to do.
        self.woken = threading.Event()
        #: Whether nothing is being read, nor was anything asked for. The scrub's to set.
        self.idle = False

    def ask(self, log_offset: int) -> None:
        """Have the segment of `log_offset` read next."""
        segment = self._segments.find(log_offset)
        if segment is not None and segment.start not in self._asked:
            self.idle = False
            self._asked.append(segment.start)
            self.woken.set()

    def ask_pass(self) -> None:
        """Have the whole log read once more, soon."""
        self.idle = False
        self.pass_asked = True
        self.woken.set()

    def take(self) -> MappedFile | None:
        """The segment to read now; None if none was asked for."""
        while self._asked:
            segment = self._segments.find(self._asked.popleft())
            if segment is not None:
                return segment
        return None

    def wait(self, seconds: float) -> None:
        """Wait so long, or until something is asked for."""
        self.idle = not self._asked and not self.pass_asked
        self.woken.wait(seconds)
        self.idle = False
