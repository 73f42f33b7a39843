"""Tries stages and graphs on the examples that they carry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from caloron.graph.catalogue import Catalogue
from caloron.graph.errors import GraphError
from caloron.graph.flow import followed
from caloron.graph.jsontext import canonical
from caloron.graph.nodes import Graph, RemoteStage, Stage, walk
from caloron.graph.policy import reaches
from caloron.graph.prepare import Prepared, prepare
from caloron.graph.profile import STRICT, Profile
from caloron.graph.properties import judge
from caloron.graph.protocols import StageRunner
from caloron.graph.run import Settings, run
from caloron.graph.spec import Example, StageSpec
from caloron.graph.types import Known


class Tried(msgspec.Struct, frozen=True):
    """How a stage or a graph did; `reasons` tells what failed, or why nothing was tried."""

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
    if not stage.examples:
        return Tried("skipped", reasons=("it has no examples",))
    if word := reaches(stage):
        return Tried("skipped", reasons=(f"it declares the effect {word}",))
    if runner.code_hash(stage) is None:
        return Tried("skipped", reasons=("nobody here can run it",))
    graph = Graph(f"examples of {stage.name}", "0.1.0", Stage(stage.id, "both"))
    try:
        prepared = prepare(graph, catalogue, profile)
    except GraphError as error:
        return Tried("failed", len(stage.examples), (str(error),))
    tried = try_graph(prepared, stage.examples, runner, settings)
    broken = [
        f"example {number}: {reason}"
        for number, example in enumerate(stage.examples, 1)
        for reason in _broken(stage, example)
    ]
    if tried.state == "skipped" or not broken:
        return tried
    return Tried("failed", tried.examples, (*tried.reasons, *broken))


def try_graph(
    prepared: Prepared,
    examples: Sequence[Example],
    runner: StageRunner,
    settings: Settings | None = None,
) -> Tried:
    """Runs a graph on examples, unless that would reach out into the world.

    A stage that only the run finds is held to the same rule.
    """
    if why := _why_not(prepared, examples):
        return Tried("skipped", reasons=(why,))
    harmless = msgspec.structs.replace(prepared, harmless=True)
    reasons: list[str] = []
    for number, example in enumerate(examples, 1):
        try:
            answer = run(harmless, example.input, runner, settings).output
        except GraphError as error:
            reasons.append(f"example {number}: {error}")
            continue
        if canonical(answer) != canonical(example.output):
            reasons.append(f"example {number}: answered {canonical(answer)[:200]}")
    return Tried("failed" if reasons else "passed", len(examples), tuple(reasons))


def _why_not(prepared: Prepared, examples: Sequence[Example]) -> str:
    root, catalogue = prepared.root, prepared.catalogue
    for _, node in walk(root):
        stage = catalogue.get(node.id) if isinstance(node, Stage) else None
        word = "network" if isinstance(node, RemoteStage) else reaches(stage) if stage else ""
        if word:
            return f"it declares the effect {word}"
    for number, example in enumerate(examples, 1):
        for _, called in followed(root, Known(example.input), catalogue).called:
            if word := reaches(called):
                return f"example {number} calls {called.name}, which declares {word}"
    return ""


def _broken(stage: StageSpec, example: Example) -> list[str]:
    verdicts = (judge(one, example.input, example.output) for one in stage.properties)
    return [verdict.reason for verdict in verdicts if verdict.state == "fails"]
