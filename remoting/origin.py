"""The process that a connection, a thread or an id belongs to.

fork() copies what a program has in memory and none of its threads, while both processes go on with
the same sockets. So whoever holds one of these remembers its process and looks before using it:
threads that are not there would be waited for, two processes would write into one stream, and two
clients would have one id.
"""

import os


class Origin:
    """The process in which this was made."""

    __slots__ = ("_forks", "_process")

    # How often this process and those before it were forked: to ask for the process's number is a
    # system call, and clients look with each message.
    forks = 0

    def __init__(self) -> None:
        self._process = os.getpid()
        self._forks = Origin.forks

    @property
    def is_elsewhere(self) -> bool:
        """Whether this is another process than then: a child of it, by fork()."""
        return Origin.forks != self._forks

    def inherited(self, what: str) -> str:
        """The sentence that says so of something, such as "the client"."""
        return (
            f"{what} was opened in process {self._process} and came here, to process "
            f"{os.getpid()}, by fork(): it does not work here; open one of this process's own"
        )


def _forked() -> None:
    Origin.forks += 1


os.register_at_fork(after_in_child=_forked)
