"""`kill -9` around every effect of a sprint on a real Gitea: artefacts exactly once.

A cell is one kind of effect: the engine is killed before it is done; what recovers from that is
killed after it was done and before that is recorded; and what recovers from that, after the record.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.forms import lost_work
from tests.chaos.recorder import Point
from tests.chaos.world import World, new_world
from tests.support import blind_gitea
from tests.support.figures import record_figures
from tests.support.gitea import Gitea, Repository
from tests.support.home import SOURCE, does, task, writes
from tests.support.live import REVIEWER_TOKEN, TOKEN, artefacts, done_twice, gitea_options

_AT_ONCE = 3 * (os.cpu_count() or 1)
_AROUND = ("effect.intend", "effect.do", "effect.record")
_RUN = ("sprint", "goal", "--yes", "--plan", "plan.json")
#: Everything that a sprint does to a forge, by its kind and the first word of its key.
PURPOSES = {
    "create_issue issue",
    "label label",
    "progress progress",
    "describe describe",
    "comment comment",
    "push push",
    "open_pull pull",
    "review review",
    "merge merge",
    "close_issue close",
    "create_issue escalation",
    "close_pull close_pull",
    "revert revert",
    "open_pull revert-pull",
    "reopen_issue reopen",
}
_AT_MOST_ONE_PART = "test $(ls parts 2>/dev/null | wc -l) -le 1"


@dataclass(frozen=True)
class Effect:
    """An effect of the undisturbed sprint."""

    key: str
    task: str
    kind: str
    #: The how manieth of its kind and task.
    k: int

    @property
    def purpose(self) -> str:
        """The purpose of the effect: an escalation is an issue, and a revert a pull request."""
        return f"{self.kind} {self.key.split('/')[0]}"

    def points(self) -> list[Point]:
        """The crash point of the effect; earlier effects are not repeated, and not counted."""
        counts = (self.k, 1, 1)
        return [
            Point("engine", f"{at}/{self.kind}/{self.task}", k)
            for at, k in zip(_AROUND, counts, strict=True)
        ]


@dataclass
class Cell:
    """A sprint with its kills, and its problems in the end."""

    effect: Effect
    kills: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass
class Scenario:
    """A sprint on the server whose end is known: each cell runs it in a repository of its own."""

    gitea: Gitea
    template: World
    plan: tuple[dict[str, Any], ...]
    folder: Path
    #: The exit code of a sprint that went as it should.
    code: int = 0
    #: Acts of a person during the sprint.
    person: Callable[[Repository, World], None] | None = None
    expected: dict[str, Any] = field(default_factory=dict)

    def copy(self, name: str) -> tuple[World, Repository]:
        world = self.template.copy_to(self.folder / name)
        repository = self.gitea.repository(self.gitea.person("robot"))
        for login in ("ada", "second"):
            repository.collaborator(self.gitea.person(login))
        world.set(repo=repository.full_name)
        world.plan(*self.plan)
        ada = self.gitea.person("ada")
        world.environment[blind_gitea.WHO] = f"{ada.url} ada {ada.token} {repository.full_name}"
        world.person = self.person and partial(self.person, repository.acting_as(ada))
        return world, repository

    def undisturbed(self) -> list[Effect]:
        """Run it once: what it leaves is what every cell must leave."""
        world, repository = self.copy("undisturbed")
        assert world.run(*_RUN) == self.code, world.log()
        assert done_twice(repository) == []
        assert _lost_work(world, repository) == []
        self.expected = _left(repository)
        return _effects(world)

    def run(self, effect: Effect) -> Cell:
        cell = Cell(effect)
        world, repository = self.copy(f"{effect.kind}-{effect.task}-{effect.k}")
        try:
            self._kill(world, cell)
            cell.problems += _differences(_left(repository), self.expected)
            cell.problems += [f"there twice: {key}" for key in done_twice(repository)]
            cell.problems += _lost_work(world, repository)
        except AssertionError as error:
            cell.problems.append(str(error))
        finally:
            world.kill_everything()
        return cell

    def _kill(self, world: World, cell: Cell) -> None:
        code = 0
        for number, point in enumerate(cell.effect.points()):
            once = world.root / f"killed-{number}"
            code = world.run(*self._words(world), CALORON_CRASH_AT=point.at(once))
            cell.kills += once.exists()
            if code != -signal.SIGKILL:
                cell.problems.append(f"not killed at {point}: exit code {code}")
                return
        code = world.run(*self._words(world))
        if code != self.code:
            cell.problems.append(f"exit code {code}\n{world.log()}")

    def _words(self, world: World) -> tuple[str, ...]:
        return ("resume",) if world.goal_recorded() else _RUN


def _effects(world: World) -> list[Effect]:
    """List all effects on the forge in their order."""
    rows = world.rows("SELECT key, task, kind FROM actions WHERE state = 'done' ORDER BY id")
    counts: Counter[tuple[str, str]] = Counter()
    effects = []
    for key, name, kind in rows:
        counts[name, kind] += 1
        effects.append(Effect(key, name or "", kind, counts[name, kind]))
    return effects


def _of_each_purpose(effects: Iterable[Effect]) -> list[Effect]:
    """The first of each, and the first change of a comment or section that was made before."""
    first_effects: dict[str, Effect] = {}
    for effect in effects:
        edits = effect.kind in ("progress", "describe") and effect.k == 2
        first_effects.setdefault(f"edit {effect.kind}" if edits else effect.purpose, effect)
    return list(first_effects.values())


def _one_account(folder: Path, gitea: Gitea) -> Scenario:
    """A task that is rejected once; verdicts are comments."""
    robot = gitea.person("robot")
    options = gitea_options(gitea.repository(robot))
    template = new_world(folder / "template", *options, env={TOKEN: robot.token})
    template.work = {"a": {"a.txt": "more a"}}
    template.script(
        writes("a"),
        does("review", "a", round=1, output="CHANGES_NEEDED: more"),
        does("fix", "a", files={"a.txt": "more a\n"}, output="done"),
        does("review", output="APPROVED"),
    )
    return Scenario(gitea, template, (task("a"),), folder)


def _two_accounts(folder: Path, gitea: Gitea) -> Scenario:
    """A merge that turns main red, a task that a person cancels, and one that is escalated."""
    robot, second = gitea.person("robot"), gitea.person("second")
    repository = gitea.repository(robot)
    repository.collaborator(second)
    template = new_world(
        folder / "template",
        *gitea_options(repository, reviewer=True),
        env={
            TOKEN: robot.token,
            REVIEWER_TOKEN: second.token,
            "PYTHONPATH": f"{SOURCE}:{SOURCE.parent}",
        },
        verify=_AT_MOST_ONE_PART,
    )
    template.program = (sys.executable, str(Path(blind_gitea.__file__)))
    template.work = {"a": {"parts/both": "both"}}
    template.script(
        writes("a", {"parts/a": "a\n"}),
        does("fix", "a", run="rm parts/*; echo both > parts/both", output="done"),
        writes("b"),
        does("implement", "c", exit_code=1, output="cannot do c"),
        does("review", "b", sleep_s=600, output="APPROVED"),
        does("review", output="APPROVED"),
    )
    plan = (task("a"), task("b"), task("c"))
    return Scenario(gitea, template, plan, folder, code=10, person=_cancels_b)


def _cancels_b(hers: Repository, _: World) -> None:
    """Cancel b on its issue as soon as its pull request is there."""
    time.sleep(0.3)
    if not [p for p in hers.pulls("open") if p["head"]["ref"].startswith("agent/b/")]:
        return
    (issue,) = [i["number"] for i in hers.issues() if i["title"] == "Task b"]
    if "caloron:cancel" not in [c["body"] for c in hers.comments(issue)]:
        hers.comment(issue, "caloron:cancel")


#: An attempt of an agent, and a person's comment: their numbers do not matter.
_NUMBERS = re.compile(r"(/feedback/\S+-|/cancelled/)[0-9]+$")


def _left(repository: Repository) -> dict[str, Any]:
    form = artefacts(repository)
    form["comments"] = sorted((on, _NUMBERS.sub(r"\1N", key)) for on, key in form["comments"])
    return form


def _lost_work(world: World, repository: Repository) -> list[str]:
    there = repository.files()
    return lost_work(world, lambda path: repository.file(path) if path in there else "")


def _differences(form: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    return [
        f"{name}: {form[name]!r} instead of {expected[name]!r}"
        for name in expected
        if form[name] != expected[name]
    ]


def test_a_kill_around_any_effect_on_gitea_leaves_every_artefact_exactly_once(
    tmp_path: Path, gitea: Gitea, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    one_account, two_accounts = (
        _one_account(tmp_path / "one", gitea),
        _two_accounts(tmp_path / "two", gitea),
    )
    with ThreadPoolExecutor(2) as pool:
        usual, special = pool.map(Scenario.undisturbed, (one_account, two_accounts))
    chosen = _of_each_purpose(usual)
    known = {effect.purpose for effect in chosen} - {"review review"}
    others = [e for e in _of_each_purpose(special) if e.purpose not in known]
    others += [e for e in special if (e.kind, e.task, e.k) == ("merge", "a", 2)]
    others.sort(key=special.index)
    assert {e.purpose for e in (*chosen, *others)} == PURPOSES
    every = [(one_account, effect) for effect in chosen] + [
        (two_accounts, effect) for effect in others
    ]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        cells = list(pool.map(lambda cell: cell[0].run(cell[1]), every))
    kills = sum(cell.kills for cell in cells)
    with capsys.disabled():
        record_figures(
            "kill -9 around every effect",
            {"kinds of effects": len(cells), "kills": kills}
            | {"failed": sum(bool(cell.problems) for cell in cells)}
            | {"seconds": round(time.monotonic() - began)},
        )  # fmt: skip
    failed = [f"{cell.effect}: {'; '.join(cell.problems)}" for cell in cells if cell.problems]
    assert not failed, "\n\n".join(failed)
    assert kills == len(_AROUND) * len(cells)
