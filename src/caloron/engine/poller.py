"""Looks at the forge at intervals and tells the ledger what is new; it never acts."""

from __future__ import annotations

import threading

from caloron.engine.bell import Bell
from caloron.errors import CaloronError, ForgeError
from caloron.ledger.ledger import SQL, Ledger, tell
from caloron.ports import Forge

_LONGEST_PAUSE_S = 60.0


class Poller:
    """A thread that polls; a failed look means: wait and look again."""

    def __init__(
        self, ledger: Ledger, sprint: str, forge: Forge, bell: Bell, interval_s: float
    ) -> None:
        self._ledger = ledger
        self._sprint = sprint
        self._forge = forge
        self._bell = bell
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="poller", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def poll(self) -> bool:
        """Look once; whether there was anything new."""
        key = f"forge_cursor/{self._sprint}"
        cursor = self._ledger.get(key)
        news = self._forge.poll(cursor)
        if news.cursor == cursor:
            return False
        with self._ledger.db.transaction("poll") as connection:
            told = tell(connection, self._sprint, news.snapshots)
            connection.execute(SQL["put_kv"], {"key": key, "value": news.cursor})
        return told > 0

    def begin(self) -> None:
        """Start a new sprint's watch from now: what happened before it is not its business."""
        main = self._forge.branch(self._forge.main)
        cursor = self._forge.poll("").cursor
        with self._ledger.db.transaction("poll") as connection:
            tell(connection, self._sprint, [main] if main else [])
            values = {"key": f"forge_cursor/{self._sprint}", "value": cursor}
            connection.execute(SQL["put_kv"], values)

    def _run(self) -> None:
        pause = self._interval_s
        while not self._stop.wait(pause):
            try:
                if self.poll():
                    self._bell.ring()
                pause = self._interval_s
            except ForgeError:
                pause = min(pause * 2, _LONGEST_PAUSE_S)
            except CaloronError as error:
                self._bell.fault(error)
                return
