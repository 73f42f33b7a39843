"""The retro of a sprint: feedback, KPIs, analysis, and the report."""

from __future__ import annotations

import re

import msgspec
from msgspec.structs import replace

from caloron.domain.model.feedback import Feedback
from caloron.domain.model.retro_answer import (
    CATEGORIES,
    MOST_IMPROVEMENTS,
    MOST_LINES,
    PRIORITIES,
    SENTIMENTS,
    Insight,
    InsightProblem,
    parse_insight,
)
from caloron.domain.model.snapshots import CommentSnapshot
from caloron.domain.model.sprint import State
from caloron.domain.reporting.kpis import Run, compute_kpis
from caloron.domain.reporting.retro_page import Retro
from caloron.domain.reporting.retro_page import write_retro_report as retro_page
from caloron.domain.reporting.retro_rules import Analysis, Finding, analyze, said_by_model
from caloron.graph.json_text import Json, compact
from caloron.graph.runtime.protocols import Call
from caloron.ports import Model
from caloron.stages.forge_access import open_forge
from caloron.stages.model_answer import UnusableAnswer, answer_with_model
from caloron.stages.values import (
    decode_as,
    decode_feedback,
    decode_kpis,
    decode_state,
    parse_time,
    state_with_feedback,
    to_json,
)
from caloron.store import log

_FEEDBACK_KEY = "caloron_feedback"
_FEEDBACK_BLOCK = re.compile(r"^---\s*\n(.*?)\n---\s*$", re.DOTALL | re.MULTILINE)
_MAX_RAW = 500


def collect_sprint_feedback(inputs: Json) -> Json:
    """Return the feedback of agents in the comments on the issues."""
    with open_forge(inputs) as forge:
        comments = [c for number in _issue_numbers(inputs) for c in forge.comments(number)]
    # Anybody may comment on a public issue; only trusted accounts give feedback.
    feedback = [c for c in comments if f"{_FEEDBACK_KEY}:" in c.body and c.trusted]
    return {"feedback_items": [_feedback_item(comment) for comment in feedback]}


def _issue_numbers(inputs: Json) -> list[int]:
    """Return the numbers in the input, else those of the sprint's tasks."""
    numbers = inputs.get("issue_numbers")
    if numbers is not None:
        return [int(number) for number in numbers]
    if inputs.get("state") is None:
        raise ValueError("issue_numbers: neither they nor the state of a sprint is given")
    return [
        t.links.issue
        for t in decode_state(inputs["state"]).tasks.values()
        if t.links.issue is not None
    ]


def _feedback_item(comment: CommentSnapshot) -> Json:
    common: dict[str, Json] = {
        "issue_number": comment.issue,
        "author": comment.author,
        "created_at": comment.created_at,
    }
    feedback = _parse_feedback(comment.body)
    if feedback is None:
        raw = comment.body[:_MAX_RAW]
        return common | {"is_parsed_yaml": False, "parsed": None, "raw_body": raw}
    return common | {"is_parsed_yaml": True, "parsed": to_json(feedback)}


def _parse_feedback(body: str) -> Feedback | None:
    import yaml

    for block in _FEEDBACK_BLOCK.findall(body):
        try:
            value = yaml.safe_load(block)
            if isinstance(value, dict) and _FEEDBACK_KEY in value:
                return msgspec.convert(value[_FEEDBACK_KEY], Feedback, strict=False)
        except (yaml.YAMLError, msgspec.ValidationError) as error:
            log.info("a feedback block cannot be read", error=error)
    return None


def compute_sprint_kpis(inputs: Json) -> Json:
    """Return the KPIs of a sprint."""
    state = decode_state(inputs["state"])
    started, ended = parse_time(inputs.get("started_at")), parse_time(inputs.get("ended_at"))
    state = _with_times(state, started, ended)
    if state.sprint.ended_at is None:
        raise ValueError("ended_at: a sprint that goes on needs the time until which to count")
    runs: list[Run] = decode_as(inputs.get("runs") or [], list[Run], "runs")
    return to_json(compute_kpis(state, runs, state.sprint.ended_at))


def _with_times(state: State, started: float | None, ended: float | None) -> State:
    """Return the state with these times of the sprint; None keeps a known time."""
    sprint = state.sprint
    if started is not None:
        sprint = replace(sprint, settings=replace(sprint.settings, created_at=started))
    if ended is not None:
        sprint = replace(sprint, ended_at=ended)
    return replace(state, sprint=sprint)


def analyze_sprint_feedback(inputs: Json, call: Call | None = None) -> Json:
    """Return what to learn from a sprint: by a model if one is configured, else by rules."""
    state, kpis = state_with_feedback(inputs), inputs.get("kpis")
    return answer_with_model(
        "analyze_sprint_feedback",
        {
            "The goal": state.sprint.goal,
            "The numbers": kpis or "",
            "The tasks": _task_lines(state),
            "What the agents said": inputs.get("feedback_items") or "Nothing.",
        },
        _analysis_by_model,
        lambda: _analysis_by_rules(state, kpis),
        call=call,
        categories="|".join(CATEGORIES),
        priorities="|".join(PRIORITIES),
        sentiments="|".join(SENTIMENTS),
        most_improvements=MOST_IMPROVEMENTS,
        most_lines=MOST_LINES,
    )


def _task_lines(state: State) -> str:
    lines = (f"- {t.id} ({t.plan.title}): {t.status} {t.reason}" for t in state.tasks.values())
    return "\n".join(map(str.rstrip, lines))


def _analysis_by_model(answer: dict[str, Json], model: Model) -> dict[str, Json]:
    try:
        insight = parse_insight(compact(answer), model.name)
    except InsightProblem as problem:
        raise UnusableAnswer(str(problem)) from problem
    return _analysis_json(insight, said_by_model(insight))


def _analysis_by_rules(state: State, kpis: Json) -> dict[str, Json]:
    analysis = analyze(state, decode_kpis(kpis))
    return _analysis_json(analysis, analysis.improvements)


def _analysis_json(said: Insight | Analysis, findings: tuple[Finding, ...]) -> dict[str, Json]:
    return {
        "themes": list(said.themes),
        "improvements": [finding.description for finding in findings],
        "learnings": list(said.learnings),
        "sentiment": said.sentiment,
        "findings": to_json(findings),
    }


def write_retro_report(inputs: Json) -> Json:
    """Return the retro of a sprint as a page of Markdown."""
    state, kpis = state_with_feedback(inputs), decode_kpis(inputs.get("kpis"))
    if not state.sprint.id:
        raise ValueError("sprint_id: the sprint of the retro is missing")
    started, ended = parse_time(inputs.get("started_at")), parse_time(inputs.get("ended_at"))
    state = _with_times(state, started or None, ended or None)
    retro = Retro(
        state=state,
        kpis=kpis,
        feedback=tuple(decode_feedback(inputs.get("feedback_items"))),
        analysis=_parse_analysis(inputs.get("analysis")) or analyze(state, kpis),
        analysed_by=_model_name(inputs.get("analysis")),
    )
    return {"report_markdown": retro_page(retro)}


def _parse_analysis(value: Json) -> Analysis | None:
    """Decode the answer of `analyze_sprint_feedback`, if the input has one."""
    if value is None:
        return None
    fields = {name: value[name] for name in ("themes", "learnings", "sentiment") if name in value}
    return decode_as(fields | {"improvements": value.get("findings", [])}, Analysis, "analysis")


def _model_name(value: Json) -> str:
    if not isinstance(value, dict) or value.get("written_by") != "model":
        return ""
    usage = value.get("usage") or {}
    return str(usage.get("model") or usage.get("provider") or "a model")
