"""The stages that graphs name: typed, with declared effects, JSON in and JSON out.

`declarations.json` declares the types, effects and examples of each stage; the function of the
same name in `phases`, `dag`, `tick`, `supervisor`, `forge` or `retro` implements it. A stage also
runs as a program:

    python -m caloron.stages dag_validate < plan.json
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING

from caloron.graph.json_text import Json, sha256
from caloron.graph.runners.functions import FunctionRunner
from caloron.graph.runtime.protocols import Call, Value
from caloron.graph.stage import PURE, Effect, Example, StageSpec, define, effect_of_word
from caloron.graph.type_syntax import parse_shorthand

if TYPE_CHECKING:
    from caloron.ledger.tick_context import TickContext

#: Raise this when a stage answers differently: cached answers of other versions are not used.
VERSION = "caloron-1"

#: The module of each group of declarations (`about`).
_MODULES = {
    "kickoff": "phases",
    "phases": "phases",
    "tasks": "dag",
    "tick": "tick",
    "agents": "supervisor",
    "forge": "forge",
    "retro": "retro",
}


@cache
def _declarations() -> dict[str, Json]:
    declared = json.loads(files(__package__).joinpath("declarations.json").read_bytes())
    return {stage["name"]: stage for stage in declared["stages"]}


@cache
def _registered_ids() -> dict[str, str]:
    """The ids in the store of a Noether that `caloron noether register` filled."""
    ids: dict[str, str] = json.loads(files(__package__).joinpath("registered.json").read_bytes())
    return ids


@cache
def catalogue_stages() -> tuple[StageSpec, ...]:
    """All declared stages, in the order in which a sprint uses them."""
    return tuple(_stage(declared) for declared in _declarations().values())


def declaration(name: str) -> Json:
    """Return the declaration of a stage, its types in shorthand."""
    return _declarations()[name]


def _stage(declared: Json) -> StageSpec:
    name = declared["name"]
    # The revision is raised when a stage answers differently: its id names its behaviour.
    revision = declared.get("revision", 1)
    aliases = (_registered_ids().get(name), declared.get("older_registered_id"))
    return define(
        name,
        parse_shorthand(declared["input"], "$.input"),
        parse_shorthand(declared["output"], "$.output"),
        effects=tuple(_effect(word) for word in declared["effects"]) or (PURE,),
        implementation_hash=sha256(f"caloron:{name}:{revision}"),
        description=declared["description"],
        examples=tuple(
            Example(example["input"], example["output"]) for example in declared.get("examples", [])
        ),
        tags=(declared["about"],),
        aliases=tuple(alias for alias in aliases if alias),
    )


def _effect(word: str) -> Effect:
    effect = effect_of_word(word)
    assert effect is not None, word
    return effect


def stage_function(name: str) -> Callable[..., Json]:
    """Return the function of a stage; its module is imported now."""
    # `fetch_repo_context` is about the kick-off, and reads a forge.
    group = "forge" if name == "fetch_repo_context" else _declarations()[name]["about"]
    function: Callable[..., Json] = getattr(import_module(f"{__package__}.{_MODULES[group]}"), name)
    return function


class CatalogueStages:
    """Runs the declared stages.

    The stages of a tick use the ledger that `context` has open; without it, each opens its own.
    """

    def __init__(self, context: TickContext | None = None) -> None:
        self._context = context
        self._functions = FunctionRunner(version=VERSION, shares_values=True)
        self._ids = {stage.id for stage in catalogue_stages()}

    def code_version(self, stage: StageSpec) -> str | None:
        return VERSION if stage.id in self._ids else None

    def run(self, stage: StageSpec, given: Value, call: Call) -> Json | Value:
        if self._functions.code_version(stage) is None:
            function = stage_function(stage.name)
            if "context" in function.__annotations__:
                context = self._context
                self._functions.add(stage, lambda value: function(value, context))
            else:
                self._functions.add(stage, function)
        return self._functions.run(stage, given, call)
