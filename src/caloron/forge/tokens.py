"""Reads a forge's token from a variable, a file, or the user's own git credential helper.

A token is never an argument of a process, and never part of an address, a message or a record.
"""

from __future__ import annotations

import os
import stat
import subprocess
import threading
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from caloron.errors import PreconditionFailed
from caloron.store import log
from caloron.store.redact import learn

_HELPER_S = 20.0
#: Where containers put secrets, readable for all inside.
_SECRETS = ("/run/secrets/", "/var/run/secrets/")


class TokenSource(msgspec.Struct, frozen=True):
    """The place of a token; nothing set: the git credential helper."""

    env: str = ""
    file: str = ""

    def __str__(self) -> str:
        if self.env:
            return f"the environment variable {self.env}"
        return f"the file {self.file}" if self.file else "git's credential helper"


class Token:
    """A token that is read when it is first needed and is in no `repr`."""

    def __init__(self, source: TokenSource | str, host: str, scheme: str) -> None:
        self.source = source if isinstance(source, TokenSource) else "the caller"
        self._origin = source
        self._host = host
        self._scheme = scheme
        self._value = ""
        #: Environments of git, which hold it by its name.
        self._lent: dict[str, dict[str, str]] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Token(from {self.source})"

    def value(self) -> str:
        with self._lock:
            if not self._value:
                origin = self._origin
                self._value = origin if isinstance(origin, str) else read_token(origin, self._host)
            return self._value

    def renew(self, refused: str) -> bool:
        """Read the token again, because the forge refused it; True if it is another token now."""
        with self._lock:
            if self._value == refused and isinstance(self._origin, TokenSource):
                try:
                    self._value = read_token(self._origin, self._host)
                except PreconditionFailed as error:
                    log.warning("a refused token cannot be read again", error=error)
                    # It is just being replaced, or gone: the caller reports the refusal.
                    return False
                for name, environment in self._lent.items():
                    environment[name] = self._value
            return self._value != refused

    @property
    def can_change(self) -> bool:
        """True if the source may have another token later; a variable of ours cannot change."""
        return isinstance(self._origin, TokenSource) and not self._origin.env

    def header(self) -> str:
        return f"{self._scheme} {self.value()}"

    def environment(self, name: str) -> dict[str, str]:
        """Return an environment with the token by this name; a renewed token replaces it."""
        value = self.value()
        with self._lock:
            lent = self._lent.setdefault(name, {})
            lent[name] = value
            return lent

    def hidden_in(self, text: str) -> str:
        return text.replace(self._value, "***") if self._value else text


def read_token(source: TokenSource, host: str) -> str:
    """Return the token for a forge at this address; `PreconditionFailed` names what is missing."""
    if source.env:
        value = os.environ.get(source.env, "").strip()
        if not value:
            raise PreconditionFailed(
                f"{source} is empty or not set",
                hint=f"export {source.env}=… with a token of the forge, then try again",
            )
    elif source.file:
        value = _from_file(Path(source.file).expanduser())
    else:
        value = _from_git(host)
    if not value.isascii() or not value.isprintable() or " " in value:
        raise PreconditionFailed(f"{source} has no token: its text has spaces or odd characters")
    learn(source.env or "forge_token", value)
    return value


def _from_file(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        if mode & stat.S_IROTH and not str(path).startswith(_SECRETS):
            raise PreconditionFailed(
                f"the token file {path} can be read by everybody on this machine",
                hint=f"chmod 600 {path}",
            )
        value = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise PreconditionFailed(f"the token file {path} cannot be read: {why}") from None
    if not value:
        raise PreconditionFailed(f"the token file {path} is empty")
    return value


def _from_git(host: str) -> str:
    """Ask the helpers of the user's own git; none of them may ask a person."""
    parts = urlsplit(host)
    ask = f"protocol={parts.scheme}\nhost={parts.netloc}\n\n"
    quiet = {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "", "SSH_ASKPASS": "",
             "GCM_INTERACTIVE": "never"}  # fmt: skip
    environment = {k: v for k, v in os.environ.items() if k != "DISPLAY"} | quiet
    try:
        done = subprocess.run(
            ["git", "-c", "core.askPass=", "credential", "fill"],
            input=ask.encode(),
            capture_output=True,
            env=environment,
            cwd="/",
            timeout=_HELPER_S,
            check=False,
            process_group=0,
        )
        answered = done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("git's credential helper gave no answer", error=error)
        answered = ""
    lines = dict(line.split("=", 1) for line in answered.splitlines() if "=" in line)
    if not lines.get("password"):
        raise PreconditionFailed(
            f"no token for {parts.netloc}: git's credential helpers know none",
            hint="name one with `--token-env VAR`, or a file, or store one: git credential approve",
        )
    return lines["password"]
