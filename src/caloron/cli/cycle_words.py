"""What the commands of `caloron cycle` have in common: whose cycles, and how they are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from caloron.cli import output

if TYPE_CHECKING:
    from caloron.agentstate.cycles import Cycles, CycleState

hermes_option = click.option(
    "--hermes/--no-hermes",
    "hermes",
    default=None,
    help="Keep the files in ~/.hermes, or not (default: if that folder is there).",
)
agent_argument = click.argument("agent")


def cycles_of(agent: str, hermes: bool | None) -> Cycles:
    from caloron.agentstate.cycles import Cycles, places_of

    return Cycles(places_of(clean(agent), hermes=hermes))


def clean(value: str) -> str:
    """What was typed, as text that a file can hold."""
    return value.encode("utf-8", "replace").decode()


def optional(value: str | None) -> str | None:
    return None if value is None else clean(value)


def state_data(state: CycleState) -> dict[str, Any]:
    return state._asdict() | {"artefacts": list(state.artefacts)}


def files_of(cycles: Cycles) -> dict[str, str]:
    return {"state_file": str(cycles.places.state), "log_file": str(cycles.places.log)}


def tell(notices: tuple[str, ...]) -> None:
    if not output.wants_json():
        for notice in notices:
            output.aside(f"note: {notice}")
