"""Writes docs/schema: the JSON of `--output json` for each command, and of graphs and stages.

The shapes are written here in short: `s` text, `i` whole number, `n` number, `b` yes or no, a `?`
behind it: or null; `[x]` a list; a dict is an object with exactly these fields, of which those with
a `?` may be missing; `{"*": x}` has any names; `...` lets an object grow.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# As a program, Python finds only the modules beside it.
sys.path.insert(0, str(Path(__file__).parents[1]))

from caloron.cli.output import SCHEMA
from scripts.graph_schema import graph_schema, stage_schema

FILE = Path(__file__).parents[1] / "docs" / "schema" / "caloron.json"

_TYPES = {"s": "string", "i": "integer", "n": "number", "b": "boolean"}

_ISSUE = {"number": "i", "title": "s", "state": "s", "url": "s", "author": "s", "labels": ["s"],
          "sprint_id?": "s", "sprint_number?": "i?", "task?": "s"}  # fmt: skip
_PULL = {"number": "i", "title": "s", "state": "s", "url": "s", "author": "s", "branch": "s",
         "head": "s", "closes": ["i"], "sprint_id?": "s", "sprint_number?": "i?",
         "task?": "s"}  # fmt: skip
_COMMENT = {"id": "i", "author": "s", "body": "s"}
_REVIEW = {"id": "i", "author": "s", "verdict": "s", "head": "s", "body": "s"}
_SPRINT_TASK = {
    "id": "s", "title": "s", "kind": "s", "depends_on": ["s"], "status": "s", "why": "s",
    "reason": "s", "issue_number": "i?", "pr_number": "i?", "review_rounds": "i", "cost_usd": "n",
    "tokens": "i", "started_at": "s?", "completed_at": "s?", "issue_url": "s", "pr_url": "s",
}  # fmt: skip
_SETUP = {
    "name": "s", "path": "s", "repo": "s", "branch": "s", "commit": "s", "forge": "s",
    "framework": "s", "setup": "s", "verify": "s", "found": "s", "network": "s",
    "network_roles": ["s"], "budget_usd": "n",
}  # fmt: skip
_SPRINT = {
    "sprint_id": "s", "number": "i", "project": "s", "goal": "s", "phase": "s", "duration_s": "n",
    "baseline": "s", "verify": "s", "sandboxed": "b", "budget_usd": "n", "cost_usd": "n",
    "estimated_cost_usd": "n", "total_tasks": "i", "completed_tasks": "i", "tasks": [_SPRINT_TASK],
    "forge": "s", "state_file": "s", "next?": "s", "bring": "s",
    "project_setup?": [None, _SETUP],
    "uncommitted?": [None, {"repo": "s", "changed": "i", "untracked": "i"}],
    "estimate?": {"agent_runs": "i", "steps": "i", "cost_usd": "n?", "duration_s": "n?",
                  "sprints": "i", "tasks": "i"},
    "...": "any",
}  # fmt: skip
_RUNNING = {"sprint_id": "s", "number": "i", "task": "s", "role": "s", "pid": "i"}
_STATUS_SPRINT = {
    "sprint_id": "s", "number": "i", "goal": "s", "phase": "s", "baseline": "s", "verify": "s",
    "halted": "s", "budget_usd": "n", "cost_usd": "n", "sandboxed": "b?", "completed_tasks": "i",
    "paused": [{"framework": "s", "what": "s", "until": "s"}], "outage": "s", "declined": "s",
    "failure": "s",
    "total_tasks": "i", "adopted": "b", "tasks": [
        {"id": "s", "status": "s", "reason": "s", "cycle": "i", "slice_it": "b"}],
    "running": [_RUNNING],
}  # fmt: skip
_AGENT = {
    "agent_id": "s", "sprints": "i", "tasks": "i?", "done": "i?", "rounds": "i?",
    "attempts": "i?", "failed_attempts": "i?", "duration_s": "n?", "cost_usd": "n?",
    "tokens": "i?", "roles": ["s"], "frameworks": ["s"], "models": ["s"], "adopted": "b",
}  # fmt: skip
_WORK = {
    "sprint_id": "s", "number": "i", "task": "s", "work": "s", "role": "s", "status": "s",
    "rounds": "i",
    "attempts": "i", "failed_attempts": "i", "duration_s": "n", "cost_usd": "n", "tokens": "i",
    "framework": "s", "model": "s",
}  # fmt: skip
_BY_SPRINT = {
    "sprint_id": "s", "number": "i", "tasks": "i", "done": "i", "rounds": "i", "attempts": "i",
    "failed_attempts": "i", "duration_s": "n", "cost_usd": "n", "tokens": "i",
}  # fmt: skip
_NEED = {
    "kind": "s", "sprint_id": "s", "number": "i", "task": "s", "title": "s", "why": "s",
    "commands": ["s"], "holds": ["s"], "files": ["s"],
}  # fmt: skip
_ATTEMPT = {
    "item": "s", "role": "s", "attempt": "i", "started_at": "s", "ended_at": "s?",
    "duration_s": "n?", "exit_code": "i?", "cost_usd": "n", "tokens": "i", "model": "s",
    "logs": "s",
}  # fmt: skip
_ORG = {"source": "s", "organisation": "s", "is_empty": "b", "rendered": "s", "warnings": ["s"]}
_REMOVED = {"action": "s", "target": "s", "bytes": "i", "kind?": "s"}
_ADVICE = {"category": "s", "priority": "s", "description": "s", "evidence": "s",
           "applies_when": "s"}  # fmt: skip
_TREND = {"metric": "s", "now": "n?", "before": "n?", "n": "i", "direction": "s", "...": "any"}

_FINDING = {"kind": "s", "target": "s", "expected": "s", "found": "s", "repair": "s"}
_OBJECTION = {"path": "s", "kind": "s", "message": "s", "expected?": "s", "found?": "s"}
_CALL = {
    "path": "s", "stage": "s", "stage_id": "s", "step_index": "i", "status": "s", "source": "s",
    "duration_ms": "i", "input_hash": "s", "output_hash": "s?", "failure": "s",
}  # fmt: skip
_TESTS = {"total": "i", "passed": "i", "failed": "i", "skipped": "i", "tests": [
    {"name": "s", "state": "s", "examples": "i", "reasons": ["s"]}]}  # fmt: skip

_CYCLE = {
    "agent": "s", "cycle_number": "i", "last_action": "s", "last_action_result": "s",
    "work_in_progress": "s", "timestamp": "s", "next_target": "s", "status": "s",
    "started_at": "s", "heartbeat": "s", "ended_at": "s", "artefacts": ["s"], "reason": "s",
    "result": "s", "steps": "i", "work_cycles": "i", "holder": [None, {"...": "any"}],
    "previous": [None, {"...": "any"}], "seq": "i",
}  # fmt: skip
_PAST = {
    "number": "i", "status": "s", "result": "s", "started_at": "s", "ended_at": "s", "work": "s",
    "steps": "i", "last_action": "s", "reason": "s",
}  # fmt: skip
_WAKE = {
    "agent": "s", "cycle_number": "i", "outcome": "s", "last_cycle": "i", "last_step": "s",
    "last_step_result": "s", "last_result": "s", "reason": "s", "artefacts": ["s"], "ended_at": "s",
    "work_in_progress": "s", "work_cycles": "i", "slice_it": "b", "next_target": "s", "stop": "s",
    "text": "s",
}  # fmt: skip
_CYCLE_FILES = {"state_file": "s", "log_file": "s"}

#: The `data` of each command by the name that its envelope has.
COMMANDS: dict[str, Any] = {
    "caloron": {"message": "s", "next": "s"},
    "help": {"command": "s", "help": "s"},
    "init": {"name": "s", "path": "s", "repo": "s", "forge": "s", "backend": "s", "framework": "s",
             "active": "b", "...": "any"},
    "config.get": {"key": "s", "value": "any", "detected": "s"},
    "config.set": {"project": "s", "key": "s", "value": "any"},
    "config.list": {"project": "s", "settings": {"*": "any"}, "detected": {"*": "s"}},
    "project.list": {"active": "s?", "projects": [
        {"name": "s", "active": "b", "repo": "s", "backend": "s", "framework": "s",
         "work_dir": "s", "problem": "s"}]},
    "project.switch": {"active": "s"},
    "project.delete": {"deleted": "s", "bytes": "i", "parts": [_REMOVED], "active": "s?"},
    "conventions.init": {"path": "s"},
    "conventions.show": _ORG,
    "conventions.validate": _ORG | {"valid": "b"},
    "doctor": {"project": "s?", "checks": [
        {"check": "s", "ok": "b", "detail": "s", "remedy": "s", "needed": "b"}]},
    "sprint": _SPRINT,
    "resume": _SPRINT,
    "attach": {"project": "s", "running": "b", "sprint_id": "s", "number": "i", "goal": "s",
               "phase": "s", "completed_tasks": "i", "total_tasks": "i"},
    "stop": {"project": "s", "stopped": "b", "sprint_id?": "s", "number?": "i?"},
    "tick": {"skipped": "b", "ended": "b", "sprint_id?": "s", "number?": "i", "phase?": "s",
             "why?": "s", "statuses?": {"*": "s"}, "waits?": {"*": "s"}, "actions_taken?": ["s"],
             "ticks?": "i", "agents?": "i", "outage?": "s", "...": "any"},
    "apply": {"project": "s", "sprint_id": "s?", "number": "i?", "repo": "s", "branch": "s",
             "how": "s", "from": "s", "to": "s", "commits": "i", "files": "i", "added": "i",
             "removed": "i"},
    "discard": {"project": "s", "sprint_id": "s", "number": "i", "discarded_by": "s",
                "cancelled": ["s"], "merged": ["s"], "closed": ["s"], "kept": ["s"], "undo": "s"},
    "status": {"project?": "s", "path?": "s", "repo?": "s", "backend?": "s", "framework?": "s",
               "forge?": {"kind": "s", "url": "s", "account": "s", "reviewer": "s", "reviews": "s"},
               "total_sprints?": "i", "last_sprint?": [None, _STATUS_SPRINT],
               "held_by?": [None, {"pid": "i", "host": "s", "started_at": "s", "sprint_id": "s",
                                   "number": "i?"}],
               "active?": "s?", "projects?": "i", "repository?": "s"},
    "why": {"sprint_id": "s", "number": "i", "stopped": "b", "why": "s", "outage": "s",
            "tasks": [{"id": "s", "status": "s", "why": "s"}], "running": [_RUNNING]},
    "logs": {"sprint_id": "s", "number": "i", "task": "s", "attempts": [
        {"work": "s", "role": "s", "attempt": "i?", "path": "s", "output": "s", "errors": "s",
         "readable": "s"}]},
    "trace": {"sprint_id": "s", "number": "i", "task": "s", "title": "s", "status": "s",
              "reason": "s", "cost_usd": "n",
              "events": [{"at": "s", "type": "s", "work": "s", "what": "s",
                          "payload": {"*": "any"}}],
              "attempts": [_ATTEMPT],
              "pending": [{"kind": "s", "key": "s", "tries": "i", "note": "s"}]},
    "agents.list": {"agents": [_AGENT]},
    "agents.show": _AGENT | {"by_sprint": [_BY_SPRINT], "work": [_WORK],
                             "adopted_versions": [{"*": "any"}], "agent_dir": "s",
                             "about": "s", "cycle": {"number": "i", "status": "s", "...": "any"},
                             "cycles": [_PAST], "queue": [{"*": "any"}], "diary": [{"*": "any"}],
                             "retros": ["s"], "differences": [
                                 {"target": "s", "expected": "s", "found": "s"}]},
    "report": {"sprint_id": "s", "number": "i", "project": "s", "goal": "s", "phase": "s",
               "tasks": [{"id": "s", "title": "s", "status": "s", "cost_usd": "n", "...": "any"}],
               "needs": [_NEED], "problems": [{"...": "any"}],
               "agents": [{"agent": "s", "role": "s", "cost_usd": "n", "...": "any"}],
               "kpis": {"*": "n?"}, "bring": "s", "...": "any"},
    "inbox": {"project": "s", "needs": [_NEED]},
    "history": {"project": "s", "total": "i", "sprints": [
        {"sprint_id": "s", "number": "i", "goal": "s", "phase": "s", "completed_tasks": "i",
         "total_tasks": "i", "started_at": "s?", "duration_s": "n?", "adopted": "b",
         "...": "any"}]},
    "show": {"sprint_id": "s", "number": "i", "goal": "s", "phase": "s", "total_tasks": "i",
             "completed_tasks": "i", "failed_tasks": "i", "cost_usd": "n?", "avg_clarity": "n?",
             "adopted": "b", "tasks": [{"id": "s", "title": "s", "status": "s", "tests": "s",
                                        "cost_usd": "n", "...": "any"}], "...": "any"},
    "metrics": {"project": "s", "total_sprints": "i", "adopted_sprints": "i", "total_tasks": "i",
                "completed_tasks": "i", "failed_tasks": "i", "completion_rate": "n",
                "avg_clarity": "n?",
                "avg_sprint_time_s": "n", "supervisor_events": "i", "tests_passing": "i",
                "top_blockers": [["any"]], "top_tools": [["any"]], "trends": [_TREND],
                "...": "any"},
    "retro": {"sprint_id": "s", "number": "i", "kpis": {"*": "n?"}, "report_markdown": "s",
              "trends": [_TREND],
              "roles": [{"role": "s", "agents": "i", "...": "any"}], "model_problem": "s",
              "model_analysis": [None, {"by": "s", "themes": ["s"], "learnings": ["s"],
                                        "sentiment": "s", "improvements": [_ADVICE]}],
              "...": "any"},
    "issue.list": {"issues": [_ISSUE]},
    "issue.show": _ISSUE | {"body": "s", "comments": [_COMMENT]},
    "issue.comment": {"number": "i", "url": "s", "comment": _COMMENT},
    "issue.close": _ISSUE,
    "issue.reopen": _ISSUE,
    "pr.list": {"pull_requests": [_PULL]},
    "pr.show": _PULL | {"body": "s", "merge_commit": "s", "comments": [_COMMENT],
                        "reviews": [_REVIEW]},
    "pr.diff": {"number": "i", "diff": "s"},
    "pr.review": {"number": "i", "review": _REVIEW},
    "pr.merge": _PULL | {"merge_commit": "s"},
    "pr.close": _PULL,
    "graph.run": {"run_id": "s", "composition_id": "s", "profile": "s", "output": "any",
                  "status": "s", "effects": ["s"], "warnings": ["s"], "spent_cents": "i",
                  "cache": {"hits": "i", "misses": "i"}, "calls": "i", "duration_ms": "i"},
    "graph.check": {"valid": "b", "profile": "s", "composition_id?": "s", "input?": "s",
                    "output?": "s", "effects?": ["s"], "warnings?": ["s"],
                    "errors": [_OBJECTION]},
    "graph.plan": {"composition_id": "s", "effects": ["s"], "warnings": ["s"], "cost_cents": "i",
                   "steps": [{"step": "i", "stage": "s", "after": ["i"]}], "groups": [["i"]],
                   "time_ms_p50": "i?", "tokens_est": "i?", "memory_mb": "i?"},
    "graph.id": {"composition_id": "s", "description": "s"},
    "graph.show": {"composition_id": "s", "description": "s", "drawing": "s", "svg": "s?"},
    "graph.trace": {"runs?": [{"run_id": "s", "started_at": "s", "status": "s",
                               "duration_ms": "i", "composition_id": "s", "description": "s"}],
                    "run_id?": "s", "composition_id?": "s", "description?": "s", "profile?": "s",
                    "started_at?": "s", "duration_ms?": "i", "status?": "s", "stages?": [_CALL],
                    "error?": [None, {"path": "s", "message": "s"}]},
    "graph.test": _TESTS,
    "stage.list": {"count": "i", "stages": [
        {"name": "s", "id": "s", "source": "s", "signature": "s", "effects": ["s"],
         "runs_here": "b", "lifecycle": "s"}]},
    "stage.show": {"source": "s", "runs_here": "b", "spec": {"*": "any"}},
    "stage.run": {"name": "s", "stage_id": "s", "run_id": "s", "output": "any",
                  "duration_ms": "i"},
    "stage.add": {"name": "s", "id": "s", "signature_id": "s", "replaces": ["s"],
                  "examples": "i", "path": "s"},
    "stage.test": _TESTS,
    "noether.register": {"file": "s", "ids": {"*": "s"}, "failures": {"*": "s"}},
    "schedule.run": {"config": "s", "failed": "i", "runs": [
        {"job": "s", "run_id": "s", "ok": "b", "composition_id": "s", "error": "s"}]},
    "schedule.check": {"config": "s", "jobs": "i", "errors": ["s"]},
    "schedule.list": {"config": "s", "jobs": [
        {"job": "s", "cron": "s", "graph": "s", "next": "s?", "last": "s?", "ok": "b?",
         "error": "s"}]},
    "serve": {"url": "s", "root": "s", "pid": "i"},
    "harness.start": {"agent_id": "s", "sprint_id": "s", "task_id": "s", "exit_code": "i",
                      "status": "s", "reason": "s", "tokens_used": "i", "cost_usd": "n?",
                      "head": "s", "output": "s", "told": "b"},
    "state.show": {"project": "s", "files": [{"path": "s", "bytes": "i", "whose": "s",
                                               "what": "s"}],
                   "ledger": {"version": "s", "counts": {"*": "i"}}, "sprint_id": "s?",
                   "number": "i?", "state": [None, {"...": "any"}]},
    "state.verify": {"project": "s", "checked": "i", "deviations": [_FINDING],
                     "notes": [_FINDING], "repaired": ["s"]},
    "state.backup": {"project": "s", "path": "s", "bytes": "i", "created_at": "s",
                     "sprints": {"*": "s"}, "left_out": ["s"],
                     "parts": [{"name": "s", "bytes": "i", "sha256": "s"}]},
    "state.restore": {"project": "s", "path": "s", "was": "s", "sprints": ["s"],
                      "reopened": ["s"], "kept": "s", "aside": ["s"]},
    "agent-state": {"lines": ["any"], "messages": ["s"]},
    "cycle.begin": {"report": _WAKE, "state": _CYCLE, "notices": ["s"]} | _CYCLE_FILES,
    "cycle.act": {"state": _CYCLE, "stop": "s", "notices": ["s"]} | _CYCLE_FILES,
    "cycle.end": {"state": _CYCLE, "notices": ["s"]} | _CYCLE_FILES,
    "cycle.status": {"report": _WAKE, "state": _CYCLE, "alive": "b", "notices": ["s"]}
    | _CYCLE_FILES,
    "cycle.log": {"entries": [{"at": "s", "cycle": "i", "event": "s", "seq": "i", "...": "any"}],
                  "notices": ["s"]}
    | _CYCLE_FILES,
    "cycle.recover": {"state": _CYCLE, "notices": ["s"]} | _CYCLE_FILES,
    "cycle.breadcrumb": {
        "agent": "s", "task": "s", "key": "s", "text": "s", "cycle_number": "i", "work_cycles": "i",
        "slice_it": "b", "written": [None, {"number": "i", "pull": "b", "url": "s", "comment": "i?",
        "section": "b", "done": "i", "refused": ["s"]}]},
    "cycle.stop": {"agent": "s", "stop": "s"},
    "clean": {"project": "s", "removed": [_REMOVED], "bytes": "i",
              "kept": [{"target": "s", "reason": "s"}]},
    "completion": {"shell": "s", "script": "s"},
    "introspect": {"name?": "s", "version?": "s", "acli_version": "s",
                   "commands?": ["#command"]},
    "skill": {"path": "s?", "content": "s"},
    "version": {"tool": "s", "version": "s", "acli_version": "s"},
}  # fmt: skip

_PARAMETER = {"name": "s", "type": "s", "required": "b", "multiple": "b", "choices?": ["s"]}
_DEFINITIONS: dict[str, Any] = {
    "meta": {"duration_ms": "i", "version": "s", "schema": "i"},
    "error": {"code": "s", "message": "s", "hint?": "s"},
    "planned_action": {"action": "s", "target": "s", "...": "any"},
    "command": {
        "name": "s",
        "description": "s",
        "arguments": [_PARAMETER],
        "options": [
            _PARAMETER | {"aliases": ["s"], "metavar": "s?", "description": "s", "default": "any"}
        ],
        "subcommands": ["#command"],
        "idempotent?": "b",
        "examples": ["s"],
    },
}


def expand(shape: Any) -> dict[str, Any]:
    """A shape as JSON Schema."""
    if isinstance(shape, str):
        if shape == "any":
            return {}
        if shape.startswith("#"):
            return {"$ref": f"#/$defs/{shape[1:]}"}
        kind = _TYPES[shape[0]]
        return {"type": [kind, "null"] if shape.endswith("?") else kind}
    if isinstance(shape, list):
        if shape[0] is None:
            return {"anyOf": [{"type": "null"}, expand(shape[1])]}
        return {"type": "array", "items": expand(shape[0])}
    if "*" in shape:
        return {"type": "object", "additionalProperties": expand(shape["*"])}
    fields = {name: value for name, value in shape.items() if name != "..."}
    return {
        "type": "object",
        "properties": {name.rstrip("?"): expand(value) for name, value in fields.items()},
        "required": [name for name in fields if not name.endswith("?")],
        "additionalProperties": "..." in shape,
    }


def _envelope(*required: str, ok: bool, **fields: dict[str, Any]) -> dict[str, Any]:
    """One form of the envelope, with these fields besides the common ones."""
    common = {"command": {"type": "string"}, "meta": {"$ref": "#/$defs/meta"}}
    return {
        "type": "object",
        "properties": {"ok": {"const": ok}, **common, **fields},
        "required": ["ok", "command", *required, "meta"],
        "additionalProperties": False,
    }


def schema() -> dict[str, Any]:
    """The whole file."""
    data: dict[str, Any] = {"type": "object"}
    actions = {"type": "array", "items": {"$ref": "#/$defs/planned_action"}}
    envelopes = {
        "success": _envelope("data", ok=True, data=data),
        "dry_run": _envelope(
            "dry_run", "planned_actions", ok=True, dry_run={"const": True}, planned_actions=actions
        ),
        "failure": _envelope("error", ok=False, data=data, error={"$ref": "#/$defs/error"}),
    }
    by_command = [
        {
            "if": {"properties": {"command": {"const": name}}, "required": ["data"]},
            "then": {"properties": {"data": {"$ref": f"#/$defs/data.{name}"}}},
        }
        for name in COMMANDS
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"What `caloron … --output json` prints: one envelope (`meta.schema` {SCHEMA})",
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in envelopes],
        "allOf": by_command,
        "$defs": {
            **envelopes,
            **{name: expand(shape) for name, shape in _DEFINITIONS.items()},
            **{f"data.{name}": expand(shape) for name, shape in COMMANDS.items()},
        },
    }


def files() -> Iterator[tuple[Path, str]]:
    """Each file with its content."""
    made = {"caloron": schema(), "graph": graph_schema(), "stage": stage_schema()}
    for name, content in made.items():
        yield FILE.with_name(f"{name}.json"), json.dumps(content, indent=1) + "\n"


def stale() -> list[Path]:
    """The files that are out of date."""
    return [f for f, wanted in files() if not f.exists() or f.read_text("utf-8") != wanted]


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(1 if stale() else 0)
    FILE.parent.mkdir(parents=True, exist_ok=True)
    for file, content in files():
        file.write_text(content, "utf-8")
        print(f"wrote {file}")
