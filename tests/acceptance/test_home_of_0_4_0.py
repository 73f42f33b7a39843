"""A home that version 0.4.0 left in the middle of everything opens, and its sprints finish.

`tests/data/make_home_0_4_0.py` made it: eight sprints that wait or were killed, each in a project
that is named after its state, and three that are over.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.home import Answer, Home, does, task, writes
from tests.support.older_home import unpack

_COST_USD = 0.25
_LESSON = "Put the price list into the repository"
_PAID: dict[str, Any] = {"report": {"cost_usd": _COST_USD}}


class Left(NamedTuple):
    """A sprint as 0.4.0 left it, and its expected end."""

    phase: str
    statuses: dict[str, str]
    why: str
    #: The tasks in the order of their merges.
    tasks: str
    #: Answers of agents in all, each paid once.
    runs: int
    #: Set if there is not exactly one merge for each task.
    merges: tuple[str, ...] = ()

    @property
    def merged(self) -> list[str]:
        """The titles of the merged pull requests, oldest first."""
        return list(self.merges) or [f"[{name}] Task {name}" for name in self.tasks]

    @property
    def files(self) -> dict[str, str]:
        """The files on main in the end, except for the first file of the project."""
        return {"parts/both": "both\n"} if self.merges else _of(self.tasks)


def _of(names: str) -> dict[str, str]:
    return {f"{name}.txt": f"{name}\n" for name in names}


LEFT = {
    "planning": Left("planning", {}, "planner", "a", 3),
    "approval": Left(
        "approval", {"a": "Pending", "b": "Pending"}, "the plan waits for your approval", "ab", 5
    ),
    "running": Left(
        "running", {"a": "Done", "b": "InProgress"}, "an agent is writing the change", "ab", 5
    ),
    "retro": Left("retro", {"a": "Done"}, "", "a", 4),
    "escalated": Left(
        "running",
        {"a": "Blocked", "b": "Escalated", "c": "InProgress"},
        "comment `resolved` on issue #4 to continue",
        "cba",
        # b failed twice before.
        9,
    ),
    "queue": Left(
        "running",
        {"a": "Done", "b": "Done", "c": "InReview", "d": "InReview"},
        "in a train of 2 with d: being verified together",
        "abcd",
        9,
    ),
    "merging": Left("running", {"a": "InReview"}, "being merged", "a", 3),
    "unverified": Left(
        "running",
        {"a": "InReview"},
        "merged, main is being verified again",
        "a",
        5,
        merges=("[a] Task a", "Revert #2: [a] Task a", "[a] Task a"),
    ),
}
OVER = {
    "ended": ("ended", {"c": "Done"}),
    "discarded": ("ended", {"a": "Cancelled"}),
}


def caloron(home: Home, project: str, *words: str) -> Answer:
    return home.caloron(*words, "--project", project)


def on_main(home: Home, project: str) -> tuple[dict[str, str], list[str]]:
    """The files of main, and what was merged to it, oldest first."""
    forge = home.project(project) / "forge.git"

    def git(*words: str) -> str:
        argv = ("git", f"--git-dir={forge}", *words)
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout

    names = git("ls-tree", "-r", "--name-only", "main").splitlines()
    files = {name: git("show", f"main:{name}") for name in names if name != "README.md"}
    subjects = git("log", "--first-parent", "--reverse", "--format=%s", "main").splitlines()
    # Version 0.4.0 wrote the number of the pull request.
    form = re.compile(r"Merge (?:pull request #\d+: )?(.*)")
    merges = [match[1] for match in map(form.fullmatch, subjects) if match]
    return files, merges


def last_sprint(home: Home, project: str) -> dict[str, Any]:
    data: dict[str, Any] = caloron(home, project, "status").data["last_sprint"]
    return data


def statuses(home: Home, project: str) -> dict[str, str]:
    return {task["id"]: task["status"] for task in last_sprint(home, project)["tasks"]}


def paid(home: Home, project: str) -> list[float]:
    """Return the cost of the agents' answers, as the status and the report add it up."""
    report = caloron(home, project, "report").data
    return [last_sprint(home, project)["cost_usd"], report["kpis"]["cost_usd"]]


def finish(home: Home, project: str) -> Answer:
    """Continue as a user who approves the plan and releases b."""
    answer = caloron(home, project, "resume", "--yes")
    if project == "escalated":
        assert answer.code == 10, answer
        assert caloron(home, project, "issue", "comment", "4", "resolved").code == 0
        answer = caloron(home, project, "resume")
    return answer


