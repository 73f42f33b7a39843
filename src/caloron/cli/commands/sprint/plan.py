"""The plan of a sprint before it runs: shown as a tree, edited as YAML."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from graphlib import TopologicalSorter
from typing import Any

import click
import msgspec
import yaml

from caloron.agents.clis.registry import FRAMEWORKS
from caloron.cli.commands.sprint.request import uncommitted_changes
from caloron.cli.format import counted, one_line, printable
from caloron.cli.output import is_terminal, wants_json
from caloron.cli.render import cells, folded, screen_width, wrapped
from caloron.domain.model.plan import PlannedTask, PlanProblem, parse_plan
from caloron.domain.model.sprint import Sprint, State
from caloron.domain.reporting import forge_texts
from caloron.domain.reporting.estimate import Estimate, estimate, experience
from caloron.durations import span
from caloron.engine.runs.runtime import runner
from caloron.engine.session import MAX_PLAN_BYTES, Session
from caloron.errors import CaloronError, PreconditionFailed, UsageError
from caloron.ledger.projects import Project
from caloron.ledger.run_history import last_figures
from caloron.store.files import write_atomic

#: The estimate uses this many earlier sprints: older ones say little about the next one.
_EXPERIENCE = 20


def plan_page(session: Session, state: State) -> str:
    """The plan as a tree, its estimate, and what agents do not see."""
    sprint, plan = state.sprint, tuple(task.plan for task in state.tasks.values())
    width = screen_width()
    about = [
        *estimate_text(sprint, plan, plan_estimate(session, state)).splitlines(),
        uncommitted_changes(session.project)[1],
    ]
    if sprint.source_issues:
        about.insert(0, forge_texts.source_line(sprint))
    parts = [f"\nThe plan of sprint {sprint.id}:\n", plan_tree(plan, width), ""]
    return "\n".join([*parts, *(folded(line, width) for line in about if line)])


def plan_details(plan: tuple[PlannedTask, ...]) -> str:
    """Each task with everything that its agent is asked."""
    width = screen_width()
    parts = []
    for task in plan:
        lines = [folded(f"{task.id}  {task.title}", width)]
        if notes := _notes(task, "", list(task.depends_on)):
            lines.append(folded(f"  ({'; '.join(notes)})", width, 4))
        lines += [folded(f"    {line}", width, 4) for line in task.agent_prompt.splitlines()]
        if task.acceptance:
            lines.append("  Done when:")
            lines += [folded(f"    - {line}", width, 6) for line in task.acceptance]
        if task.files:
            lines.append(folded(f"  Files: {', '.join(task.files)}", width, 4))
        parts.append("\n".join(lines))
    return "\n" + "\n\n".join(parts) + "\n"


def changes(before: tuple[PlannedTask, ...], after: tuple[PlannedTask, ...]) -> list[str]:
    """What an edit changed, one line for each task."""
    old, new = ({task.id: task for task in plan} for plan in (before, after))
    lines = [f"removed: {name}" for name in old if name not in new]
    lines += [f"added: {name}" for name in new if name not in old]
    for name in (name for name in new if name in old):
        fields: list[str] = [
            "prompt" if field == "agent_prompt" else field
            for field in PlannedTask.__struct_fields__
            if getattr(old[name], field) != getattr(new[name], field)
        ]
        lines += [f"changed: {name} ({', '.join(fields)})"] if fields else []
    return lines or ["changed: the order of the tasks"]


def plan_estimate(session: Session, state: State) -> Estimate:
    """Estimate the cost and the time of a plan from earlier sprints."""
    plan = tuple(task.plan for task in state.tasks.values())
    with session.ledger.db.snapshot() as connection:
        earlier = last_figures(connection, _EXPERIENCE)
    known = experience(
        (figures.state, figures.runs)
        for figures in earlier
        if figures.state.sprint.id != state.sprint.id
    )
    return estimate(plan, state.sprint.settings.parallel, known)


_EDITORS = ("sensible-editor", "nano", "vim", "vi")
_HEADER = """\
# The plan of sprint {sprint}, which waits for your approval.
#
# Change, add, remove or reorder tasks, then save and exit. An unchanged or
# empty file changes nothing. Each task has an id (a-z, 0-9, _ and -), a title
# and an agent_prompt; it may have depends_on, acceptance, files,
# kind (change or check), framework ({frameworks})
# and require_human_review (true: a person approves the merge).

