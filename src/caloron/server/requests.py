"""The requests to the shell; each field is checked before it is used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec

_ID = re.compile(r"[a-z0-9_-]{1,64}")
_PATH = re.compile(r"/?[A-Za-z0-9._@+-][A-Za-z0-9._/@+-]{0,1022}")
_MAX_STATUS = 200
_MAX_TEXT = 64 * 1024
_MAX_INTEGER = (1 << 53) - 1
_MAX_LOG = 1 << 20
WORKTREES = ".caloron/worktrees"

T = TypeVar("T", bound=msgspec.Struct)


class BadRequest(Exception):
    """An invalid request; the message names the field and what was expected."""


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: str
    sprint_id: str
    status: str = ""
    tokens_used: int = 0

    def __post_init__(self) -> None:
        _ids(agent_id=self.agent_id, sprint_id=self.sprint_id)
        _expect(len(self.status) <= _MAX_STATUS, "status", f"up to {_MAX_STATUS} letters")
        _expect(0 <= self.tokens_used <= _MAX_INTEGER, "tokens_used", "a number from 0")


class Spawn(msgspec.Struct, frozen=True, kw_only=True):
    sprint_id: str
    task_id: str
    agent_id: str
    repo: str
    worktree_base: str = WORKTREES
    #: Not in the seeds' API: the prompt of the agent and its role.
    task_description: str = ""
    system_prompt: str = ""
    role: str = ""

    def __post_init__(self) -> None:
        _ids(sprint_id=self.sprint_id, task_id=self.task_id, agent_id=self.agent_id)
        if self.role:
            _ids(role=self.role)
        _path("repo", self.repo)
        _path("worktree_base", self.worktree_base)
        for name in ("task_description", "system_prompt"):
            text = getattr(self, name)
            short = len(text.encode("utf-8", "replace")) <= _MAX_TEXT and "\0" not in text
            _expect(short, name, f"text of up to {_MAX_TEXT} bytes")


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    sprint_id: str
    agent_id: str
    #: Seconds to save its work before it is killed.
    grace_s: float = 20.0

    def __post_init__(self) -> None:
        _ids(sprint_id=self.sprint_id, agent_id=self.agent_id)
        _expect(0 <= self.grace_s <= 300, "grace_s", "seconds from 0 to 300")


class Logs(msgspec.Struct, frozen=True, kw_only=True):
    sprint_id: str
    agent_id: str
    #: `output` is the output of the agent, `harness` that of the program around it.
    stream: str = "output"
    offset: int = 0
    limit: int = 64 * 1024

    def __post_init__(self) -> None:
        _ids(sprint_id=self.sprint_id, agent_id=self.agent_id)
        _expect(self.stream in ("output", "harness"), "stream", "output or harness")
        _expect(0 <= self.offset <= _MAX_INTEGER, "offset", "a number of bytes from 0")
        _expect(1 <= self.limit <= _MAX_LOG, "limit", f"a number of bytes from 1 to {_MAX_LOG}")


def read_body(body: bytes, kind: type[T]) -> T:
    """Decode the JSON body of a request."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise BadRequest(str(error) or "the body is not JSON") from error


def read_query(query: Mapping[str, str], kind: type[T]) -> T:
    """Decode the query of an address."""
    try:
        return msgspec.convert(dict(query), kind, strict=False)
    except msgspec.ValidationError as error:
        raise BadRequest(str(error)) from error


def _ids(**named: str) -> None:
    for name, value in named.items():
        _expect(bool(_ID.fullmatch(value)), name, _ID.pattern)


def _path(name: str, value: str) -> None:
    good = bool(_PATH.fullmatch(value)) and ".." not in value.split("/") and value[0] != "-"
    _expect(good, name, "a path of letters, digits and . _ @ + - /, without `..`")


def _expect(good: bool, name: str, expected: str) -> None:
    if not good:
        raise ValueError(f"`{name}`: expected {expected}")
