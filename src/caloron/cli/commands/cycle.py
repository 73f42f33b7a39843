"""`caloron cycle`: number the wakes of an agent, and report the last cycle to the next one."""

from __future__ import annotations

import os
from typing import Any

import click

from caloron.cli import output
from caloron.cli.app import (
    Answer,
    DryRun,
    Number,
    add_options,
    attributes,
    exclude_each_other,
    group,
    planned,
)
from caloron.cycles import Cycles, CycleState, location_of
from caloron.cycles.report import Breadcrumb
from caloron.cycles.report import breadcrumb as breadcrumb_of
from caloron.cycles.storage import shown
from caloron.errors import CaloronError, NotFound, UsageError
from caloron.ids import is_valid_id
from caloron.ledger.locate import current_project_name, find_project
from caloron.slicing import to_slice
from caloron.store.lock import ProcessIdentity, this_process

_LARGEST = 10**12

_agent = add_options(
    click.argument("agent"),
    click.option(
        "--hermes/--no-hermes",
        "hermes",
        default=None,
        help="Keep the files in ~/.hermes, or not (default: if that folder is there).",
    ),
)
_number = click.option(
    "--cycle",
    "number",
    type=Number(1, _LARGEST),
    metavar="N",
    help="Only if this is still the open cycle.",
)
_work = click.option(
    "--work",
    metavar="TASK",
    help="Work in progress across cycles; '' if there is none.",
)
_next = click.option("--next", "next_target", metavar="TEXT", help="The target of the next cycle.")
_result = click.option(
    "--result",
    type=click.Choice(("success", "failure", "partial")),
    default="success",
    show_default=True,
    help="How the step, or the cycle, ended.",
)


@group(
    examples=[
        "caloron cycle begin allegro --pid $$",
        'caloron cycle act allegro "opened PR 12" --artefact "PR 12"',
        'caloron cycle end allegro --next "answer the review of PR 12"',
        "caloron cycle status allegro",
    ]
)
def cycle() -> None:
    """Number the wakes of an agent; each gets a report of the last cycle and how it ended.

    A cycle that is begun and never ended has crashed: the next report says so, with the last known
    step. State and log are kept in ~/.hermes if that is there, else in $CALORON_HOME/cycles.
    """


def _cycles_of(agent: str, hermes: bool | None) -> Cycles:
    return Cycles(location_of(_clean(agent), hermes=hermes))


def _clean(value: str) -> str:
    """An argument as text that a file can hold."""
    return value.encode("utf-8", "replace").decode()


def _clean_all(values: dict[str, str | None]) -> dict[str, str | None]:
    return {name: value if value is None else _clean(value) for name, value in values.items()}


def _answer(
    cycles: Cycles, text: str, state: CycleState | None, notices: tuple[str, ...], **data: Any
) -> Answer:
    """An answer with the state of the cycles, their notices and their files."""
    if state is not None:
        data["state"] = state._asdict() | {"artefacts": list(state.artefacts)}
    data |= {
        "notices": list(notices),
        "state_file": str(cycles.location.state),
        "log_file": str(cycles.location.log),
    }
    return Answer(data, text)


def _note(notices: tuple[str, ...]) -> None:
    if not output.wants_json():
        for notice in notices:
            output.note(f"note: {notice}")


@cycle.command(
    dry_run=True,
    examples=[
        "caloron cycle begin allegro --pid $$",
        'caloron cycle begin allegro --work "issue 12" --output json',
    ],
)
@_agent
@click.option(
    "--pid",
    type=Number(1, 2**31),
    metavar="PID",
    help="The process that the cycle lives with: if it is gone, the cycle has crashed.",
)
@_work
def begin(
    agent: str, pid: int | None, work: str | None, hermes: bool | None, dry_run: bool
) -> Answer | DryRun:
    """Begin a cycle: take the next number, and read what the last cycle left.

    Refused while another cycle of this agent is at work (5), and after a request to stop (11).
    Without --pid a cycle that crashed is noticed when it gave no sign for 20 minutes.
    """
    cycles = _cycles_of(agent, hermes)
    if dry_run:
        number = cycles.load().state.cycle_number + 1
        return DryRun(planned("begin", f"cycle {number} of {agent}"))
    loaded, report = cycles.begin(holder=_holder(pid), work=_clean_all({"work": work})["work"])
    _note(loaded.notices)
    return _answer(cycles, report.text(), loaded.state, loaded.notices, report=report.as_data())


