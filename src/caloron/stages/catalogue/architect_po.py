"""Components and risks of a goal, by rules."""

from __future__ import annotations

import re

from caloron.graph.jsontext import Json
from caloron.stages.catalogue.alone import alone

_MOST = 5
_NAME = re.compile(r"\b[A-Z][a-zA-Z_]{2,}\b")
_CAMEL = re.compile(r"[a-z][A-Z]|_|^[A-Z]{2}")
_SENTENCE_END = re.compile(r"(?:^|[.!?:\n])\s*$")


def execute(given: Json) -> Json:
    goal, constraints = given["goal"], given.get("constraints") or ""
    if not goal.strip():
        raise ValueError("goal: it is empty")
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
    return {
        "design_doc": _document(goal, constraints, names, risks),
        "components": components,
        "risks": risks,
        "written_by": "rules",
    }


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
