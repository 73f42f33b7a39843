"""How the threads of the engine reach its loop: something happened, or something went wrong."""

from __future__ import annotations

from caloron.ledger.wake import Wake
from caloron.store import log


class Bell:
    """Rung by whoever has news; a fault makes the loop stop with it."""

    def __init__(self, wake: Wake) -> None:
        self._wake = wake
        self.faults: list[BaseException] = []

    def ring(self) -> None:
        self._wake.poke()

    def fault(self, error: BaseException) -> None:
        log.error("a thread of the engine failed", error=error)
        self.faults.append(error)
        self._wake.poke()