def _holder(pid: int | None) -> ProcessIdentity:
    """The process that the cycle lives with; the caller of this command may exit at once."""
    if pid is None:
        return ProcessIdentity(os.getppid(), "", "", "", os.uname().nodename)
    process = this_process(pid)
    if not process.started:
        raise UsageError(f"there is no process {pid}", hint="in a shell: --pid $$")
    return process


@cycle.command(
    dry_run=True,
    examples=[
        'caloron cycle act allegro "opened PR 12" --artefact "PR 12"',
        'caloron cycle act allegro "ran the tests" --result failure',
        "caloron cycle act allegro",
    ],
)
@_agent
@click.argument("action", required=False)
@_result
@click.option("--artefact", default="", metavar="TEXT", help="Its result: a commit, a PR.")
@_work
@_next
@_number
def act(
    agent: str,
    action: str | None,
    number: int | None,
    hermes: bool | None,
    dry_run: bool,
    result: str,
    artefact: str,
    **texts: str | None,
) -> Answer | DryRun:
    """Record a step of the open cycle; without an action, only a sign of life."""
    cycles = _cycles_of(agent, hermes)
    if dry_run:
        return DryRun(planned("record", action or "a heartbeat"))
    if action is None:
        state = cycles.beat(cycle=number)
    else:
        state = cycles.act(
            _clean(action),
            result=result,
            artefact=_clean(artefact),
            cycle=number,
            **_clean_all(texts),
        )
    _note(cycles.notices)
    stop = cycles.stop_request()
    text = f"Cycle {state.cycle_number}: {state.last_action if state.steps else 'begun'}"
    text += f"\nStop was requested: {stop}" if stop else ""
    return _answer(cycles, text, state, cycles.notices, stop=stop)


@cycle.command(
    dry_run=True,
    examples=[
        'caloron cycle end allegro --artefact "commit 4f2a" --next "open the PR"',
        'caloron cycle end allegro --result failure --reason "the forge is away"',
    ],
)
@_agent
@_result
@click.option("--artefact", multiple=True, metavar="TEXT", help="Its results; may be repeated.")
@click.option("--reason", default="", metavar="TEXT", help="Why it has no result, or failed.")
@_work
@_next
@_number
def end(
    agent: str,
    artefact: tuple[str, ...],
    number: int | None,
    hermes: bool | None,
    dry_run: bool,
    result: str,
    reason: str,
    **texts: str | None,
) -> Answer | DryRun:
    """End the cycle: with an artefact, or with a reason why there is none."""
    cycles = _cycles_of(agent, hermes)
    if dry_run:
        return DryRun(planned("end", f"cycle {cycles.load().state.cycle_number} of {agent}"))
    artefacts = tuple(map(_clean, artefact))
    state = cycles.end(
        result, artefacts=artefacts, reason=_clean(reason), cycle=number, **_clean_all(texts)
    )
    _note(cycles.notices)
    text = f"Cycle {state.cycle_number} of {agent} ended: {result}"
    return _answer(cycles, text, state, cycles.notices)


