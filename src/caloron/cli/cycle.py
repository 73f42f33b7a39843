"""`caloron cycle`: number the wakes of an agent, and tell each what the last one did."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from caloron.cli import cycle_look, output
from caloron.cli.cycle_breadcrumb import breadcrumb
from caloron.cli.cycle_words import (
    agent_argument,
    clean,
    cycles_of,
    files_of,
    hermes_option,
    optional,
    state_data,
    tell,
)
from caloron.cli.options import dry_run_option, output_option

if TYPE_CHECKING:
    from caloron.agentstate.cycles import Cycles
    from caloron.store.lock import Holder

_RESULTS = ("success", "failure", "partial")

_number = click.option(
    "--cycle",
    "number",
    type=click.IntRange(min=1, max=10**12),
    metavar="N",
    help="Only if this is still the open cycle.",
)
_work = click.option(
    "--work", metavar="TASK", help="What is in progress across cycles; '' if nothing is any more."
)
_next = click.option("--next", "next_target", metavar="TEXT", help="What the next cycle shall do.")


@click.group()
def cycle() -> None:
    """Number the wakes of an agent; each is told what the last one did, and how it ended.

    A cycle that is begun and never ended has crashed: the next one is told, with the last known
    step. State and log are kept in ~/.hermes if that is there, else in $CALORON_HOME/cycles.

    \b
    Examples:
      caloron cycle begin allegro --pid $$
      caloron cycle act allegro "opened PR 12" --artefact "PR 12"
      caloron cycle end allegro --next "answer the review of PR 12"
      caloron cycle status allegro
    """


cycle.add_command(breadcrumb)


@cycle.command()
@agent_argument
@click.option(
    "--pid",
    type=click.IntRange(min=1, max=2**31),
    metavar="PID",
    help="The process that the cycle lives with: if it is gone, the cycle has crashed.",
)
@_work
@hermes_option
@dry_run_option
@output_option
def begin(agent: str, pid: int | None, work: str | None, hermes: bool | None, dry_run: bool) -> int:
    """Wake: take the next number, and read what the last cycle left.

    Refused while another cycle of this agent is at work (5), and after a request to stop (11).
    Without --pid a cycle that crashed is noticed when it gave no sign for 20 minutes.

    \b
    Examples:
      caloron cycle begin allegro --pid $$
      caloron cycle begin allegro --work "issue 12" --output json
    """
    cycles = cycles_of(agent, hermes)
    if dry_run:
        number = cycles.look().state.cycle_number + 1
        planned = {"action": "begin", "target": f"cycle {number} of {agent}"}
        return output.dry_run("cycle.begin", [planned])
    looked, report = cycles.begin(holder=_holder(pid), work=optional(work))
    tell(looked.notices)
    data = {
        "report": report.as_data(),
        "state": state_data(looked.state),
        "notices": list(looked.notices),
    }
    output.success("cycle.begin", data | files_of(cycles), output.printable(report.text()))
    return 0


def _holder(pid: int | None) -> Holder:
    """Who the cycle lives with; whoever only called this command may be gone in a moment."""
    from caloron.errors import UsageError
    from caloron.store.lock import Holder, this_holder

    if pid is None:
        return Holder(os.getppid(), "", "", "", os.uname().nodename)
    found = this_holder(pid)
    if not found.started:
        raise UsageError(f"there is no process {pid}", hint="in a shell: --pid $$")
    return found


@cycle.command()
@agent_argument
@click.argument("action", required=False)
@click.option(
    "--result", type=click.Choice(_RESULTS), default="success", show_default=True, help="Of it."
)
@click.option("--artefact", default="", metavar="TEXT", help="What of it stays: a commit, a PR.")
@_work
@_next
@_number
@hermes_option
@dry_run_option
@output_option
def act(
    agent: str,
    action: str | None,
    number: int | None,
    hermes: bool | None,
    dry_run: bool,
    **told: str | None,
) -> int:
    """Tell one step of the open cycle; without an action, only that the agent lives.

    \b
    Examples:
      caloron cycle act allegro "opened PR 12" --artefact "PR 12"
      caloron cycle act allegro "ran the tests" --result failure
      caloron cycle act allegro
    """
    cycles = cycles_of(agent, hermes)
    if dry_run:
        return output.dry_run("cycle.act", [{"action": "tell", "target": action or "a heartbeat"}])
    if action is None:
        state = cycles.beat(cycle=number)
    else:
        state = cycles.act(
            clean(action),
            result=told["result"] or "success",
            artefact=clean(told["artefact"] or ""),
            work=optional(told["work"]),
            next_target=optional(told["next_target"]),
            cycle=number,
        )
    tell(cycles.notices)
    stop = cycles.stop_request()
    step = state.last_action if state.steps else "begun"
    text = f"Cycle {state.known_cycle}: {step}"
    text += f"\nStop was requested: {stop}" if stop else ""
    data = {"state": state_data(state), "stop": stop, "notices": list(cycles.notices)}
    data |= files_of(cycles)
    output.success("cycle.act", data, output.printable(text))
    return 0


@cycle.command()
@agent_argument
@click.option(
    "--result",
    type=click.Choice(_RESULTS),
    default="success",
    show_default=True,
    help="What the cycle came to.",
)
@click.option("--artefact", multiple=True, metavar="TEXT", help="What it leaves; may be repeated.")
@click.option("--reason", default="", metavar="TEXT", help="Why it leaves nothing, or failed.")
@_work
@_next
@_number
@hermes_option
@dry_run_option
@output_option
def end(
    agent: str,
    result: str,
    artefact: tuple[str, ...],
    number: int | None,
    hermes: bool | None,
    dry_run: bool,
    **told: str | None,
) -> int:
    """Report and sleep: a cycle leaves an artefact, or says why not.

    \b
    Examples:
      caloron cycle end allegro --artefact "commit 4f2a" --next "open the PR"
      caloron cycle end allegro --result failure --reason "the forge is away"
    """
    cycles = cycles_of(agent, hermes)
    if dry_run:
        target = f"cycle {cycles.look().state.known_cycle} of {agent}"
        return output.dry_run("cycle.end", [{"action": "end", "target": target}])
    state = cycles.end(
        result,
        artefacts=tuple(map(clean, artefact)),
        reason=clean(told["reason"] or ""),
        work=optional(told["work"]),
        next_target=optional(told["next_target"]),
        cycle=number,
    )
    tell(cycles.notices)
    data = {"state": state_data(state), "notices": list(cycles.notices)} | files_of(cycles)
    text = f"Cycle {state.known_cycle} of {agent} ended: {result}"
    output.success("cycle.end", data, output.printable(text))
    return 0


@cycle.command()
@agent_argument
@click.option("--force", is_flag=True, help="Also a cycle that gives signs of life.")
@hermes_option
@dry_run_option
@output_option
def recover(agent: str, force: bool, hermes: bool | None, dry_run: bool) -> int:
    """Mend what a crash left: a damaged state file, a cycle that nobody ended.

    \b
    Examples:
      caloron cycle recover allegro
      caloron cycle recover allegro --force
    """
    cycles = cycles_of(agent, hermes)
    if dry_run:
        return output.dry_run("cycle.recover", _to_mend(cycles, force))
    looked = cycles.recover(force=force)
    data = {"state": state_data(looked.state), "notices": list(looked.notices)} | files_of(cycles)
    text = "\n".join(looked.notices) or "There is nothing to mend."
    output.success("cycle.recover", data, output.printable(text))
    return 0


def _to_mend(cycles: Cycles, force: bool) -> list[dict[str, str]]:
    looked = cycles.look()
    found = [{"action": "mend", "target": notice} for notice in looked.notices]
    state = looked.state
    if state.status == "open" and (force or cycles.dead(state)):
        found.append({"action": "close as crashed", "target": f"cycle {state.known_cycle}"})
    return found


@cycle.command()
@agent_argument
@click.option("--reason", default="", metavar="TEXT", help="Why.")
@click.option("--clear", is_flag=True, help="Take the request back.")
@hermes_option
@dry_run_option
@output_option
def stop(agent: str, reason: str, clear: bool, hermes: bool | None, dry_run: bool) -> int:
    """Ask an agent to stop: its next wake begins no cycle (11) until this is taken back.

    \b
    Examples:
      caloron cycle stop allegro --reason "wait for the release"
      caloron cycle stop allegro --clear
    """
    cycles = cycles_of(agent, hermes)
    if dry_run:
        done = "let go on" if clear else "ask to stop"
        return output.dry_run("cycle.stop", [{"action": done, "target": agent}])
    if clear:
        there = cycles.clear_stop()
        text = f"{agent} may go on." if there else f"Nobody had asked {agent} to stop."
    else:
        cycles.request_stop(clean(reason))
        text = f"{agent} begins no other cycle. Take it back: caloron cycle stop {agent} --clear"
    data = {"agent": agent, "stop": cycles.stop_request()}
    output.success("cycle.stop", data, output.printable(text))
    return 0


for command in (cycle_look.status, cycle_look.log):
    cycle.add_command(command)
