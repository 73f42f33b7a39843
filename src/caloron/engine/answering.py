"""Waits for a forge that does not answer, before a sprint that has begun goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from caloron.domain.outages import Outage, outage_after
from caloron.errors import ForgePaused, ForgeUnavailable
from caloron.git.mirror import Mirror
from caloron.ledger.ledger import Ledger
from caloron.ledger.outages import clear_outage, keep_outage
from caloron.ledger.projects import Project
from caloron.ports import Forge
from caloron.store import log

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0


def wait_until_it_answers(
    project: Project,
    ledger: Ledger,
    forge: Forge,
    sprint: str,
    tell: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Ask it and its git until both answer; `status` shows meanwhile what is waited for."""
    outage: Outage | None = None
    pause = _FIRST_PAUSE_S
    while True:
        try:
            _ask(project, forge)
        except ForgeUnavailable as error:
            log.warning("the forge does not answer; it is asked again", error=error)
            until = error.until if isinstance(error, ForgePaused) else None
            after = outage_after(outage, str(error), until, time.time())
            if after != outage:
                tell(f"{after}; waiting, and going on when it answers (Ctrl-C stops)")
                keep_outage(ledger, sprint, after)
            outage = after
            sleep(pause if until is None else max(until - time.time(), pause))
            pause = min(pause * 2, _LONGEST_PAUSE_S)
            continue
        if outage is not None:
            clear_outage(ledger, sprint)
            tell("the forge answers again")
        return


def _ask(project: Project, forge: Forge) -> None:
    forge.about()
    mirror = Mirror(project.mirror, forge.remote(), forge.main)
    mirror.ensure()
    mirror.fetch_main()


@contextmanager
def nothing_begun() -> Iterator[None]:
    """What is not begun yet does not wait for a forge that is away: it is refused."""
    try:
        yield
    except ForgeUnavailable as error:
        raise ForgeUnavailable(
            f"no sprint was begun: {error}", hint="begin it again when the forge answers"
        ) from error