@cycle.command(
    dry_run=True,
    examples=["caloron cycle recover allegro", "caloron cycle recover allegro --force"],
)
@_agent
@click.option("--force", is_flag=True, help="Also a cycle that gives signs of life.")
def recover(agent: str, force: bool, hermes: bool | None, dry_run: bool) -> Answer | DryRun:
    """Repair the state after a crash: a damaged state file, a cycle without an end."""
    cycles = _cycles_of(agent, hermes)
    if dry_run:
        loaded = cycles.load()
        actions = [planned("repair", notice) for notice in loaded.notices]
        state = loaded.state
        if state.status == "open" and (force or cycles.reason_dead(state)):
            actions.append(planned("close as crashed", f"cycle {state.cycle_number}"))
        return DryRun(*actions)
    recovered = cycles.recover(force=force)
    text = "\n".join(recovered.notices) or "There is nothing to repair."
    return _answer(cycles, text, recovered.state, recovered.notices)


@cycle.command(
    dry_run=True,
    examples=[
        'caloron cycle stop allegro --reason "wait for the release"',
        "caloron cycle stop allegro --clear",
    ],
)
@_agent
@click.option("--reason", default="", metavar="TEXT", help="Why.")
@click.option("--clear", is_flag=True, help="Take the request back.")
def stop(
    agent: str, reason: str, clear: bool, hermes: bool | None, dry_run: bool
) -> Answer | DryRun:
    """Ask an agent to stop: its next wake begins no cycle (11) until this is taken back."""
    cycles = _cycles_of(agent, hermes)
    if dry_run:
        return DryRun(planned("let go on" if clear else "ask to stop", agent))
    if clear:
        was_asked = cycles.clear_stop()
        text = f"{agent} may go on." if was_asked else f"{agent} was not asked to stop."
    else:
        cycles.request_stop(_clean(reason))
        text = f"{agent} begins no other cycle. Take it back: caloron cycle stop {agent} --clear"
    return Answer({"agent": agent, "stop": cycles.stop_request()}, text)


@cycle.command(
    project=True,
    examples=[
        "caloron cycle status allegro",
        "caloron cycle status reviewer-1 --project demo --output json",
    ],
)
@_agent
def status(agent: str, project: str | None, hermes: bool | None) -> Answer:
    """Show the state of an agent's cycles: the report that its next wake gets.

    An agent that has no cycles of its own may be one of the project's sprints: see --project.
    """
    cycles, ambiguity = _find(agent, project, hermes)
    loaded, report = cycles.load(), cycles.report()
    notices = (*loaded.notices, *ambiguity)
    _note(notices)
    alive = loaded.state.status == "open" and not cycles.reason_dead(loaded.state)
    data = {"report": report.as_data(), "alive": alive}
    return _answer(cycles, report.text(), loaded.state, notices, **data)


@cycle.command(
    project=True,
    examples=[
        "caloron cycle log allegro -n 20",
        "caloron cycle log allegro --cycle 42",
        "caloron cycle log reviewer-1 --project demo",
    ],
)
@_agent
@click.option(
    "-n",
    "--limit",
    type=Number(1, 100_000),
    default=50,
    show_default=True,
    metavar="N",
    help="At most this many lines, the newest ones.",
)
@click.option(
    "--cycle", "number", type=Number(1, _LARGEST), metavar="N", help="Only of this cycle."
)
def log(
    agent: str, limit: int, number: int | None, project: str | None, hermes: bool | None
) -> Answer:
    """Show the log of an agent's cycles, one line per event."""
    cycles, notices = _find(agent, project, hermes)
    _note(notices)
    newest = cycles.log.newest(10**6 if number else limit)
    entries = [entry for entry in newest if number in (None, entry["cycle"])][-limit:]
    text = "\n".join(map(shown, entries)) or "Nothing yet."
    return _answer(cycles, text, None, notices, entries=entries)


