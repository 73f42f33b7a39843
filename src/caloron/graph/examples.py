"""Tries a stage on the examples that it carries."""

from __future__ import annotations

from typing import Literal

import msgspec

from caloron.graph.catalogue import Catalogue
from caloron.graph.errors import GraphError
from caloron.graph.jsontext import canonical
from caloron.graph.nodes import Graph, Stage
from caloron.graph.prepare import prepare
from caloron.graph.profile import STRICT, Profile
from caloron.graph.properties import judge
from caloron.graph.protocols import StageRunner
from caloron.graph.run import Settings, run
from caloron.graph.spec import Example, StageSpec

#: What such a stage answers is not settled by its input, or trying it would do something.
NOT_TRIED = ("Network", "Llm", "NonDeterministic", "Process", "FsWrite")


class Tried(msgspec.Struct, frozen=True):
    """How a stage did; `reasons` tells what failed, or why nothing was tried."""

    stage_id: str
    state: Literal["passed", "failed", "skipped"]
    examples: int = 0
    reasons: tuple[str, ...] = ()


def try_examples(
    stage: StageSpec,
    catalogue: Catalogue,
    runner: StageRunner,
    profile: Profile = STRICT,
    settings: Settings | None = None,
) -> Tried:
    """Runs each example for real and compares, then asks whether it keeps every property."""
    why_not = _why_not(stage, runner)
    if why_not:
        return Tried(stage.id, "skipped", reasons=(why_not,))
    graph = Graph(f"examples of {stage.name}", "0.1.0", Stage(stage.id, "both"))
    reasons: list[str] = []
    for number, example in enumerate(stage.examples, 1):
        try:
            prepared = prepare(graph, catalogue, profile)
            answer = run(prepared, example.input, runner, settings).output
        except GraphError as error:
            reasons.append(f"example {number}: {error}")
            continue
        if canonical(answer) != canonical(example.output):
            reasons.append(f"example {number}: answered {canonical(answer)[:200]}")
        reasons.extend(f"example {number}: {reason}" for reason in _broken(stage, example))
    return Tried(stage.id, "failed" if reasons else "passed", len(stage.examples), tuple(reasons))


def _why_not(stage: StageSpec, runner: StageRunner) -> str:
    if not stage.examples:
        return "it has no examples"
    for kind in NOT_TRIED:
        if stage.declares(kind):
            return f"it declares the effect {kind}"
    return "nobody here can run it" if runner.code_hash(stage) is None else ""


def _broken(stage: StageSpec, example: Example) -> list[str]:
    verdicts = (judge(one, example.input, example.output) for one in stage.properties)
    return [verdict.reason for verdict in verdicts if verdict.state == "fails"]
