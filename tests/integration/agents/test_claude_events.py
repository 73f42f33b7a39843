"""The event stream of Claude Code, whole, broken, huge and hostile."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from caloron.agents.clis.base import lines
from caloron.agents.clis.claude import ClaudeCode
from caloron.agents.clis.claude_events import EventReader
from caloron.agents.supervise.transcript import Transcript
from caloron.ports import AgentReport

_SESSION = "0f8fad5b-d9cb-469f-a165-70867728950e"
_NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC).timestamp()


def event(**fields: Any) -> bytes:
    return json.dumps({"session_id": _SESSION} | fields).encode()


def says(*content: dict[str, Any], message: str = "m1", **fields: Any) -> bytes:
    usage = {"input_tokens": 100, "cache_read_input_tokens": 20, "output_tokens": 7}
    fields = {"id": message, "model": "claude", "content": content, "usage": usage}
    return event(type="assistant", message=fields, **fields)


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def tool(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": "t", "name": name, "input": arguments}


def result(**fields: Any) -> bytes:
    return event(**{"type": "result", "subtype": "success", "is_error": False} | fields)


def read(*events: bytes) -> AgentReport:
    return EventReader().feed(events).report(_NOON)


INIT = event(type="system", subtype="init", model="claude-x")


def test_the_parts_of_one_message_are_one_turn_whose_tokens_count_once() -> None:
    report = read(
        INIT,
        says(text("I check.")),
        says(tool("Bash", command="ls")),
        says(text("I am done."), message="m2"),
    )
    assert (report.turns, report.tokens_in, report.tokens_out) == (2, 200, 14)
    assert report.tokens_cached == 40
    assert (report.text, report.tools, report.model) == ("I am done.", {"Bash": 1}, "claude-x")
    assert (report.session, report.trouble, report.cost_usd) == (_SESSION, "crash", None)


def test_the_result_has_the_usage_of_each_model() -> None:
    used = {
        "large": {"inputTokens": 5, "cacheReadInputTokens": 10, "outputTokens": 3},
        "small": {"inputTokens": 1, "cacheCreationInputTokens": 4, "outputTokens": 2},
    }
    fields = {"result": "Yes.", "num_turns": 4, "total_cost_usd": 0.25, "stop_reason": "end_turn"}
    report = read(says(text("so far")), result(modelUsage=used, **fields))
    assert (report.tokens_in, report.tokens_out, report.tokens_cached) == (10, 5, 10)
    assert (report.text, report.turns, report.cost_usd) == ("Yes.", 4, 0.25)
    assert (report.stop_reason, report.trouble) == ("end_turn", "")
    usage = {"input_tokens": 8, "output_tokens": 9}
    assert read(result(usage=usage)).tokens_in == 8


def test_without_a_final_text_the_last_text_counts() -> None:
    report = read(says(text("APPROVED")), says(tool("Bash"), message="m2"), result(result=""))
    assert report.text == "APPROVED"


def test_denied_tools_are_reported_even_if_the_cli_reports_success() -> None:
    report = read(result(result="ok", permission_denials=[{}, {}]))
    assert (report.trouble, report.detail) == ("", "2 of its tool calls were denied")


@pytest.mark.parametrize(
    ("fields", "trouble"),
    [
        ({"api_error_status": 401, "result": "no"}, "auth"),
        ({"api_error_status": 403, "result": "no"}, "auth"),
        ({"result": "Invalid API key · Fix external API key"}, "auth"),
        ({"result": "Not logged in · Please run /login"}, "auth"),
        ({"result": "Credit balance is too low"}, "auth"),
        ({"api_error_status": 429, "result": "Request rejected (429)"}, "rate_limit"),
        ({"api_error_status": 529, "result": "Overloaded"}, "rate_limit"),
        ({"api_error_status": 429, "result": "You've hit your limit · resets 3pm"}, "quota"),
        ({"result": "Claude AI usage limit reached|1794808229"}, "quota"),
        ({"result": "5-hour limit reached ∙ resets 5am"}, "quota"),
        ({"api_error_status": 400, "result": "Prompt is too long"}, "overflow"),
        ({"result": "input exceeds the context window"}, "overflow"),
        ({"subtype": "error_max_budget_usd"}, "budget"),
        ({"subtype": "error_max_turns"}, "crash"),
        ({"subtype": "error_during_execution", "errors": ["No conversation found"]}, "crash"),
        ({"api_error_status": 500, "result": "API Error: 500"}, "crash"),
    ],
)
def test_a_failure_has_a_class_and_a_detail(fields: dict[str, Any], trouble: str) -> None:
    report = read(INIT, result(**{"is_error": True} | fields))
    assert report.trouble == trouble
    assert report.detail
    if trouble not in ("quota", "rate_limit"):
        assert report.reset_at is None


@pytest.mark.parametrize(
    ("message", "at"),
    [
        ("usage limit reached|1794808229", 1794808229.0),
        ("hit your limit · resets 3pm (UTC)", _NOON + 3 * 3600),
        ("hit your limit · resets 12:30pm (UTC)", _NOON + 1800),
        ("hit your limit · resets 11am (UTC)", _NOON + 23 * 3600),
        ("hit your limit · resets 12am (UTC)", _NOON + 12 * 3600),
        (
            "hit your limit · resets 3pm (Europe/Berlin)",
            datetime(2026, 11, 16, 15, tzinfo=ZoneInfo("Europe/Berlin")).timestamp(),
        ),
        (
            "hit your weekly limit · resets Nov 20, 9am (UTC)",
            datetime(2026, 11, 20, 9, tzinfo=UTC).timestamp(),
        ),
        (
            "hit your weekly limit · resets Jan 2 at 9am (UTC)",
            datetime(2027, 1, 2, 9, tzinfo=UTC).timestamp(),
        ),
    ],
)
def test_the_reset_time_is_read_from_the_message_of_the_provider(message: str, at: float) -> None:
    report = read(result(is_error=True, api_error_status=429, result=message))
    assert (report.trouble, report.reset_at) == ("quota", at)


@pytest.mark.parametrize("message", ["resets Feb 30, 3pm (UTC)", "resets 3:75pm", "|1", ""])
def test_an_unreadable_reset_time_is_unknown(message: str) -> None:
    report = read(result(is_error=True, api_error_status=429, result=f"usage limit {message}"))
    assert (report.trouble, report.reset_at) == ("quota", None)


def test_an_unknown_time_zone_counts_as_local() -> None:
    message = "usage limit, resets 3pm (Nowhere/X)"
    report = read(result(is_error=True, api_error_status=429, result=message))
    assert _NOON < (report.reset_at or 0) <= _NOON + 24 * 3600


def test_a_limit_counts_only_if_the_last_request_was_rejected() -> None:
    def limited(status: str) -> bytes:
        fields = {"status": status, "resetsAt": _NOON + 99}
        return event(type="rate_limit_event", rate_limit_info=fields)

    failed = result(is_error=True, result="API Error")
    assert read(limited("allowed_warning"), failed).trouble == "crash"
    assert read(limited("rejected"), limited("allowed"), failed).trouble == "crash"
    rejected = read(limited("rejected"), failed)
    assert (rejected.trouble, rejected.reset_at) == ("quota", _NOON + 99)


def test_a_kill_during_the_wait_for_a_limit_counts_as_the_limit() -> None:
    retry = event(type="system", subtype="api_retry", error_status=429, retry_delay_ms=9000)
    waiting = read(INIT, says(text("I begin.")), retry)
    assert (waiting.trouble, waiting.reset_at) == ("rate_limit", _NOON + 9)
    assert "429" in waiting.detail
    answered = read(INIT, retry, says(text("I begin.")))
    assert (answered.trouble, answered.reset_at) == ("crash", None)


def test_incomplete_invalid_and_huge_lines_are_skipped(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    huge = says(text("x" * (9 << 20)))
    whole = [b"warning: something", INIT, b"\xff\xfe{", b"[1,2]", b"null", huge, b"{" * 100_000]
    log.write_bytes(b"\n".join([*whole, says(text("Kept.")), result(result="half")[:-9]]))
    report = ClaudeCode().read_report(tmp_path)
    assert (report.text, report.trouble, report.turns) == ("Kept.", "crash", 1)
    log.write_bytes(huge)
    assert ClaudeCode().read_report(tmp_path).turns == 0


def test_a_line_of_almost_the_limit_is_read(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"a\n" + b"b" * (8 << 20) + b"\nc\n" + b"d" * ((8 << 20) + 1) + b"\ne\n")
    assert [len(line) for line in lines(log)] == [1, 8 << 20, 1, 1]
    log.write_bytes(b"a\n" + b"b" * (20 << 20) + b"\nc\n" + b"d" * (20 << 20))
    assert list(lines(log)) == [b"a", b"c"]


def test_output_without_its_middle_is_read(tmp_path: Path) -> None:
    transcript = Transcript(tmp_path / "output.log", 4000)
    transcript.add(INIT + b"\n")
    for number in range(200):
        transcript.add(says(text(f"step {number}"), message=f"m{number}") + b"\n")
    transcript.add(result(result="The end.", total_cost_usd=1.5, num_turns=200) + b"\n")
    transcript.finish()
    report = ClaudeCode().read_report(tmp_path)
    assert (report.text, report.cost_usd, report.turns) == ("The end.", 1.5, 200)
    assert report.model == "claude-x"


WRONG = [None, True, -1, 1e300, float("nan"), 10**30, "x", [], {}, [None], {"a": None}]


@pytest.mark.parametrize("odd", WRONG, ids=str)
def test_a_field_of_a_wrong_type_does_not_fail_the_report(odd: Any) -> None:
    names = json.loads(result(result="", errors=[], usage={}, modelUsage={})).keys() | {
        "message",
        "error",
        "rate_limit_info",
        "error_status",
        "retry_delay_ms",
        "total_cost_usd",
        "num_turns",
        "stop_reason",
        "api_error_status",
        "permission_denials",
        "model",
    }
    for kind in ("assistant", "user", "result", "rate_limit_event", "system"):
        for subtype in ("init", "api_retry", "success", "error"):
            fields = dict.fromkeys(names, odd) | {"type": kind, "subtype": subtype}
            for line in (event(**fields), event(**fields | {"is_error": True})):
                report = read(line)
                assert isinstance(report.text, str)
                assert report.tokens_in >= 0
                ClaudeCode.format_line(line.decode())
    parts = {"content": odd, "usage": odd, "id": odd}
    inner = {"content": [odd, {"type": "text", "text": odd}, {"type": "tool_use", "name": odd}]}
    for message in (parts, inner):
        read(event(type="assistant", message=message))


def test_an_invalid_session_id_is_ignored() -> None:
    assert read(event(type="system", session_id="../../etc/passwd")).session == ""


def test_the_readable_transcript_has_texts_and_tool_calls() -> None:
    readable = ClaudeCode.format_line
    assert readable(INIT.decode()) == ""
    assert readable(says(text("I check.\n"), tool("Bash", command="pytest -q")).decode()) == (
        "I check.\nBash: pytest -q"
    )
    assert readable(says(tool("Write", file_path="/workspace/a.py", content="x")).decode()) == (
        "Write: /workspace/a.py"
    )
    assert readable(says(tool("TodoWrite")).decode()) == "TodoWrite"
    back = {"type": "tool_result", "content": [text("1 passed\n" + "." * 500)]}
    shown = readable(event(type="user", message={"content": [back]}).decode())
    assert shown.startswith("  1 passed")
    assert len(shown) < 130
    failed = {"type": "tool_result", "content": "no\x1b[31m", "is_error": True}
    assert readable(event(type="user", message={"content": [failed]}).decode()) == (
        "  failed: no [31m"
    )
    retry = event(type="system", subtype="api_retry", error_status=429, retry_delay_ms=9000)
    assert readable(retry.decode()) == "the model's API answered 429; next try in 9 s"
    assert readable(result(is_error=True, result="Invalid API key").decode()) == (
        "failed: Invalid API key"
    )
    done = result(result="long text", num_turns=3, total_cost_usd=0.126).decode()
    assert readable(done) == "finished after 3 turns, 0.13 USD"
    assert readable("a plain warning\n") == "a plain warning"
    assert readable('{"type": "assis') == ""
