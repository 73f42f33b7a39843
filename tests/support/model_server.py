"""A model's Messages API that follows a script of texts, tool calls and errors.

The conversation itself determines its turn, so that several agents can be served at once and a
repeated request gets the same answer.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.http_server import HttpServer, Reply, Request

#: How long a server that does not answer keeps its connection.
_HANG_S = 3600.0
_JSON, _EVENTS = {"Content-Type": "application/json"}, {"Content-Type": "text/event-stream"}


@dataclass(frozen=True)
class Use:
    """A call of one of the agent's own tools."""

    tool: str
    input: dict[str, Any]


def bash(command: str) -> Use:
    return Use("Bash", {"command": command, "description": "a step"})


def write(path: str, content: str) -> Use:
    return Use("Write", {"file_path": path, "content": content})


#: What the model answers in one turn: texts and tool calls.
Turn = Sequence["str | Use"]


@dataclass(frozen=True)
class Fault:
    """An error instead of an answer."""

    status: int = 0
    kind: str = "api_error"
    message: str = "scripted fault"
    headers: dict[str, str] = field(default_factory=dict)
    #: Close the connection in the middle of a stream, never answer, or stop half-way.
    drop: bool = False
    hang: bool = False
    stall: bool = False


def unauthorized() -> Fault:
    return Fault(401, "authentication_error", "invalid x-api-key")


def too_many(retry_after: int, **headers: str) -> Fault:
    reply_headers = {"retry-after": str(retry_after)} | {
        k.replace("_", "-"): v for k, v in headers.items()
    }
    return Fault(
        429, "rate_limit_error", "This request would exceed your rate limit.", reply_headers
    )


def overflow() -> Fault:
    message = "prompt is too long: 250000 tokens > 200000 maximum"
    return Fault(400, "invalid_request_error", message)


DROPPED = Fault(drop=True)
HANGS = Fault(hang=True)
STALLS = Fault(stall=True)


@dataclass
class Rule:
    """The turns of the answer to a prompt that contains all of these words."""

    when: tuple[str, ...]
    turns: Sequence[Turn]
    #: Played before the rule answers at all: one for each request.
    faults: list[Fault] = field(default_factory=list)
    #: Words of the whole request that a rule is for: system prompt and all messages.
    anywhere: tuple[str, ...] = ()


@dataclass(frozen=True)
class Asked:
    """A request as it came, with access to its parts."""

    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def model(self) -> str:
        return str(self.body.get("model", ""))

    @property
    def text(self) -> str:
        """The whole text of the request that the model reads."""
        return "\n".join((_texts(self.body.get("system", "")), *map(_content, self.messages)))

    @property
    def messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = self.body.get("messages", [])
        return messages

    @property
    def prompt(self) -> str:
        """The last message of a person or of Caloron."""
        return _content(self.messages[self._asked_at()])

    @property
    def turn(self) -> int:
        """The number of answers since the prompt."""
        return sum(m["role"] == "assistant" for m in self.messages[self._asked_at() :])

    def _asked_at(self) -> int:
        asked = [n for n, m in enumerate(self.messages) if m["role"] == "user" and not _result(m)]
        return asked[-1] if asked else 0


def _result(message: dict[str, Any]) -> bool:
    content = message["content"]
    return isinstance(content, list) and any(b.get("type") == "tool_result" for b in content)


def _content(message: dict[str, Any]) -> str:
    return _texts(message["content"])


def _texts(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = []
    for block in content:
        if block.get("type") == "text":
            parts.append(str(block["text"]))
        elif block.get("type") == "tool_result":
            parts.append(_texts(block.get("content") or ""))
        elif block.get("type") == "tool_use":
            parts.append(json.dumps(block["input"]))
    return "\n".join(parts)


class ModelServer:
    """A scripted model on a loopback port of its own; use as a context manager."""

    def __init__(self, *rules: Rule, default: str = "Done.") -> None:
        self.rules = list(rules)
        self.default = default
        self.requests: list[Asked] = []
        #: What the model says it used in each answer.
        self.tokens_in, self.tokens_out = 1000, 50
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._server = HttpServer(self._reply)
        self.url, self.port = self._server.url, self._server.port

    def __enter__(self) -> ModelServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.close()

    def _reply(self, request: Request) -> Reply:
        if request.method == "HEAD":
            return Reply()
        if not request.path.startswith("/v1/messages") or "count_tokens" in request.path:
            error = {"type": "not_found_error", "message": ""}
            return Reply({"type": "error", "error": error}, 404, _JSON)
        asked = Asked(request.headers, request.json)
        answer = self._answer(asked)
        if not isinstance(answer, Fault):
            if asked.body.get("stream"):
                return Reply(self._stream(asked, answer), headers=_EVENTS)
            return Reply(self._message(asked) | self._ended(answer), headers=_JSON)
        if answer.hang:
            return Reply(cut="before", before=self._wait)
        if answer.status:
            error = {"type": answer.kind, "message": answer.message}
            return Reply({"type": "error", "error": error}, answer.status, _JSON | answer.headers)
        stream = self._stream(asked, ["This will never be said."])
        if answer.stall:
            return Reply(stream, 200, _EVENTS, "half", midway=self._wait)
        return Reply(stream, 200, _EVENTS, "half")

    def _answer(self, asked: Asked) -> Turn | Fault:
        with self._lock:
            self.requests.append(asked)
            for rule in self.rules:
                if all(word in asked.prompt for word in rule.when) and all(
                    word in asked.text for word in rule.anywhere
                ):
                    if rule.faults:
                        return rule.faults.pop(0)
                    return rule.turns[min(asked.turn, len(rule.turns) - 1)]
        return [self.default]

    def _wait(self) -> None:
        self._closing.wait(_HANG_S)

    def _stream(self, asked: Asked, turn: Turn) -> str:
        events = self._events(asked, turn)
        return "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events)

    def _message(self, asked: Asked) -> dict[str, Any]:
        return {
            "id": f"msg_{time.time_ns()}",
            "type": "message",
            "role": "assistant",
            "model": asked.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": self.tokens_in, "output_tokens": 1},
        }

    def _ended(self, turn: Turn) -> dict[str, Any]:
        tools = any(isinstance(part, Use) for part in turn)
        return {
            "content": [_block(part) for part in turn],
            "stop_reason": "tool_use" if tools else "end_turn",
            "usage": {
                "input_tokens": self.tokens_in,
                "output_tokens": self.tokens_out,
            },
        }

    def _events(self, asked: Asked, turn: Turn) -> Iterator[dict[str, Any]]:
        yield {"type": "message_start", "message": self._message(asked)}
        for index, part in enumerate(turn):
            block = _block(part)
            if isinstance(part, Use):
                empty, delta = (
                    block | {"input": {}},
                    {
                        "type": "input_json_delta",
                        "partial_json": json.dumps(part.input),
                    },
                )
            else:
                empty, delta = block | {"text": ""}, {"type": "text_delta", "text": part}
            yield {"type": "content_block_start", "index": index, "content_block": empty}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        ended = self._ended(turn)
        yield {
            "type": "message_delta",
            "delta": {"stop_reason": ended["stop_reason"], "stop_sequence": None},
            "usage": ended["usage"],
        }
        yield {"type": "message_stop"}


def _block(part: str | Use) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    identity = f"toolu_{time.time_ns()}"
    return {"type": "tool_use", "id": identity, "name": part.tool, "input": part.input}
