"""The event stream of Claude Code: one JSON object per line, read in constant memory.

The stream is not trusted: an agent can write to the output of its own CLI, a kill cuts a line in
half, a cap on the output leaves out the middle. A line that is no event is skipped.

With a subscription the stream has the time at which a limit is reset. With a key it has how long
the CLI waits before its next try, and nothing if that is longer than a minute.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from caloron.agents.clis.base import TEXT_LIMIT, json_event, one_line
from caloron.json_values import count, items, number, table, tables, text
from caloron.ports import AgentReport, Trouble

SESSION = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

#: The parts of one message come close together; older ones do not come again.
_OPEN_MESSAGES = 64
_TOOL_NAMES = 200
_NAME_LENGTH = 80
_EPOCH = re.compile(r"\|\s*(\d{10})\b")
_CLOCK = re.compile(
    r"resets?(?: at)? (?:(?P<month>[A-Z][a-z]{2}) (?P<day>\d{1,2})(?:,| at)? )?"
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d\d))?\s*(?P<half>[ap]m)(?: \((?P<zone>[\w/+-]+)\))?"
)
_QUOTA = re.compile(r"hit your \S*\s?\S*limit|usage limit|limit reached|out of .*usage", re.I)
_OVERFLOW = re.compile(r"prompt is too long|context (window|limit)|context_length", re.I)
_AUTH = re.compile(
    r"invalid (api|bearer)|not logged in|please run /login|failed to authenticate"
    r"|oauth token (has )?(expired|been revoked)|organization has been disabled",
    re.I,
)
_BILLING = re.compile(r"credit balance is too low", re.I)
#: The tokens read, written, and read from the cache, as each turn does again.
_Tokens = tuple[int, int, int]
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"


Event = dict[str, Any]


def _parts(event: Event) -> list[dict[str, Any]]:
    plain = text(event, "message", "content")
    return [{"type": "text", "text": plain}] if plain else tables(event, "message", "content")


class EventReader:
    """Sums up the events of one attempt."""

    def __init__(self) -> None:
        self._last_message = ""
        self._tools: dict[str, int] = {}
        self._tokens: _Tokens = (0, 0, 0)
        self._open_messages: dict[str, _Tokens] = {}
        self._turns = 0
        self._model = self._session = ""
        self._refusal = Refusal()
        self._result: Event | None = None

    def feed(self, events: Iterable[bytes]) -> EventReader:
        for line in events:
            event = json_event(line)
            if SESSION.fullmatch(text(event, "session_id")):
                self._session = text(event, "session_id")
            match event.get("type"):
                case "assistant":
                    self._feed_message(event)
                case "result":
                    self._result = event
                case "rate_limit_event":
                    self._refusal.record_limit(table(event, "rate_limit_info"))
                case "system" if event.get("subtype") == "init":
                    self._model = one_line(text(event, "model"), _NAME_LENGTH)
                case "system" if event.get("subtype") == "api_retry":
                    self._refusal.status = count(event, "error_status")
                    self._refusal.delay_s = number(event, "retry_delay_ms") / 1000
        return self

    def _feed_message(self, event: Event) -> None:
        self._refusal.kind = text(event, "error")
        if text(event, "message", "model") != "<synthetic>":
            # The provider answered, so earlier refusals are over.
            self._refusal.status, self._refusal.delay_s = 0, 0.0
        identity = text(event, "message", "id")
        if identity not in self._open_messages:
            self._turns += 1
        self._count_tokens(identity, table(event, "message", "usage"))
        texts = []
        for part in _parts(event):
            if part.get("type") == "text":
                texts.append(text(part, "text"))
            elif part.get("type") == "tool_use":
                name = one_line(text(part, "name"), _NAME_LENGTH)
                if name in self._tools or len(self._tools) < _TOOL_NAMES:
                    self._tools[name] = self._tools.get(name, 0) + 1
        if any(texts):
            self._last_message = "\n".join(texts)[:TEXT_LIMIT]

    def _count_tokens(self, identity: str, usage: dict[str, Any]) -> None:
        """Count the usage of a message once: each part of the message repeats it."""
        before = self._open_messages.pop(identity, (0, 0, 0))
        now = self._open_messages[identity] = _tokens_of(usage)
        read, written, cached = (
            t + n - b for t, n, b in zip(self._tokens, now, before, strict=True)
        )
        self._tokens = read, written, cached
        if len(self._open_messages) > _OPEN_MESSAGES:
            del self._open_messages[next(iter(self._open_messages))]

    def report(self, ended_at: float) -> AgentReport:
        """Return the report of an attempt whose last output was written at `ended_at`."""
        result = self._result
        answer, turns, tokens = self._last_message, self._turns, self._tokens
        cost, stop_reason = None, ""
        if result is None:
            trouble, detail, reset_at = self._cut_short(ended_at)
        else:
            answer = text(result, "result")[:TEXT_LIMIT] or answer
            turns, tokens = count(result, "num_turns") or turns, _tokens_in(result)
            trouble, detail, reset_at = self._trouble(result, answer, ended_at)
            if result.get("total_cost_usd") is not None:
                cost = number(result, "total_cost_usd")
            stop_reason = text(result, "subtype" if trouble else "stop_reason")
        return AgentReport(
            text=answer,
            tools=self._tools,
            turns=turns,
            tokens_in=tokens[0],
            tokens_out=tokens[1],
            tokens_cached=tokens[2],
            cost_usd=cost,
            model=self._model,
            session=self._session,
            stop_reason=one_line(stop_reason, _NAME_LENGTH),
            trouble=trouble,
            detail=detail,
            reset_at=reset_at,
        )

    def _cut_short(self, ended_at: float) -> tuple[Trouble, str, float | None]:
        """Return the trouble of a run without a result: killed or crashed."""
        status = self._refusal.status
        after = f" while the model's API answered {status}" if status else ""
        detail = f"it ended without a result{after}"
        if status not in (401, 403, 429, 529):
            return "crash", detail, None
        trouble, reset_at = trouble_of(self._refusal, "", ended_at)
        return trouble, detail, reset_at

    def _trouble(
        self, result: Event, answer: str, ended_at: float
    ) -> tuple[Trouble, str, float | None]:
        subtype = text(result, "subtype")
        if not result.get("is_error") and subtype == "success":
            denied = len(items(result, "permission_denials"))
            return "", f"{denied} of its tool calls were denied" if denied else "", None
        if subtype == "error_max_budget_usd":
            return "budget", "the run has used up its budget", None
        errors = map(text, items(result, "errors"))
        message = text(result, "result") or "; ".join(errors) or subtype
        if subtype != "success":
            return "crash", one_line(message), None
        self._refusal.status = count(result, "api_error_status")
        trouble, reset_at = trouble_of(self._refusal, answer, ended_at)
        return trouble, one_line(message), reset_at


def format_line(line: str) -> str:
    """Return one line of the stream for people to read; empty: not worth showing."""
    event = json_event(line)
    if not event:
        # Half an event is not worth showing; a plain message is.
        return "" if line.lstrip().startswith("{") else line.rstrip()
    match event.get("type"):
        case "assistant":
            return "\n".join(filter(None, map(_format_tool_use, _parts(event))))
        case "user":
            return "\n".join(filter(None, map(_format_tool_result, _parts(event))))
        case "result" if event.get("is_error"):
            return f"failed: {one_line(text(event, 'result') or text(event, 'subtype'))}"
        case "result":
            cost = number(event, "total_cost_usd")
            return f"finished after {count(event, 'num_turns')} turns, {cost:.2f} USD"
        case "system" if event.get("subtype") == "api_retry":
            status = count(event, "error_status")
            answered = f"answered {status}" if event.get("error_status") else "failed"
            delay = number(event, "retry_delay_ms") / 1000
            return f"the model's API {answered}; next try in {delay:.0f} s"
    return ""


def _format_tool_use(part: dict[str, Any]) -> str:
    if part.get("type") == "text":
        return text(part, "text").strip()
    if part.get("type") != "tool_use":
        return ""
    summary = next(filter(None, (text(part, "input", key) for key in _SUMMARY_KEYS)), "")
    name = one_line(text(part, "name"), _NAME_LENGTH)
    return f"{name}: {one_line(summary, 200)}".rstrip(": ")


#: The argument of a tool that says most in one line.
_SUMMARY_KEYS = ("command", "file_path", "pattern", "path", "url", "query", "description", "prompt")


def _format_tool_result(part: dict[str, Any]) -> str:
    if part.get("type") != "tool_result":
        return ""
    content = text(part, "content") or " ".join(text(i, "text") for i in items(part, "content"))
    word = "failed: " if part.get("is_error") else ""
    shown = one_line(content, 120)
    return f"  {word}{shown}" if shown else ""


def _tokens_of(usage: Any) -> _Tokens:
    read = count(usage, "input_tokens") + count(usage, "cache_creation_input_tokens")
    return read, count(usage, "output_tokens"), count(usage, "cache_read_input_tokens")


def _tokens_in(result: Event) -> _Tokens:
    """Sum the usage by model: the plain usage leaves out answers that were not streamed."""
    by_model = table(result, "modelUsage").values()
    if not by_model:
        return _tokens_of(result.get("usage"))
    names = ("inputTokens", "cacheCreationInputTokens")
    read = sum(count(used, name) for used in by_model for name in names)
    written = sum(count(used, "outputTokens") for used in by_model)
    cached = sum(count(used, "cacheReadInputTokens") for used in by_model)
    return read, written, cached


class Refusal:
    """Requests that the provider refused, as the stream reports them."""

    def __init__(self) -> None:
        #: The class that the CLI itself gave the last error, such as `rate_limit`.
        self.kind = ""
        #: The HTTP status of the last refusal, 0 if there was none, and the pause after it.
        self.status, self.delay_s = 0, 0.0
        #: A subscription's limit was reached, until then if that is known.
        self.is_quota = False
        self._resets_at: float | None = None

    def record_limit(self, limit: dict[str, Any]) -> None:
        """Record the state of a subscription's limit; only a rejection counts."""
        self.is_quota = limit.get("status") == "rejected"
        at = limit.get("resetsAt")
        self._resets_at = float(at) if self.is_quota and isinstance(at, int | float) else None

    def over_at(self, message: str, ended_at: float) -> float | None:
        """Return when to try again, if the stream or the message has it."""
        if self._resets_at is not None:
            return self._resets_at
        named = _reset_in(message, ended_at)
        return ended_at + self.delay_s if named is None and self.delay_s else named


