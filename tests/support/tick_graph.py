"""The tick as a graph of the catalogue's stages: load, poll, evaluate, health, decide, save."""

from __future__ import annotations

from typing import Any


def _stage(name: str) -> dict[str, Any]:
    return {"op": "Stage", "id": name}


def _after(*names: str) -> dict[str, Any]:
    return {"op": "Sequential", "stages": [_stage(name) for name in names]}


def _let(name: str, bound: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    return {"op": "Let", "bindings": {name: bound}, "body": body}


def core() -> dict[str, Any]:
    """From what was loaded to what one tick came to."""
    body = _stage("build_tick_output")
    body = _let("execute_result", _after("project_all_to_execute", "execute_actions"), body)
    supervised = _after("project_health_to_intervention", "decide_intervention")
    body = _let("supervisor", supervised, body)
    body = _let("health", _stage("check_agent_health"), body)
    body = _let("eval", _after("project_poll_to_eval", "dag_evaluate"), body)
    return _let("poll", _stage("github_poll_events"), body)


def stateful() -> dict[str, Any]:
    """A whole tick of a sprint, which is named by its id alone."""
    loaded = {"op": "Sequential", "stages": [_stage("load_tick_state"), core()]}
    return _let("tick_result", loaded, _stage("save_tick_state"))
