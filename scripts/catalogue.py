"""Writes docs/catalogue.md: every stage of ours with its signature, from its declaration.

`--answer NAME` first answers the examples of a stage again: check the changes before you commit.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from caloron.graph.catalogue import Catalogue
from caloron.graph.json_text import Json, compact
from caloron.graph.nodes import Graph, Stage
from caloron.graph.prepare import prepare
from caloron.graph.runtime.run import run
from caloron.graph.stage import StageSpec
from caloron.graph.types import NType, Record, show
from caloron.stages import catalogue
from caloron.stages.catalogue import CatalogueStages, catalogue_stages

FILE = Path(__file__).parents[1] / "docs" / "catalogue.md"

_HEAD = """# Catalogue of stages

<!-- made by scripts/catalogue.py -->

The stages of Caloron that [graphs](graph.md) can name. Each is a function of JSON with declared
types and effects, and a program too: JSON on its standard input, JSON on its standard output.

```sh
caloron stage run dag_validate --input plan.json
python -m caloron.stages dag_validate < plan.json
```

A field of type `T | Null` may be left out, and so may one of type `Any`. `state` is that of a
sprint: what `load_tick_state` gives, or the shape of the file `<sprint>.json`. Times are inputs, in
seconds since 1970 or ISO 8601, so that the same input always gets the same answer. `host` is the
address of a forge or of its API, empty for GitHub, or `local` with the name of a project as `repo`;
`token_env` names the variable that holds the token.
"""
#: A longer example explains nothing; `caloron stage show` has it.
_LONGEST = 2_000
_ABOUT = {
    "kickoff": "Kick-off",
    "phases": "From a goal to a plan",
    "tasks": "Tasks",
    "agents": "Agents",
    "tick": "The tick",
    "forge": "The forge",
    "retro": "Retro",
}


def text() -> str:
    """The whole page."""
    parts = [_HEAD]
    for about, heading in _ABOUT.items():
        parts.append(f"\n## {heading}\n")
        parts += [_section(stage) for stage in catalogue_stages() if stage.tags == (about,)]
    return "".join(parts)


def _section(stage: StageSpec) -> str:
    effects = ", ".join(effect.word for effect in stage.effects)
    lines = [f"\n### {stage.name}\n", stage.description, f"Effects: {effects}."]
    lines.append("")
    lines += ["| | field | type |", "|---|---|---|"]
    lines += _rows("in", stage.input) + _rows("out", stage.output)
    lines += ["", f"Id `{stage.id[:16]}…`, signature `{stage.signature_id[:16]}…`.", ""]
    examples = [f"{compact(one.input)}\n{compact(one.output)}" for one in stage.examples]
    shortest = min(examples, key=len, default="")
    if 0 < len(shortest) <= _LONGEST:
        lines += ["```json", shortest, "```", ""]
    return "\n".join(lines)


def _rows(side: str, of: NType) -> list[str]:
    fields = of.fields if isinstance(of, Record) else {"": of}
    return [f"| {side} | `{name}` | `{_cell(kind)}` |" for name, kind in fields.items()]


def _cell(kind: NType) -> str:
    return show(kind).replace("|", "\\|")


def stale() -> bool:
    return not FILE.exists() or FILE.read_text("utf-8") != text()


def answer_again(name: str) -> None:
    """Let a stage answer its own examples again, where they are declared."""
    file = Path(catalogue.__file__).with_name("declarations.json")
    stages = json.loads(file.read_bytes())["stages"]
    graph = prepare(Graph(name, "0.1.0", Stage(name)), Catalogue(catalogue_stages()))
    for example in next(stage for stage in stages if stage["name"] == name)["examples"]:
        example["output"] = run(graph, example["input"], CatalogueStages()).output
    text = ",\n".join(map(_declaration, stages))
    file.write_text(f'{{"stages": [\n{text}\n]}}\n', "utf-8")


def _declaration(stage: dict[str, Json]) -> str:
    """Return a declaration as it is written: one line per field of a type."""
    short = ("name", "about", "effects", "revision")
    head = ", ".join(f'"{key}": {_line(stage[key])}' for key in short if key in stage)
    long = [key for key in stage if key not in short]
    parts = [f" {head}", *(f' "{key}": {_lines(key, stage[key])}' for key in long)]
    return "{\n" + ",\n".join(parts) + "\n}"


def _lines(key: str, value: Json) -> str:
    if key == "examples":
        pairs = (
            f'  {{"input": {_line(one["input"])},\n   "output": {_line(one["output"])}}}'
            for one in value
        )
        return "[\n" + ",\n".join(pairs) + "\n ]"
    if isinstance(value, dict) and value.get("Record"):
        return '{"Record": [\n' + ",\n".join(f"  {_line(f)}" for f in value["Record"]) + "\n ]}"
    return _line(value)


def _line(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(1 if stale() else 0)
    if "--answer" in sys.argv:
        answer_again(sys.argv[-1])
        sys.exit(0)
    FILE.write_text(text(), "utf-8")
    print(f"wrote {FILE}")
