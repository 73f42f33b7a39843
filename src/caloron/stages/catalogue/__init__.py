"""The stages that graphs name: typed, with declared effects, JSON in and JSON out.

`stages.json` declares each of them; the module of the same name does it, and runs alone too:

    python -m caloron.stages.catalogue.dag_validate < plan.json
"""

from __future__ import annotations

import json
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path

from caloron.graph.datum import Datum
from caloron.graph.effects import PURE, Effect, effect_of_word, effect_set
from caloron.graph.jsontext import Json, sha256
from caloron.graph.native import Functions, hash_of_files
from caloron.graph.protocols import Call
from caloron.graph.shorthand import parse_shorthand
from caloron.graph.spec import Example, Identity, StageSpec
from caloron.stages.context import TickContext


@cache
def _declarations() -> list[Json]:
    told: list[Json] = json.loads(files(__package__).joinpath("stages.json").read_bytes())["stages"]
    return told


@cache
def catalogue_stages() -> tuple[StageSpec, ...]:
    """All declared stages, in the order in which a sprint meets them."""
    return tuple(_declared(one) for one in _declarations())


def declaration(name: str) -> Json:
    """A stage as it is written down, its types in the short form that authors use."""
    return next(one for one in _declarations() if one["name"] == name)


def _declared(told: Json) -> StageSpec:
    named = [_effect(word) for word in told["effects"]]
    # The number is raised when a stage answers differently: its id names what it does.
    installed = sha256(f"caloron:{told['name']}:{told.get('revision', 1)}")
    identity = Identity(
        told["name"],
        parse_shorthand(told["input"], "$.input"),
        parse_shorthand(told["output"], "$.output"),
        effect_set(named or [PURE]),
        installed,
    )
    return StageSpec(
        id=identity.stage_id(),
        signature_id=identity.signature_id(),
        name=identity.name,
        input=identity.input,
        output=identity.output,
        effects=identity.effects,
        implementation_hash=installed,
        description=told["description"],
        examples=tuple(Example(one["input"], one["output"]) for one in told.get("examples", [])),
        tags=(told["about"],),
        # Its id in the store of a Noether that `caloron noether register` filled.
        aliases=(_registered()[told["name"]],),
    )


@cache
def _registered() -> dict[str, str]:
    told: dict[str, str] = json.loads(files(__package__).joinpath("registered.json").read_bytes())
    return told


def _effect(word: str) -> Effect:
    effect = effect_of_word(word)
    assert effect is not None, word
    return effect


@cache
def _installed() -> str:
    """What the answers of the stages rest on: remembered ones are forgotten when it changes."""
    package = Path(__file__).parents[2]
    rooms = ("domain", "stages", "ledger", "graph")
    shared = list(package.glob("*.py"))
    return hash_of_files([*shared, *(f for r in rooms for f in (package / r).rglob("*.py"))])


class CatalogueStages:
    """Runs the declared stages; each module is imported when it is first called.

    Stages of a tick reach what `context` has open; without it, each opens what it needs.
    """

    def __init__(self, context: TickContext | None = None) -> None:
        self._context = context
        self._functions = Functions(installed="catalogue", shares=True)
        self._ids = {stage.id for stage in catalogue_stages()}

    def code_hash(self, stage: StageSpec) -> str | None:
        return _installed() if stage.id in self._ids else None

    def run(self, stage: StageSpec, given: Datum, call: Call) -> Json | Datum:
        if self._functions.code_hash(stage) is None:
            execute = import_module(f"{__package__}.{stage.name}").execute
            if "context" in execute.__annotations__:
                context = self._context
                self._functions.add(stage, lambda value: execute(value, context))
            else:
                self._functions.add(stage, execute)
        return self._functions.run(stage, given, call)
