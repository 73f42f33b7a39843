"""A scripted HTTP endpoint on loopback: what it answers is given, what it was asked is kept."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Request:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """An answer; a hook is called before it is sent, such as one that waits."""

    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    before: Callable[[], object] = lambda: None


def anthropic(text: str, **more: Any) -> Reply:
    told = {
        "type": "message", "model": "m-1", "stop_reason": "end_turn",
        "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": text}],
        "usage": {"input_tokens": 7, "output_tokens": 3},
    }  # fmt: skip
    return Reply(told | more)


def openai(text: Any, **more: Any) -> Reply:
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"} | more
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    return Reply({"model": "m-1", "choices": [choice], "usage": usage})


def gemini(text: str, **more: Any) -> Reply:
    parts = [{"text": "hm", "thought": True}, {"text": text}]
    candidate = {"content": {"parts": parts}, "finishReason": "STOP"} | more
    usage = {"promptTokenCount": 7, "candidatesTokenCount": 3}
    return Reply({"candidates": [candidate], "usageMetadata": usage, "modelVersion": "m-1"})


class Endpoint:
    """Gives its replies in order, the last one again and again; use as a context manager."""

    def __init__(self, *replies: Reply | Callable[[Request], Reply]) -> None:
        self.replies = list(replies)
        self.requests: list[Request] = []
        self._lock = threading.Lock()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                told = {name.lower(): value for name, value in self.headers.items()}
                reply = endpoint.reply(Request(self.path, told, body))
                reply.before()
                data = (
                    reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
                )
                try:
                    self.send_response(reply.status)
                    self.send_header("content-length", str(len(data)))
                    for name, value in reply.headers.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:
                    # Whoever asked is gone.
                    self.close_connection = True

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def reply(self, request: Request) -> Reply:
        with self._lock:
            self.requests.append(request)
            found = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return found if isinstance(found, Reply) else found(request)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Endpoint:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
