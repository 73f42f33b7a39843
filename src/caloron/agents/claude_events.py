"""The event stream of Claude Code: one JSON object per line, read in constant memory.

What it says is not to be trusted: an agent can write to the output of its own CLI, a kill cuts a
line in half, a cap on the output leaves out the middle. A line that is no event is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeGuard

import msgspec

from caloron.agents.claude_limits import Refusal, trouble_of
from caloron.agents.reports import TEXT_LIMIT, one_line
from caloron.ports import AgentReport, Trouble

SESSION = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_CHUNK = 1 << 18
_LINE_LIMIT = 8 << 20
#: The parts of one message come close together; older ones are not seen again.
_OPEN_MESSAGES = 64
_TOOL_NAMES = 200
_NAME_LENGTH = 80


class _Event(msgspec.Struct, rename={"model_usage": "modelUsage"}):
    """The fields that anybody here looks at; `Any`, so that one odd field spoils no event."""

    type: Any = ""
    subtype: Any = ""
    session_id: Any = ""
    model: Any = ""
    message: msgspec.Raw = msgspec.Raw(b"null")
    error: Any = ""
    error_status: Any = None
    retry_delay_ms: Any = None
    rate_limit_info: Any = None
    result: Any = None
    is_error: Any = False
    errors: Any = None
    api_error_status: Any = None
    num_turns: Any = 0
    stop_reason: Any = ""
    total_cost_usd: Any = None
    usage: Any = None
    model_usage: Any = None
    permission_denials: Any = None


_EVENT = msgspec.json.Decoder(_Event)
_ANY = msgspec.json.Decoder()


def lines(file: Path) -> Iterator[bytes]:
    """The lines of a file; one that is longer than any event is left out, unread."""
    kept, too_long = b"", False
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK):
            *whole, rest = chunk.split(b"\n")
            for part in whole:
                if not too_long and len(kept) + len(part) <= _LINE_LIMIT:
                    yield kept + part
                kept, too_long = b"", False
            # A line of many chunks is put together in steps, so at most 32 of them.
            too_long = too_long or len(kept) + len(rest) > _LINE_LIMIT
            kept = b"" if too_long else kept + rest
    if kept and not too_long:
        yield kept


def parse(line: bytes | str) -> _Event | None:
    """An event, or None for anything else."""
    try:
        return _EVENT.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _message(event: _Event) -> dict[str, Any]:
    try:
        return _dict(_ANY.decode(event.message))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [part for part in content if isinstance(part, dict)] if _is_list(content) else []


class Reading:
    """What the events of one attempt come to."""

    def __init__(self) -> None:
        self._said = ""
        self._tools: dict[str, int] = {}
        self._tokens_in = self._tokens_out = self._tokens_cached = 0
        self._open: dict[str, tuple[int, int, int]] = {}
        self._turns = 0
        self._model = self._session = ""
        self._refusal = Refusal()
        self._result: _Event | None = None

    def take(self, events: Iterable[bytes]) -> Reading:
        for line in events:
            event = parse(line)
            if event is None:
                continue
            if _text(event.session_id) and SESSION.fullmatch(event.session_id):
                self._session = event.session_id
            match event.type:
                case "assistant":
                    self._take_message(event)
                case "result":
                    self._result = event
                case "rate_limit_event":
                    self._refusal.take_limit(_dict(event.rate_limit_info))
                case "system" if event.subtype == "init":
                    self._model = one_line(_text(event.model), _NAME_LENGTH)
                case "system" if event.subtype == "api_retry":
                    delay = _number(event.retry_delay_ms) / 1000
                    self._refusal.take_retry(_count(event.error_status), delay)
        return self

    def _take_message(self, event: _Event) -> None:
        message = _message(event)
        self._refusal.kind = _text(event.error)
        if message.get("model") != "<synthetic>":
            # The provider answered, so what it refused before is over.
            self._refusal.forget_retries()
        identity = _text(message.get("id"))
        if identity not in self._open:
            self._turns += 1
        self._count_tokens(identity, _dict(message.get("usage")))
        spoken = []
        for part in _parts(message):
            if part.get("type") == "text":
                spoken.append(_text(part.get("text")))
            elif part.get("type") == "tool_use":
                self._count_tool(one_line(_text(part.get("name")), _NAME_LENGTH))
        if any(spoken):
            self._said = "\n".join(spoken)[:TEXT_LIMIT]

    def _count_tool(self, name: str) -> None:
        if name in self._tools or len(self._tools) < _TOOL_NAMES:
            self._tools[name] = self._tools.get(name, 0) + 1

    def _count_tokens(self, identity: str, usage: dict[str, Any]) -> None:
        """Each part of a message repeats the usage of the whole: it counts once."""
        before = self._open.pop(identity, (0, 0, 0))
        now = _tokens_of(usage)
        self._tokens_in += now[0] - before[0]
        self._tokens_out += now[1] - before[1]
        self._tokens_cached += now[2] - before[2]
        self._open[identity] = now
        if len(self._open) > _OPEN_MESSAGES:
            del self._open[next(iter(self._open))]

    def report(self, ended_at: float) -> AgentReport:
        """The report of an attempt whose last word came at a time."""
        result = self._result
        if result is None:
            return self._cut_short(ended_at)
        tokens_in, tokens_out, tokens_cached = self._tokens(result)
        text = _text(result.result)[:TEXT_LIMIT] or self._said
        trouble, detail, reset_at = self._trouble(result, text, ended_at)
        cost = result.total_cost_usd
        return AgentReport(
            text=text,
            tools=self._tools,
            turns=_count(result.num_turns) or self._turns,
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            tokens_cached=tokens_cached,
            cost_usd=_number(cost) if cost is not None else None,
            model=self._model,
            session=self._session,
            stop_reason=one_line(
                _text(result.subtype) if trouble else _text(result.stop_reason), _NAME_LENGTH
            ),
            trouble=trouble,
            detail=detail,
            reset_at=reset_at,
        )

    def _cut_short(self, ended_at: float) -> AgentReport:
        """Ended by somebody, or broken down: what it cost was never said."""
        status, known = self._refusal.status, self._refusal.status in (401, 403, 429, 529)
        trouble, reset_at = trouble_of(self._refusal, "", ended_at) if known else ("crash", None)
        after = f" while the model's API answered {status}" if status else ""
        return AgentReport(
            text=self._said,
            tools=self._tools,
            turns=self._turns,
            tokens_in=self._tokens_in,
            tokens_out=self._tokens_out,
            tokens_cached=self._tokens_cached,
            model=self._model,
            session=self._session,
            trouble=trouble,
            detail=f"it ended without a result{after}",
            reset_at=reset_at,
        )

    def _trouble(
        self, result: _Event, text: str, ended_at: float
    ) -> tuple[Trouble, str, float | None]:
        if not result.is_error and result.subtype == "success":
            denied = result.permission_denials
            count = len(denied) if _is_list(denied) else 0
            return "", f"{count} of its tool calls were denied" if count else "", None
        if result.subtype == "error_max_budget_usd":
            return "budget", "the run has used up the budget that it was given", None
        errors = [_text(e) for e in result.errors] if _is_list(result.errors) else []
        told = _text(result.result) or "; ".join(errors) or _text(result.subtype)
        if result.subtype != "success":
            return "crash", one_line(told), None
        self._refusal.status = _count(result.api_error_status)
        trouble, reset_at = trouble_of(self._refusal, text, ended_at)
        return trouble, one_line(told), reset_at

    def _tokens(self, result: _Event) -> tuple[int, int, int]:
        """By model, because the plain usage leaves out answers that were not streamed."""
        by_model = [_dict(used) for used in _dict(result.model_usage).values()]
        if by_model:
            names = ("inputTokens", "cacheCreationInputTokens")
            read = sum(_count(used.get(name)) for used in by_model for name in names)
            written = sum(_count(used.get("outputTokens")) for used in by_model)
            cached = sum(_count(used.get("cacheReadInputTokens")) for used in by_model)
            return read, written, cached
        return _tokens_of(_dict(result.usage))


def readable(line: str) -> str:
    """One line of the stream as a person reads it; empty: not worth showing."""
    event = parse(line)
    if event is None:
        # Half an event is of no use to anybody; a plain message is.
        return "" if line.lstrip().startswith("{") else line.rstrip()
    match event.type:
        case "assistant":
            return "\n".join(filter(None, map(_spoken, _parts(_message(event)))))
        case "user":
            return "\n".join(filter(None, map(_returned, _parts(_message(event)))))
        case "result" if event.is_error:
            return f"failed: {one_line(_text(event.result) or _text(event.subtype))}"
        case "result":
            cost = _number(event.total_cost_usd)
            return f"finished after {_count(event.num_turns)} turns, {cost:.2f} USD"
        case "system" if event.subtype == "api_retry":
            delay = _number(event.retry_delay_ms) / 1000
            answered = f"answered {_count(event.error_status)}" if event.error_status else "failed"
            return f"the model's API {answered}; next try in {delay:.0f} s"
    return ""


def _spoken(part: dict[str, Any]) -> str:
    if part.get("type") == "text":
        return _text(part.get("text")).strip()
    if part.get("type") != "tool_use":
        return ""
    given = _dict(part.get("input"))
    said = next((given[name] for name in _TELLING if isinstance(given.get(name), str)), "")
    return f"{one_line(_text(part.get('name')), _NAME_LENGTH)}: {one_line(said, 200)}".rstrip(": ")


#: Which input of a tool says most in one line.
_TELLING = ("command", "file_path", "pattern", "path", "url", "query", "description", "prompt")


def _returned(part: dict[str, Any]) -> str:
    if part.get("type") != "tool_result":
        return ""
    content = part.get("content")
    if _is_list(content):
        content = " ".join(_text(_dict(one).get("text")) for one in content)
    word = "failed: " if part.get("is_error") else ""
    told = one_line(_text(content), 120)
    return f"  {word}{told}" if told else ""


def _tokens_of(usage: dict[str, Any]) -> tuple[int, int, int]:
    """Tokens read, written, and read again from the cache: each turn reads all before it again."""
    names = ("input_tokens", "cache_creation_input_tokens")
    read = sum(_count(usage.get(name)) for name in names)
    return read, _count(usage.get("output_tokens")), _count(usage.get("cache_read_input_tokens"))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _number(value: Any) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15
    return float(value) if good else 0.0


def _count(value: Any) -> int:
    return int(_number(value))