@pytest.mark.parametrize("project", [*LEFT, *OVER])
def test_every_project_is_shown_as_it_was_left(bare_home: Home, project: str) -> None:
    unpack(bare_home.root, project)
    state = LEFT.get(project)
    phase, tasks = (state.phase, state.statuses) if state else OVER[project]
    shown = last_sprint(bare_home, project)
    assert (shown["phase"], statuses(bare_home, project)) == (phase, tasks)
    if state:
        why = bare_home.caloron("why", "--project", project, json=False)
        assert why.code == 0, why
        assert state.why in why.stdout
    history = caloron(bare_home, project, "history").data["sprints"]
    numbers = (2, 1) if project == "ended" else (1,)
    assert [s["sprint_id"] for s in history] == [f"{project}-{n}" for n in numbers]
    verified = caloron(bare_home, project, "state", "verify")
    # Texts that we would write otherwise today are no damage.
    deviations = [deviation["found"] for deviation in verified.data["deviations"]]
    assert set(deviations) <= {"an older text of ours"}
    assert caloron(bare_home, project, "state", "verify", "--repair").code == 0


@pytest.mark.parametrize("project", LEFT)
def test_a_sprint_of_0_4_0_finishes_and_nothing_is_lost_or_repeated(
    bare_home: Home, project: str
) -> None:
    left = LEFT[project]
    unpack(bare_home.root, project)
    # Neither the planner nor the model of the retro is asked again.
    bare_home.script(
        *(writes(name, **_PAID) for name in "abcd"),
        does("fix", run="rm parts/*; echo both > parts/both", output="done", **_PAID),
        does("review", output="fine\nAPPROVED", **_PAID),
    )
    answer = finish(bare_home, project)
    assert answer.code == 0, answer
    assert set(answer.statuses.values()) == {"Done"}

    files, merged = on_main(bare_home, project)
    assert files == left.files
    assert merged == left.merged
    issues = caloron(bare_home, project, "issue", "list", "--state", "all").data["issues"]
    titles = [i["title"] for i in issues if "caloron:task" in i["labels"]]
    assert sorted(titles) == [f"Task {name}" for name in sorted(answer.statuses)]
    assert len(issues) == len(titles) + (project == "escalated")
    pulls = caloron(bare_home, project, "pr", "list", "--state", "all").data["pull_requests"]
    assert sorted((p["title"], p["state"]) for p in pulls) == [
        (title, "merged") for title in sorted(left.merged)
    ]
    assert paid(bare_home, project) == [left.runs * _COST_USD] * 2
    assert caloron(bare_home, project, "state", "verify").code == 0

    name = f"{project}-1"
    kept = bare_home.state_file(name)["state"]["tasks"]
    assert {task: state["status"] for task, state in kept.items()} == answer.statuses
    learned = json.loads((bare_home.project(project) / "workspace/learnings.json").read_bytes())
    (record,) = learned["sprints"]
    assert (record["sprint_id"], record["completed"]) == (name, len(answer.statuses))
    if project == "retro":
        # The model had answered before the engine was killed.
        assert [i["text"] for i in learned["improvements"]] == [_LESSON]


def test_the_next_sprint_gets_the_learnings_and_the_conventions(
    bare_home: Home,
) -> None:
    unpack(bare_home.root, "ended")
    bare_home.script(does("po", output=json.dumps([task("d")]), **_PAID), writes("d"))
    answer = caloron(bare_home, "ended", "sprint", "more", "--yes")
    assert answer.code == 0, answer
    assert on_main(bare_home, "ended")[0] == _of("abcd")
    (prompt,) = bare_home.project("ended").glob("runs/ended-3/po/*/*/prompt.txt")
    asked = prompt.read_text()
    assert _LESSON in asked
    assert "the price list is missing" in asked
    (prompt,) = bare_home.project("ended").glob("runs/ended-3/d/*-implement/*/prompt.txt")
    assert "Example Ltd" in prompt.read_text()
    learned = json.loads((bare_home.project("ended") / "workspace/learnings.json").read_bytes())
    known = [(s["sprint_id"], s["cost_usd"]) for s in learned["sprints"]]
    assert known[:2] == [("ended-1", 1.5), ("ended-2", 1.0)]
    assert [name for name, _ in known] == ["ended-1", "ended-2", "ended-3"]


def test_an_agent_with_cycles_knows_the_end_of_its_last_cycle(bare_home: Home) -> None:
    unpack(bare_home.root, "ended")
    begun = bare_home.caloron("cycle", "begin", "allegro").data["report"]
    assert (begun["cycle_number"], begun["next_target"]) == (2, "tests")
    assert (begun["work_in_progress"], begun["artefacts"]) == ("issue 12", ["branch fix-12"])


def test_a_backup_of_0_4_0_is_restored_and_its_sprint_finishes(
    bare_home: Home, tmp_path: Path
) -> None:
    unpack(bare_home.root, "ended")
    restored = bare_home.caloron("state", "restore", str(tmp_path / "running.tar"))
    assert restored.code == 0, restored
    bare_home.script(writes("b"), does("review", output="fine\nAPPROVED"))
    answer = finish(bare_home, "running")
    assert answer.statuses == {"a": "Done", "b": "Done"}
    assert on_main(bare_home, "running") == (LEFT["running"].files, LEFT["running"].merged)
