"""Tells the shell that an agent lives: at once, then again and again, and how it ended."""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from caloron.engine.harness_settings import HarnessSettings
from caloron.errors import UsageError

_PATIENCE_S = 10.0
_LAST_TRIES = 5
_LONGEST_STATUS = 200


class Heartbeats:
    """A thread that tells the shell; a shell that does not answer is no reason to stop an agent."""

    def __init__(
        self, settings: HarnessSettings, every_s: float, tokens: Callable[[], int]
    ) -> None:
        self._settings = settings
        self._every_s = every_s
        self._tokens = tokens
        self._over = threading.Event()
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)
        self._address = urlsplit(settings.shell_url)
        if settings.shell_url and (
            self._address.scheme not in ("http", "https") or not self._address.hostname
        ):
            raise UsageError(
                f"CALORON_SHELL_URL is {settings.shell_url!r}", hint="e.g. http://127.0.0.1:7710"
            )

    def start(self) -> None:
        if self._settings.shell_url:
            self._thread.start()

    def end(self, status: str, tokens: int) -> bool:
        """The last word; a shell that is just being started again hears it a little later."""
        self._over.set()
        if not self._settings.shell_url:
            return False
        self._thread.join(2 * _PATIENCE_S)
        for number in range(_LAST_TRIES):
            if self._tell(status, tokens):
                return True
            time.sleep(0.2 * 2**number)
        return False

    def _run(self) -> None:
        while True:
            self._tell("running", self._tokens())
            if self._over.wait(self._every_s):
                return

    def _tell(self, status: str, tokens: int) -> bool:
        settings = self._settings
        body = {
            "agent_id": settings.agent,
            "sprint_id": settings.sprint,
            "status": status[:_LONGEST_STATUS],
            "tokens_used": tokens,
        }
        try:
            code = self._post(json.dumps(body))
        except (OSError, http.client.HTTPException) as error:
            return self._failed(str(error) or type(error).__name__)
        if code != http.HTTPStatus.OK:
            return self._failed(f"it answers {code}")
        self._failures = 0
        return True

    def _post(self, body: str) -> int:
        secure = self._address.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(str(self._address.hostname), self._address.port, timeout=_PATIENCE_S)
        headers = {
            "Content-Type": "application/json",
            "X-Caloron-Token": self._settings.token,
        }
        try:
            connection.request("POST", f"{self._address.path}/heartbeat", body, headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()

    def _failed(self, why: str) -> bool:
        self._failures += 1
        url = self._settings.shell_url
        sys.stderr.write(f"heartbeat {self._failures} to {url} failed: {why}\n")
        sys.stderr.flush()
        return False
