"""Writes docs/workflow.md and its picture from the table of rules in domain/rules/workflow.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from html import escape
from itertools import pairwise
from pathlib import Path

from caloron.domain.model.status import Status, Step
from caloron.domain.rules import workflow
from caloron.domain.rules.results import RESULTS, ResultRule

_DOCS = Path(__file__).parents[1] / "docs"
FILE = _DOCS / "workflow.md"
PICTURE = _DOCS / "workflow.svg"

_HEAD = """# The life of a task

<!-- made by scripts/workflow.py -->

A task is in one step at a time. `caloron why` and the live view show it in words; the status that
files and commands show follows from it. The rules are one ordered table in
`src/caloron/domain/rules/workflow.py`: for each task the first rule whose steps and condition match
is applied, until no rule changes anything. People's actions come first, so a person's later act
wins.

![The steps of a task](workflow.svg)

Dark arrows are the way of a task that meets no obstacle. People's acts and escalations are in the
tables below.
"""


def text() -> str:
    """The whole page."""
    return "\n".join((_HEAD, *_steps(), *_rules(), *_results(), *_queues(), *_people(), ""))


def _steps() -> Iterable[str]:
    yield "## Steps\n\n| status | steps |\n|---|---|"
    for status in Status:
        names = ", ".join(_name(step) for step in Step if step.status is status)
        yield f"| {status} | {names} |"


def _rules() -> Iterable[str]:
    parts = (
        ("What people do and what the forge shows", workflow.PEOPLE),
        ("Dependencies", workflow.DEPENDENCIES),
        ("Verification and review", workflow.REVIEW),
    )
    for heading, rules in parts:
        yield f"\n## {heading}\n\n| in | when | then | leads to |\n|---|---|---|---|"
        for rule in rules:
            yield _row(rule)


def _results() -> Iterable[str]:
    yield "\n## How work ends\n\n| in | result | then | leads to |\n|---|---|---|---|"
    for rule in RESULTS:
        yield _row(rule)


def _row(rule: workflow.Rule | ResultRule) -> str:
    return f"| {_set(rule.steps)} | {_line(rule.when)} | {_line(rule.do)} | {_set(rule.then)} |"


def _queues() -> Iterable[str]:
    yield "\n## Queues\n\nTasks share main and the slots, so these rules look at all of them.\n"
    yield "| in | rule | leads to |\n|---|---|---|"
    for rule in workflow.QUEUES:
        yield f"| {_set(rule.steps)} | {_line(rule.do)} | {_set(rule.then)} |"


def _people() -> Iterable[str]:
    """The acts of people and the steps in which they have an effect."""
    rules = [rule for rule in workflow.PEOPLE if rule.then and rule.when is not workflow.always]
    columns: dict[tuple[bool, ...], list[Step]] = {}
    for step in Step:
        columns.setdefault(tuple(step in rule.steps for rule in rules), []).append(step)
    yield (
        "\n## People by step\n\nWhere each of these acts has an effect (●). The effects in full:"
        " [When a person is needed](people.md#the-whole-table).\n"
    )
    heads = [", ".join(_name(step) for step in steps) for steps in columns.values()]
    yield "| act | " + " | ".join(heads) + " |"
    yield "|---|" + "---|" * len(columns)
    for rule, marks in zip(rules, zip(*columns, strict=True), strict=True):
        cells = " | ".join("●" if mark else "" for mark in marks)
        yield f"| {rule.when.__name__.replace('_', ' ')} | {cells} |"


def _line(function: Callable[..., object]) -> str:
    lines = (function.__doc__ or "").strip().splitlines()
    return lines[0].replace("|", "\\|") if lines else function.__name__


def _name(step: Step) -> str:
    return step.value.replace("_", " ")


_SETS = {
    workflow.ALL: "every step",
    workflow.ALL - {Step.DONE}: "every step but done",
    workflow.OPEN: "every step but done and cancelled",
    workflow.RUNNING: "every step but done, cancelled and escalated",
    workflow.IN_REVIEW: "every step in review",
    workflow.NOT_STARTED: "before it starts",
    frozenset(): "the same step",
}


def _set(steps: Set[Step]) -> str:
    return _SETS.get(frozenset(steps)) or ", ".join(_name(step) for step in Step if step in steps)


#: The steps from left to right and from top to bottom.
_PLACES: tuple[tuple[Step | None, ...], ...] = (
    (Step.WAITING, Step.READY, Step.IMPLEMENTING, Step.PUBLISHING, Step.REVIEW_QUEUED,
     Step.REVIEWING),
    (Step.BLOCKED, Step.CHECKING, Step.FIXING, Step.RESOLVING, Step.VERIFYING,
     Step.POSTING_VERDICT),
    (Step.CANCELLED, Step.ESCALATED, None, Step.MAIN_SUSPECT, Step.MERGE_VERIFYING,
     Step.MERGE_QUEUED),
    (None, Step.REVERTED, Step.REVERTING, Step.MERGED_UNVERIFIED, Step.WAITING_FOR_CI,
     Step.MERGING),
    (None, None, None, None, Step.AWAITING_APPROVAL, Step.DONE),
)  # fmt: skip
#: The way of a task that meets no obstacle.
_MAIN_WAY = (
    Step.WAITING, Step.READY, Step.IMPLEMENTING, Step.PUBLISHING, Step.REVIEW_QUEUED,
    Step.VERIFYING, Step.REVIEW_QUEUED, Step.REVIEWING, Step.POSTING_VERDICT, Step.MERGE_QUEUED,
    Step.MERGING, Step.DONE,
)  # fmt: skip
_WIDTH, _HEIGHT, _GAP_X, _GAP_Y = 150, 40, 40, 60


def picture() -> str:
    """The steps as boxes; arrows are the rules, without people's acts; the main way is dark."""
    at = {
        step: (20 + x * (_WIDTH + _GAP_X), 20 + y * (_HEIGHT + _GAP_Y))
        for y, row in enumerate(_PLACES)
        for x, step in enumerate(row)
        if step
    }
    own = (*workflow.DEPENDENCIES, *workflow.REVIEW, *RESULTS, *workflow.QUEUES)
    pairs = {(a, b) for rule in own for a in rule.steps for b in rule.then if a != b}
    pairs |= {(Step.PUBLISHING, Step.REVIEW_QUEUED), (Step.MERGING, Step.DONE)}
    pairs |= {(Step.MERGING, Step.MERGED_UNVERIFIED), (Step.MERGED_UNVERIFIED, Step.DONE)}
    pairs |= {(Step.POSTING_VERDICT, Step.MERGE_QUEUED), (Step.POSTING_VERDICT, Step.FIXING)}
    way = set(pairwise(_MAIN_WAY))
    order = sorted(pairs | way, key=lambda pair: (pair in way, list(Step).index(pair[0]), pair[1]))
    lines = [_arrow(at[a], at[b], main=(a, b) in way) for a, b in order if b is not Step.ESCALATED]
    width = 20 + len(_PLACES[0]) * (_WIDTH + _GAP_X)
    height = 20 + len(_PLACES) * (_HEIGHT + _GAP_Y)
    boxes = [_box(step, *place) for step, place in at.items()]
    return "\n".join((_SVG.format(width=width, height=height), *lines, *boxes, "</svg>\n"))