def trouble_of(refusal: Refusal, message: str, ended_at: float) -> tuple[Trouble, float | None]:
    """Return the class of an error, and until when it lasts if that is known."""
    if refusal.is_quota or _QUOTA.search(message):
        return "quota", refusal.over_at(message, ended_at)
    if refusal.status in (401, 403) or refusal.kind == "authentication_failed":
        return "auth", None
    if refusal.kind == "billing_error" or _BILLING.search(message) or _AUTH.search(message):
        # Waiting does not help: a person has to check the account.
        return "auth", None
    if refusal.status in (429, 529) or refusal.kind in ("rate_limit", "overloaded"):
        return "rate_limit", refusal.over_at(message, ended_at)
    if _OVERFLOW.search(message):
        return "overflow", None
    return "crash", None


def _reset_in(message: str, ended_at: float) -> float | None:
    """Return the time that a message names: `…limit reached|1794808229`, `resets 5:50am (UTC)`."""
    if epoch := _EPOCH.search(message):
        return float(epoch[1])
    named = _CLOCK.search(message)
    if named is None:
        return None
    hour = int(named["hour"]) % 12 + (12 if named["half"] == "pm" else 0)
    minute = int(named["minute"] or 0)
    if minute > 59:
        return None
    now = datetime.fromtimestamp(ended_at, _zone(named["zone"]))
    at = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
    if named["month"] is None:
        return (at if at > now else at + timedelta(days=1)).timestamp()
    try:
        at = at.replace(month=_MONTHS.index(named["month"]) // 3 + 1, day=int(named["day"]))
        return (at if at > now else at.replace(year=at.year + 1)).timestamp()
    except ValueError:
        return None


def _zone(name: str | None) -> tzinfo | None:
    """Return a time zone by its name, or that of this machine."""
    try:
        return ZoneInfo(name) if name else datetime.now().astimezone().tzinfo
    except (ZoneInfoNotFoundError, ValueError):
        return datetime.now().astimezone().tzinfo
