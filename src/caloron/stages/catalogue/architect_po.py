"""Components and risks of a goal: by a model where one is configured, else by rules."""

from __future__ import annotations

import re

from caloron.graph.jsontext import Json
from caloron.graph.protocols import Call
from caloron.ports import Model
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.with_model import Unusable, written

_MOST = 5
_MOST_BY_MODEL = 20
_NAME = re.compile(r"\b[A-Z][a-zA-Z_]{2,}\b")
_CAMEL = re.compile(r"[a-z][A-Z]|_|^[A-Z]{2}")
_SENTENCE_END = re.compile(r"(?:^|[.!?:\n])\s*$")


def execute(given: Json, call: Call | None = None) -> Json:
    goal, constraints = given["goal"], given.get("constraints") or ""
    if not goal.strip():
        raise ValueError("goal: it is empty")
    return written(
        "architect_po",
        {"The goal": goal, "The constraints": constraints},
        _by_model,
        lambda: _by_rules(goal, constraints),
        call=call,
    )


def _by_model(answer: dict[str, Json], _model: Model) -> dict[str, Json]:
    components = answer.get("components")
    if not isinstance(components, list) or not 0 < len(components) <= _MOST_BY_MODEL:
        raise Unusable(f"`components` must be a list of 1 to {_MOST_BY_MODEL} objects")
    design = {name: answer.get(name) for name in ("design_doc", "components", "risks")}
    if not str(design["design_doc"] or "").strip():
        raise Unusable("`design_doc` says nothing")
    for place, one in enumerate(components):
        for name in ("name", "purpose", "interface"):
            if not isinstance(one, dict) or not str(one.get(name) or "").strip():
                raise Unusable(f"`components[{place}].{name}` says nothing")
    names = [str(one["name"]).strip().lower() for one in components]
    if twice := {name for name in names if names.count(name) > 1}:
        raise Unusable(f"there are two components called {min(twice)!r}")
    return design


def _by_rules(goal: str, constraints: str) -> dict[str, Json]:
    names = _names(goal) or ["Core"]
    components = [
        {"name": name, "purpose": f"{name}: its part of “{goal.strip()[:200]}”", "interface": name}
        for name in names
    ]
    risks = []
    if len(names) == 1:
        risks.append("There is only one component: parts of the goal may be hidden in it.")
    if "auth" in goal.lower() and "security" not in f"{goal} {constraints}".lower():
        risks.append("The goal is about authentication and nothing is said of security.")
    document = _document(goal, constraints, names, risks)
    return {"design_doc": document, "components": components, "risks": risks}


def _names(goal: str) -> list[str]:
    """Words that are written as names; one that only begins a sentence is none."""
    found: dict[str, str] = {}
    for match in _NAME.finditer(goal):
        begins = _SENTENCE_END.search(goal[: match.start()]) is not None
        if not begins or _CAMEL.search(match[0]):
            found.setdefault(match[0].lower(), match[0])
    return list(found.values())[:_MOST]


def _document(goal: str, constraints: str, names: list[str], risks: list[str]) -> str:
    parts = [f"# Design — {goal.strip().splitlines()[0][:80]}", goal.strip()]
    if constraints.strip():
        parts.append(f"## Constraints\n\n{constraints.strip()}")
    parts.append("## Components\n\n" + "\n".join(f"- {name}" for name in names))
    if risks:
        parts.append("## Risks\n\n" + "\n".join(f"- {risk}" for risk in risks))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    alone(execute)
