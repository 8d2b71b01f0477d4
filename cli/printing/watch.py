"""`--watch`: a command that shows something is run again and again, until Ctrl-C.

At a terminal each run takes the place of the one before. In a pipe each is a block of its own, with
an empty line between; with `--json` a document is one line there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aerobee.cli.printing.output import begin_block, say


async def repeat(
    work: Callable[[], Awaitable[int]], seconds: float, explain: Callable[[Exception], str | None]
) -> int:
    """Run `work` each `seconds` until this task is cancelled; the exit code of the last run.

    `explain` says an error that does not end it, such as a broker that is away for a moment; None
    for an error that is raised.
    """
    code = 0
    is_first = True
    try:
        while True:
            begin_block(is_first=is_first)
            is_first = False
            try:
                code = await work()
            except Exception as error:
                if (text := explain(error)) is None:
                    raise
                say(f"aerobee: {text}")
            await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        return code