_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"
 font-size="14"><defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8"
 markerHeight="8" markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 L8 4 L0 8 z"
 fill="#557"/></marker></defs>"""


def _box(step: Step, x: int, y: int) -> str:
    fill = {Status.DONE: "#d9f2d9", Status.ESCALATED: "#fbe0cc"}.get(step.status, "#eef4f6")
    return (
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="{fill}"'
        ' stroke="#557"/>'
        f'<text x="{x + _WIDTH // 2}" y="{y + 25}" text-anchor="middle" fill="#222">'
        f"{escape(_name(step))}</text>"
    )


def _arrow(start: tuple[int, int], end: tuple[int, int], *, main: bool) -> str:
    (x1, y1), (x2, y2) = start, end
    if y1 == y2:
        right = x2 > x1
        a = (x1 + _WIDTH if right else x1, y1 + _HEIGHT // 2)
        b = (x2 if right else x2 + _WIDTH, y2 + _HEIGHT // 2)
    else:
        down = y2 > y1
        a = (x1 + _WIDTH // 2, y1 + _HEIGHT if down else y1)
        b = (x2 + _WIDTH // 2, y2 if down else y2 + _HEIGHT)
    pen = 'stroke="#335" stroke-width="2"' if main else 'stroke="#bbb"'
    return f'<line x1="{a[0]}" y1="{a[1]}" x2="{b[0]}" y2="{b[1]}" {pen} marker-end="url(#tip)"/>'


def stale() -> list[Path]:
    """The files that do not say what the table says."""
    made = {FILE: text(), PICTURE: picture()}
    return [
        path
        for path, content in made.items()
        if not path.exists() or path.read_text("utf-8") != content
    ]


if __name__ == "__main__":
    FILE.write_text(text(), "utf-8")
    PICTURE.write_text(picture(), "utf-8")
