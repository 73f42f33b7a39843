"""Writes docs/catalogue.md: every stage of ours with its signature, from its declaration."""

from __future__ import annotations

import sys
from pathlib import Path

from caloron.graph.json_text import compact
from caloron.graph.stage import StageSpec
from caloron.graph.types import NType, Record, show
from caloron.stages.catalogue import catalogue_stages

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


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(1 if stale() else 0)
    FILE.write_text(text(), "utf-8")
    print(f"wrote {FILE}")