"""
#: Lines with the errors of the last edit begin like this.
_ERROR = "#! "
_WIDTH = 78


class PlanEditor:
    """Edits the plan of one sprint; the edited file is kept until the plan is recorded."""

    def __init__(self, project: Project, sprint: str) -> None:
        self._project = project
        self._sprint = sprint
        self.file = project.path / "edits" / f"{sprint}.yml"

    def edit(self, plan: tuple[PlannedTask, ...]) -> tuple[PlannedTask, ...] | None:
        """The edited plan; None if it is unchanged."""
        before = self._text(plan)
        if self._kept(plan):
            _print(f"Your last edit is kept: {self.file}")
        else:
            write_atomic(self.file, before.encode())
        while True:
            self._open(before)
            try:
                edited = self._read()
            except PlanProblem as problem:
                self._note(problem.errors)
                if not self._again(problem):
                    return None
                continue
            if edited is None or edited == plan:
                self.forget()
                _print("The plan is unchanged.")
                return None
            for line in changes(plan, edited):
                _print(line)
            return edited

    def forget(self) -> None:
        """Remove the edited file."""
        self.file.unlink(missing_ok=True)

    def _kept(self, plan: tuple[PlannedTask, ...]) -> bool:
        """True if there is an edit that is not recorded yet."""
        try:
            return self._read() not in (None, plan)
        except PlanProblem:
            return True

    def _text(self, plan: tuple[PlannedTask, ...]) -> str:
        header = _HEADER.format(sprint=self._sprint, frameworks=", ".join(FRAMEWORKS))
        return header + "\n".join(
            yaml.dump(
                [_shown(task)], Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH
            )
            for task in plan
        )

    def _note(self, errors: tuple[str, ...]) -> None:
        """Put the errors of an edit at the top of its file, in the place of earlier ones."""
        typed = self.file.read_bytes().splitlines(keepends=True)
        while typed and typed[0].startswith(_ERROR.encode()):
            del typed[0]
        lines = ["This plan cannot be run:", *(f"  {one_line(error)}" for error in errors)]
        top = "".join(f"{_ERROR}{line}\n" for line in lines).encode("utf-8", "replace")
        write_atomic(self.file, top + b"".join(typed))

    def _read(self) -> tuple[PlannedTask, ...] | None:
        """The tasks in the file; None if it is empty or does not exist."""
        data = self.file.read_bytes() if self.file.exists() else b""
        if len(data) > MAX_PLAN_BYTES:
            raise PlanProblem([f"it has {len(data)} bytes; at most {MAX_PLAN_BYTES} are allowed"])
        try:
            # Every field is text or a list of text: `no`, `1` and dates must stay what they are.
            raw = yaml.load(data.decode("utf-8"), Loader=yaml.BaseLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            text = data.decode().splitlines()[mark.line : mark.line + 1] if mark else []
            # A line number would be wrong once the errors stand above it.
            line = f"at `{one_line(text[0], 60)}`: " if text else ""
            raise PlanProblem([f"{line}{error.problem or error.context}"]) from error
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            raise PlanProblem([f"it is not YAML: {error}"]) from error
        if raw in (None, "", []):
            return None
        if isinstance(raw, dict) and isinstance(raw.get("tasks"), list):
            raw = raw["tasks"]
        plan = parse_plan(raw, frameworks=FRAMEWORKS)
        self._refuse_missing_agents(plan)
        return plan

    def _refuse_missing_agents(self, plan: tuple[PlannedTask, ...]) -> None:
        for name in sorted({task.framework for task in plan if task.framework}):
            try:
                runner(self._project, name).check()
            except CaloronError as error:
                raise PlanProblem([f"framework {name}: {error}"]) from error

    def _open(self, before: str) -> None:
        """Run the editor; if it fails, the edited file is kept."""
        argv = (*_editor(), str(self.file))
        # Ctrl-C is for the editor now; a child does not inherit a Python handler.
        old = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            code = subprocess.run(
                argv, stdout=None if is_terminal() else sys.stderr, check=False
            ).returncode
            why = f"ended with exit code {code}" if code else ""
        except OSError as error:
            why = f"cannot be started: {error.strerror}"
        finally:
            signal.signal(signal.SIGINT, old)
        if not why:
            return
        kept = ""
        if self.file.exists() and self.file.read_bytes() != before.encode():
            kept = f"; your edit is kept in {self.file}"
        else:
            self.forget()
        raise PreconditionFailed(
            f"the editor {shlex.join(argv[:-1])} {why}; the plan is unchanged{kept}",
            hint="choose another with VISUAL or EDITOR",
        )

    def _again(self, problem: PlanProblem) -> bool:
        """Show the problems; True if the person wants to edit again."""
        if wants_json() or not is_terminal() or not sys.stdin.isatty():
            raise UsageError(
                "the edited plan cannot be run: " + "; ".join(problem.errors),
                hint=f"it is kept in {self.file}; edit it again to correct it",
            )
        _print("This plan cannot be run:")
        for error in problem.errors:
            _print(f"  {error}")
        words = ("", "y", "yes", "e", "edit", "n", "no")
        answer = "?"
        while answer not in words:
            answer = click.prompt("Edit it again? [Y/n]", default="", show_default=False)
            answer = answer.strip().lower()
        if not answer.startswith("n"):
            return True
        _print(f"The plan is unchanged; your edit is kept in {self.file}")
        return False


def _print(line: str) -> None:
    click.echo(printable(line), err=wants_json() or not is_terminal())


def _editor() -> tuple[str, ...]:
    for variable in ("VISUAL", "EDITOR"):
        try:
            words = shlex.split(os.environ.get(variable, ""))
        except ValueError as error:
            raise PreconditionFailed(
                f"{variable} cannot be read as a command: {error}", hint="correct it"
            ) from error
        if words:
            return tuple(words)
    for name in _EDITORS:
        if shutil.which(name):
            return (name,)
    raise PreconditionFailed("no editor was found", hint="name one with VISUAL or EDITOR")


def _shown(task: PlannedTask) -> dict[str, Any]:
    """A task as people edit it: short fields first, the prompt at the end."""
    fields = msgspec.to_builtins(task)
    prompt = fields.pop("agent_prompt")
    # People who read the file see that these exist.
    always = ("id", "title", "depends_on", "acceptance", "kind")
    shown = {name: value for name, value in fields.items() if value or name in always}
    return shown | {"agent_prompt": prompt}


class _Dumper(yaml.SafeDumper):
    """Writes long texts as YAML blocks, and lists with an indent."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text_node(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text or len(text) > _WIDTH else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text_node)


