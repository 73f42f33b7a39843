"""A plan as people see it before they say yes: a tree of tasks, and what they may take."""

from __future__ import annotations

from caloron.cli.output import printable
from caloron.cli.screen import cells, wrapped
from caloron.domain.estimate import Estimate
from caloron.domain.plan import PlannedTask
from caloron.domain.sprint import Sprint
from caloron.durations import span

#: Deeper than this the lines would have no room left: such a task says in words what it is after.
_DEEPEST = 6
_LEAST_ROOM = 24
_INDENT = "  "


def plan_tree(plan: tuple[PlannedTask, ...], width: int) -> str:
    """The tasks, each below the one it waits for last; what else it waits for is said."""
    above, below = _arranged(plan)
    tasks = {task.id: task for task in plan}
    before = _before(plan)
    lines: list[str] = []

    def draw(name: str, first: str, rest: str) -> None:
        children = below.get(name, [])
        # What the one above waits for need not be said again.
        shown = {above[name]} | before.get(above[name], set())
        needs = [need for need in tasks[name].depends_on if need not in shown]
        implied = {one for need in needs for one in before[need]}
        notes = _notes(tasks[name], above[name], [n for n in needs if n not in implied])
        lines.extend(_lines(tasks[name], notes, (first, rest), width, bool(children)))
        for number, child in enumerate(children):
            last = number == len(children) - 1
            draw(child, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "))

    for name in below.get("", []):
        draw(name, _INDENT, _INDENT)
    return "\n".join(lines)


def _before(plan: tuple[PlannedTask, ...]) -> dict[str, set[str]]:
    """Everything that each task waits for, near and far."""
    found: dict[str, set[str]] = {}
    while len(found) < len(plan):
        for task in plan:
            if task.id not in found and all(need in found for need in task.depends_on):
                found[task.id] = set(task.depends_on).union(*(found[n] for n in task.depends_on))
    return found


def _arranged(plan: tuple[PlannedTask, ...]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """For each task the one it is drawn below (empty: none), and the other way round."""
    tasks = {task.id: task for task in plan}
    order = {task.id: number for number, task in enumerate(plan)}
    depth: dict[str, int] = {}
    above: dict[str, str] = {}
    waiting = list(tasks)
    while waiting:
        for name in waiting:
            needs = tasks[name].depends_on
            if all(need in depth for need in needs):
                # Of several, the one that comes last holds it up.
                parent = max(needs, key=lambda need: (depth[need], order[need]), default="")
                while parent and depth[parent] >= _DEEPEST:
                    parent = above[parent]
                above[name] = parent
                depth[name] = 1 + max((depth[need] for need in needs), default=-1)
        waiting = [name for name in waiting if name not in depth]
    below: dict[str, list[str]] = {}
    for name in sorted(tasks, key=lambda name: max(0, depth[name] - _DEEPEST)):
        below.setdefault(above[name], []).append(name)
    return above, below


def _notes(task: PlannedTask, parent: str, others: list[str]) -> list[str]:
    notes = []
    if others:
        also = "also after" if parent in task.depends_on else "after"
        notes.append(f"{also} {', '.join(others)}")
    if task.kind == "check":
        notes.append("a check, changes nothing")
    if task.framework:
        notes.append(f"by {task.framework}")
    return notes


def _lines(
    task: PlannedTask, notes: list[str], prefixes: tuple[str, str], width: int, has_children: bool
) -> list[str]:
    """One task: its id, its title, and what the tree does not show; wrapped to the width."""
    first, rest = prefixes
    title = " ".join(printable(task.title).split())
    text = f"{title} ({'; '.join(notes)})" if notes else title
    start = f"{first}{task.id}  "
    hang = rest + ("│  " if has_children else "   ")
    room = width - cells(start)
    if room < min(_LEAST_ROOM, cells(text)):
        return [start.rstrip(), *(hang + line for line in wrapped(text, width - cells(hang)))]
    head, *more = wrapped(text, room)
    tail = wrapped(" ".join(more), width - cells(hang)) if more else []
    return [start + head, *(hang + line for line in tail)]


def estimate_text(sprint: Sprint, plan: tuple[PlannedTask, ...], found: Estimate) -> str:
    """What the plan may take, what that is judged by, and what it may cost at most."""
    tasks = _count(len(plan), "task")
    steps = f"{_count(found.steps, 'step')} after each other, " if found.steps > 1 else ""
    lines = [f"{tasks}: {steps}up to {sprint.parallel} at once"]
    runs = f"about {_count(found.agent_runs, 'agent run')}"
    if not found.tasks:
        lines.append(f"estimate: {runs}; no earlier sprint tells what they cost or how long")
    else:
        cost = "cost not known" if found.cost_usd is None else f"about ${found.cost_usd:.2f}"
        time = "time not known" if found.duration_s is None else f"about {span(found.duration_s)}"
        basis = f"{_count(found.tasks, 'done task')} of {_count(found.sprints, 'earlier sprint')}"
        lines.append(f"estimate: {runs}, {cost}, {time} (by {basis})")
    spent = f", of which ${sprint.spent.usd:.2f} is spent" if sprint.spent.usd else ""
    lines.append(f"budget: ${sprint.budget_usd:.2f}{spent}")
    return "\n".join(lines)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
