"""Runs stages and graphs on the examples that they carry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from caloron.graph.catalogue import Catalogue
from caloron.graph.checker import check_value
from caloron.graph.errors import GraphError
from caloron.graph.json_text import canonical
from caloron.graph.nodes import Graph, RemoteStage, Stage, walk
from caloron.graph.prepare import Prepared, prepare, untestable_effect
from caloron.graph.runtime.protocols import StageRunner
from caloron.graph.runtime.run import Settings, run
from caloron.graph.stage import Example, StageSpec


class ExampleReport(msgspec.Struct, frozen=True):
    """The result of all examples; `reasons` explains what failed, or why nothing was run."""

    state: Literal["passed", "failed", "skipped"]
    examples: int = 0
    reasons: tuple[str, ...] = ()


def run_examples(
    stage: StageSpec,
    catalogue: Catalogue,
    runner: StageRunner,
    settings: Settings | None = None,
) -> ExampleReport:
    """Run the examples of a stage and compare the answers."""
    if not stage.examples:
        return ExampleReport("skipped", reasons=("it has no examples",))
    if word := untestable_effect(stage):
        return ExampleReport("skipped", reasons=(f"it declares the effect {word}",))
    if runner.code_version(stage) is None:
        return ExampleReport("skipped", reasons=("it is not implemented here",))
    graph = Graph(f"examples of {stage.name}", "0.1.0", Stage(stage.id, "both"))
    try:
        prepared = prepare(graph, catalogue)
    except GraphError as error:
        return ExampleReport("failed", len(stage.examples), (str(error),))
    return run_graph_examples(prepared, stage.examples, runner, settings)


def run_graph_examples(
    prepared: Prepared,
    examples: Sequence[Example],
    runner: StageRunner,
    settings: Settings | None = None,
) -> ExampleReport:
    """Run a graph on examples, unless that would act on the outside world.

    A stage that becomes known only during the run is refused by the same rule.
    """
    if reason := _why_untestable(prepared, examples):
        return ExampleReport("skipped", reasons=(reason,))
    restricted = msgspec.structs.replace(prepared, examples_only=True)
    reasons: list[str] = []
    for number, example in enumerate(examples, 1):
        try:
            answer = run(restricted, example.input, runner, settings).output
        except GraphError as error:
            reasons.append(f"example {number}: {error}")
            continue
        if canonical(answer) != canonical(example.output):
            reasons.append(f"example {number}: answered {canonical(answer)[:200]}")
    return ExampleReport("failed" if reasons else "passed", len(examples), tuple(reasons))


def _why_untestable(prepared: Prepared, examples: Sequence[Example]) -> str:
    root, catalogue = prepared.root, prepared.catalogue
    for _, node in walk(root):
        stage = catalogue.get(node.id) if isinstance(node, Stage) else None
        word = untestable_effect(stage) if stage else ""
        if isinstance(node, RemoteStage):
            word = "network"
        if word:
            return f"it declares the effect {word}"
    for number, example in enumerate(examples, 1):
        for _, called in check_value(root, example.input, catalogue).called:
            if word := untestable_effect(called):
                return f"example {number} calls {called.name}, which declares {word}"
    return ""