#: The maximum depth of the tree; deeper tasks name their dependencies in words.
_DEEPEST = 6
_LEAST_ROOM = 24
_INDENT = "  "


def plan_tree(plan: tuple[PlannedTask, ...], width: int) -> str:
    """The tasks, each below its last dependency; its other dependencies are named."""
    tasks = {task.id: task for task in plan}
    above, below, before = _arranged(tasks)
    lines: list[str] = []

    def draw(name: str, first: str, rest: str) -> None:
        children = below.get(name, [])
        # The dependencies of the parent need not be named again.
        shown = {above[name]} | before.get(above[name], set())
        needs = [need for need in tasks[name].depends_on if need not in shown]
        implied = {earlier for need in needs for earlier in before[need]}
        notes = _notes(tasks[name], above[name], [n for n in needs if n not in implied])
        lines.extend(_lines(tasks[name], notes, (first, rest), width, bool(children)))
        for number, child in enumerate(children):
            last = number == len(children) - 1
            draw(child, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "))

    for name in below.get("", []):
        draw(name, _INDENT, _INDENT)
    return "\n".join(lines)


def _arranged(
    tasks: dict[str, PlannedTask],
) -> tuple[dict[str, str], dict[str, list[str]], dict[str, set[str]]]:
    """The parent of each task in the tree (empty: none), its children, and all it depends on."""
    order = list(tasks)
    depth: dict[str, int] = {}
    above: dict[str, str] = {}
    before: dict[str, set[str]] = {}
    for name in TopologicalSorter({id: t.depends_on for id, t in tasks.items()}).static_order():
        needs = tasks[name].depends_on
        # The deepest dependency is the one that finishes last.
        parent = max(needs, key=lambda need: (depth[need], order.index(need)), default="")
        depth[name] = depth[parent] + 1 if parent else 0
        before[name] = set(needs).union(*(before[need] for need in needs))
        while parent and depth[parent] >= _DEEPEST:
            parent = above[parent]
        above[name] = parent
    below: dict[str, list[str]] = {}
    for name in sorted(tasks, key=lambda name: max(0, depth[name] - _DEEPEST)):
        below.setdefault(above[name], []).append(name)
    return above, below, before


def _notes(task: PlannedTask, parent: str, others: list[str]) -> list[str]:
    notes = []
    if others:
        also = "also after" if parent in task.depends_on else "after"
        notes.append(f"{also} {', '.join(others)}")
    if task.kind == "check":
        notes.append("a check, changes nothing")
    if task.require_human_review:
        notes.append("a person approves its merge")
    if task.framework:
        notes.append(f"by {task.framework}")
    return notes


def _lines(
    task: PlannedTask, notes: list[str], prefixes: tuple[str, str], width: int, has_children: bool
) -> list[str]:
    """One task: its id, its title and its notes, wrapped to the width."""
    first, rest = prefixes
    title = one_line(task.title)
    text = f"{title} ({'; '.join(notes)})" if notes else title
    start = f"{first}{task.id}  "
    hang = rest + ("│  " if has_children else "   ")
    room = width - cells(start)
    if room < min(_LEAST_ROOM, cells(text)):
        return [start.rstrip(), *(hang + line for line in wrapped(text, width - cells(hang)))]
    head, *more = wrapped(text, room)
    tail = wrapped(" ".join(more), width - cells(hang)) if more else []
    return [start + head, *(hang + line for line in tail)]


def _widest(plan: tuple[PlannedTask, ...]) -> int:
    """The largest number of tasks that become ready together."""
    order = TopologicalSorter({task.id: task.depends_on for task in plan})
    order.prepare()
    widest = 1
    while order.is_active():
        ready = order.get_ready()
        widest = max(widest, len(ready))
        order.done(*ready)
    return widest


def estimate_text(sprint: Sprint, plan: tuple[PlannedTask, ...], estimate: Estimate) -> str:
    """The estimated cost and time of the plan, their basis, and the budget."""
    tasks = counted(len(plan), "task")
    chain = f", longest chain: {estimate.steps}" if estimate.steps > 1 else ""
    at_once = min(sprint.settings.parallel, _widest(plan))
    lines = [f"{tasks}{chain}, up to {at_once} at the same time"]
    runs = f"about {counted(estimate.agent_runs, 'agent run')}"
    if not estimate.tasks:
        lines.append(f"estimate: {runs}; cost and time are unknown without an earlier sprint")
    else:
        cost = "cost unknown" if estimate.cost_usd is None else f"about ${estimate.cost_usd:.2f}"
        time = (
            "time unknown" if estimate.duration_s is None else f"about {span(estimate.duration_s)}"
        )
        sprints = counted(estimate.sprints, "earlier sprint")
        basis = f"{counted(estimate.tasks, 'done task')} of {sprints}"
        lines.append(f"estimate: {runs}, {cost}, {time} (by {basis})")
    plans = len(sprint.planning.remarks) + 1
    planned = f" for {plans} plans" if plans > 1 else ""
    spent = sprint.usage.spent.usd
    spent_text = f", of which ${spent:.2f} is spent{planned}" if spent else ""
    lines.append(f"budget: ${sprint.settings.budget_usd:.2f}{spent_text}")
    return "\n".join(lines)
