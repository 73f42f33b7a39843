"""The requests to the shell; each field is checked before it is used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

#: The name of an agent, a task or a sprint.
Id = Annotated[str, Meta(pattern=r"\A[a-z0-9_-]{1,64}\Z")]
_Count = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
_PATH = re.compile(r"/?[A-Za-z0-9._@+-][A-Za-z0-9._/@+-]{0,1022}")
_MAX_TEXT = 64 * 1024
_MAX_LOG = 1 << 20

T = TypeVar("T", bound=msgspec.Struct)


class BadRequest(Exception):
    """An invalid request; the message names the field and what was expected."""


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: Id
    sprint_id: Id
    status: Annotated[str, Meta(max_length=200)] = ""
    tokens_used: _Count = 0


class Spawn(msgspec.Struct, frozen=True, kw_only=True):
    sprint_id: Id
    task_id: Id
    agent_id: Id
    repo: str
    worktree_base: str = ".caloron/worktrees"
    #: Not in the seeds' API: the prompt of the agent and its role.
    task_description: str = ""
    system_prompt: str = ""
    role: Annotated[str, Meta(pattern=r"\A[a-z0-9_-]{0,64}\Z")] = ""

    def __post_init__(self) -> None:
        for name in ("repo", "worktree_base"):
            value = getattr(self, name)
            if not _PATH.fullmatch(value) or ".." in value.split("/") or value[0] == "-":
                expected = "a path of letters, digits and . _ @ + - /, without `..`"
                raise ValueError(f"`{name}`: expected {expected}")
        for name in ("task_description", "system_prompt"):
            text = getattr(self, name)
            if len(text.encode("utf-8", "replace")) > _MAX_TEXT or "\0" in text:
                raise ValueError(f"`{name}`: expected text of up to {_MAX_TEXT} bytes")


class Status(msgspec.Struct, frozen=True, kw_only=True):
    #: `1`: all that is known about each agent.
    details: str = ""


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    sprint_id: Id
    agent_id: Id
    #: Seconds to save its work before it is killed.
    grace_s: Annotated[float, Meta(ge=0, le=300)] = 20.0


class Logs(msgspec.Struct, frozen=True, kw_only=True):
    sprint_id: Id
    agent_id: Id
    #: `output` is the output of the agent, `harness` that of the program around it.
    stream: Literal["output", "harness"] = "output"
    offset: _Count = 0
    limit: Annotated[int, Meta(ge=1, le=_MAX_LOG)] = 64 * 1024


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
