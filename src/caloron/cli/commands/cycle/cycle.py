"""`caloron cycle`: number the wakes of an agent, and tell each what the last one did."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from caloron.cli import output
from caloron.cli.app import dry_run_option, output_option, project_option
from caloron.cli.commands.cycle.breadcrumb import breadcrumb
from caloron.cli.format import printable

if TYPE_CHECKING:
    from caloron.cycles import Cycles, CycleState
    from caloron.store.lock import ProcessIdentity

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


hermes_option = click.option(
    "--hermes/--no-hermes",
    "hermes",
    default=None,
    help="Keep the files in ~/.hermes, or not (default: if that folder is there).",
)
agent_argument = click.argument("agent")


def cycles_of(agent: str, hermes: bool | None) -> Cycles:
    from caloron.cycles import Cycles, location_of

    return Cycles(location_of(clean(agent), hermes=hermes))


def clean(value: str) -> str:
    """What was typed, as text that a file can hold."""
    return value.encode("utf-8", "replace").decode()


def optional(value: str | None) -> str | None:
    return None if value is None else clean(value)


def state_data(state: CycleState) -> dict[str, Any]:
    return state._asdict() | {"artefacts": list(state.artefacts)}


def files_of(cycles: Cycles) -> dict[str, str]:
    return {"state_file": str(cycles.location.state), "log_file": str(cycles.location.log)}


def tell(notices: tuple[str, ...]) -> None:
    if not output.wants_json():
        for notice in notices:
            output.note(f"note: {notice}")


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
        number = cycles.load().state.cycle_number + 1
        planned = {"action": "begin", "target": f"cycle {number} of {agent}"}
        return output.dry_run("cycle.begin", [planned])
    looked, report = cycles.begin(holder=_holder(pid), work=optional(work))
    tell(looked.notices)
    data = {
        "report": report.as_data(),
        "state": state_data(looked.state),
        "notices": list(looked.notices),
    }
    output.success("cycle.begin", data | files_of(cycles), printable(report.text()))
    return 0


def _holder(pid: int | None) -> ProcessIdentity:
    """Who the cycle lives with; whoever only called this command may be gone in a moment."""
    from caloron.errors import UsageError
    from caloron.store.lock import ProcessIdentity, this_process

    if pid is None:
        return ProcessIdentity(os.getppid(), "", "", "", os.uname().nodename)
    found = this_process(pid)
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
    text = f"Cycle {state.cycle_number}: {step}"
    text += f"\nStop was requested: {stop}" if stop else ""
    data = {"state": state_data(state), "stop": stop, "notices": list(cycles.notices)}
    data |= files_of(cycles)
    output.success("cycle.act", data, printable(text))
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
        target = f"cycle {cycles.load().state.cycle_number} of {agent}"
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
    text = f"Cycle {state.cycle_number} of {agent} ended: {result}"
    output.success("cycle.end", data, printable(text))
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
    output.success("cycle.recover", data, printable(text))
    return 0


def _to_mend(cycles: Cycles, force: bool) -> list[dict[str, str]]:
    looked = cycles.load()
    found = [{"action": "mend", "target": notice} for notice in looked.notices]
    state = looked.state
    if state.status == "open" and (force or cycles.reason_dead(state)):
        found.append({"action": "close as crashed", "target": f"cycle {state.cycle_number}"})
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
    output.success("cycle.stop", data, printable(text))
    return 0


@cycle.command()
@agent_argument
@project_option
@hermes_option
@output_option
def status(agent: str, project: str | None, hermes: bool | None) -> int:
    """Show where the cycles of an agent stand: the text that its next wake is told.

    An agent that has no cycles of its own may be one of the project's sprints: see --project.

    \b
    Examples:
      caloron cycle status allegro
      caloron cycle status reviewer-1 --project demo --output json
    """
    cycles, beside = _found(agent, project, hermes)
    loaded, report = cycles.load(), cycles.report()
    notices = (*loaded.notices, *beside)
    tell(notices)
    at_work = loaded.state.status == "open"
    data = {
        "report": report.as_data(),
        "state": state_data(loaded.state),
        "alive": at_work and not cycles.reason_dead(loaded.state),
        "notices": list(notices),
    }
    output.success("cycle.status", data | files_of(cycles), printable(report.text()))
    return 0


@cycle.command()
@agent_argument
@click.option(
    "-n", "--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, metavar="N",
    help="The newest so many lines.",
)  # fmt: skip
@click.option("--cycle", "number", type=click.IntRange(1, 10**12), metavar="N", help="Of this one.")
@project_option
@hermes_option
@output_option
def log(
    agent: str, limit: int, number: int | None, project: str | None, hermes: bool | None
) -> int:
    """Show the log of an agent's cycles, one line for each thing that happened.

    \b
    Examples:
      caloron cycle log allegro -n 20
      caloron cycle log allegro --cycle 42
      caloron cycle log reviewer-1 --project demo
    """
    from caloron.cycles.storage import shown

    cycles, beside = _found(agent, project, hermes)
    tell(beside)
    wanted = 10**6 if number else limit
    entries = [e for e in cycles.log.newest(wanted) if number in (None, e["cycle"])][-limit:]
    lines = [shown(entry) for entry in entries]
    data = {"entries": entries, "notices": list(beside)} | files_of(cycles)
    output.success("cycle.log", data, printable("\n".join(lines)) or "Nothing yet.")
    return 0


def _found(agent: str, project: str | None, hermes: bool | None) -> tuple[Cycles, tuple[str, ...]]:
    """Whose cycles are meant, and a word where an agent of the project has that name too.

    An agent's own cycles come first; those of a sprint are its ledger's, and shown if there are no
    others or a project is named.
    """
    from caloron.errors import NotFound, UsageError

    if project is not None:
        if hermes is not None:
            raise UsageError("an agent of a project keeps no files in ~/.hermes",
                             hint="leave out --project, or --hermes")  # fmt: skip
        of_sprint = _of_sprint(agent, project)
        if of_sprint is None:
            raise NotFound(f"no agent {agent!r} has worked in project {project}",
                           hint=f"caloron agents list --project {project}")  # fmt: skip
        return of_sprint, ()
    own = cycles_of(agent, hermes)
    of_sprint = _of_sprint(agent, None) if hermes is None else None
    if of_sprint is None:
        return own, ()
    if not own.load().state.cycle_number:
        return of_sprint, ()
    name = of_sprint.location.state.parents[2].name
    return own, (f"project {name} has an agent {agent} too: add --project {name}",)


def _of_sprint(agent: str, project: str | None) -> Cycles | None:
    """The cycles of an agent of a project; None if there is no such agent."""
    from caloron.engine.agent_view import cycles_in
    from caloron.errors import CaloronError
    from caloron.ids import is_valid_id
    from caloron.ledger.locate import current_project_name, find_project

    try:
        folder = find_project(current_project_name() if project is None else project).agents
    except CaloronError:
        # Cycles need no project; one that was named has to be there.
        if project is not None:
            raise
        return None
    agent_dir = folder / clean(agent)
    if not is_valid_id(agent) or not agent_dir.is_dir():
        return None
    # The agent is one of this project: now the active project is announced.
    find_project(project)
    return cycles_in(agent_dir)
