"""A scripted HTTP endpoint on loopback that keeps its requests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tests.support.http_server import HttpServer, Reply, Request


def anthropic(text: str, **more: Any) -> Reply:
    message = {
        "type": "message", "model": "m-1", "stop_reason": "end_turn",
        "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": text}],
        "usage": {"input_tokens": 7, "output_tokens": 3},
    }  # fmt: skip
    return Reply(message | more)


def openai(text: Any, **more: Any) -> Reply:
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"} | more
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    return Reply({"model": "m-1", "choices": [choice], "usage": usage})


def gemini(text: str, **more: Any) -> Reply:
    parts = [{"text": "hm", "thought": True}, {"text": text}]
    candidate = {"content": {"parts": parts}, "finishReason": "STOP"} | more
    usage = {"promptTokenCount": 7, "candidatesTokenCount": 3}
    return Reply({"candidates": [candidate], "usageMetadata": usage, "modelVersion": "m-1"})


class Endpoint(HttpServer):
    """Gives its replies in order, the last one again and again."""

    def __init__(self, *replies: Reply | Callable[[Request], Reply]) -> None:
        self.replies = list(replies)
        self._lock = threading.Lock()
        super().__init__(self._reply)

    def _reply(self, request: Request) -> Reply:
        with self._lock:
            reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return reply if isinstance(reply, Reply) else reply(request)

    def __enter__(self) -> Endpoint:
        return self