def _find(agent: str, project: str | None, hermes: bool | None) -> tuple[Cycles, tuple[str, ...]]:
    """The cycles of an agent, and a notice if an agent of the project has the same name.

    An agent's own cycles come first; those of a sprint are its ledger's, and shown if there are no
    others or a project is named.
    """
    if project is not None:
        if hermes is not None:
            hint = "leave out --project, or --hermes"
            raise UsageError("an agent of a project keeps no files in ~/.hermes", hint=hint)
        of_sprint = _of_sprint(agent, project)
        if of_sprint is None:
            raise NotFound(
                f"no agent {agent!r} has worked in project {project}",
                hint=f"caloron agents list --project {project}",
            )
        return of_sprint, ()
    own = _cycles_of(agent, hermes)
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

    try:
        folder = find_project(current_project_name() if project is None else project).agents
    except CaloronError:
        # Cycles need no project; one that was named has to exist.
        if project is not None:
            raise
        return None
    agent_dir = folder / _clean(agent)
    if not is_valid_id(agent) or not agent_dir.is_dir():
        return None
    # The agent is one of this project: now the active project is announced.
    find_project(project)
    return cycles_in(agent_dir)


_FORGE_NUMBER = Number(1, 2**31 - 1)


@cycle.command(
    project=True,
    dry_run=True,
    examples=[
        "caloron cycle breadcrumb allegro",
        "caloron cycle breadcrumb allegro --issue 12",
        "caloron cycle breadcrumb allegro --pull 14 --project shop --dry-run",
    ],
)
@_agent
@click.option("--issue", type=_FORGE_NUMBER, metavar="N", help="Write it on this issue.")
@click.option("--pull", type=_FORGE_NUMBER, metavar="N", help="Write it on this pull request.")
def breadcrumb(
    agent: str,
    issue: int | None,
    pull: int | None,
    hermes: bool | None,
    dry_run: bool,
    project: str | None,
) -> Answer | DryRun:
    """Report the progress of an agent on the forge; without a number, only print it.

    One comment is kept up to date, and from the second cycle on a section in the description; each
    is written once, however often this is called or killed. What people write around the section
    stays; a comment or section that a person deleted is not written again.
    """
    exclude_each_other(issue=issue, pull=pull)
    state, crumb = _crumb(agent, hermes)
    if issue is None and pull is None:
        if dry_run:
            return DryRun(planned("print", crumb.task))
        return Answer(_crumb_data(state, crumb), crumb.text)
    # Agents report every step with `act`, which needs neither a project nor a forge.
    from caloron.cli.commands.forge import wake_engine
    from caloron.engine.cycle_breadcrumbs import Place, leave
    from caloron.ledger.projects import load_project

    place = Place(number=issue or pull or 0, is_pull=pull is not None)
    loaded = load_project(project)
    if dry_run:
        actions = [planned("comment on", place.words)]
        if state.work_cycles > 1:
            actions.append(planned("describe", place.words))
        return DryRun(*actions)
    left = leave(loaded, state, crumb, place)
    wake_engine(loaded)
    _note(tuple(f"of an earlier call: {line}" for line in left.refused))
    written = attributes(left, "url", "done", "refused")
    written |= {"number": place.number, "pull": place.is_pull, "section": left.trail.section}
    written["comment"] = None if left.trail.deleted else left.trail.comment
    data = _crumb_data(state, crumb) | {"written": written}
    result = "up to date now" if left.done else "up to date already"
    if left.trail.deleted:
        result = "its comment was deleted there and is not written again"
    return Answer(data, f"Breadcrumb on {place.words}: {result}. {left.url}".rstrip())


def _crumb(agent: str, hermes: bool | None) -> tuple[CycleState, Breadcrumb]:
    state = _cycles_of(agent, hermes).load().state
    crumb = breadcrumb_of(state)
    if crumb is None:
        raise NotFound(
            f"{agent} has no work in progress",
            hint=f'name it: caloron cycle begin {agent} --work "issue 12"',
        )
    return state, crumb


def _crumb_data(state: CycleState, crumb: Breadcrumb) -> dict[str, Any]:
    data = attributes(crumb, "task", "key", "text")
    data |= attributes(state, "agent", "cycle_number", "work_cycles")
    return data | {"slice_it": to_slice(state.work_cycles), "written": None}
