"""The diamond on a real Gitea, driven by the engine.

Two tasks and one that needs both. Nothing is set by hand: agents
wait at gates, so that each step of the table is reached; then the objects on the forge are compared
with the expectations of the git protocol, field by field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from caloron.domain.model.snapshots import marker_key, without_markers
from tests.support.gitea import Server
from tests.support.home import does, writes
from tests.support.live import GiteaHome
from tests.support.wait import wait_for

TITLES = {
    "task-1": "Implement auth middleware",
    "task-2": "Implement session store",
    "task-3": "Integration tests for auth",
}
NEEDS: dict[str, list[str]] = {"task-1": [], "task-2": [], "task-3": ["task-1", "task-2"]}
LETTER = {"Pending": "P", "Ready": "R", "InProgress": "G", "InReview": "V", "Done": "D"}

TASK, ASSIGNED, DONE = "caloron:task", "caloron:assigned", "caloron:done"
WAITING = {"state": "open", "labels": [TASK], "comments": [], "pull": None}
STARTED = WAITING | {"labels": [ASSIGNED, TASK]}
#: The feedback that each author ends with.
FEEDBACK = "feedback: {task}, completed"
IN_REVIEW = STARTED | {"comments": [FEEDBACK], "pull": {"state": "open", "verdicts": []}}
FINISHED = {
    "state": "closed",
    "labels": [ASSIGNED, DONE, TASK],
    "comments": [FEEDBACK, "completed: Completed via PR #{pull}"],
    "pull": {"state": "merged", "verdicts": ["APPROVED\n\nat gate judge-{task}"]},
}
#: Step, the statuses of the three tasks, and the expected objects on the forge for each task.
TABLE: list[tuple[str, str, tuple[dict[str, Any], ...]]] = [
    ("both are started", "GGP", (STARTED, STARTED, WAITING)),
    ("pull request of task-1", "VGP", (IN_REVIEW, STARTED, WAITING)),
    ("pull request of task-2", "VVP", (IN_REVIEW, IN_REVIEW, WAITING)),
    ("task-1 is merged", "DVP", (FINISHED, IN_REVIEW, WAITING)),
    ("task-2 is merged, task-3 starts", "DDG", (FINISHED, FINISHED, STARTED)),
    ("pull request of task-3", "DDV", (FINISHED, FINISHED, IN_REVIEW)),
    ("task-3 is merged", "DDD", (FINISHED, FINISHED, FINISHED)),
]
#: Every state of the three tasks, move by move.
MOVES = ["PPP", "RPP", "RRP", "GRP", "GGP", "VGP", "VVP", "DVP", "DDP", "DDR", "DDG", "DDV", "DDD"]


@pytest.fixture
def home(gitea: Server, tmp_path: Path) -> Iterator[GiteaHome]:
    made = GiteaHome(tmp_path, gitea).on_gitea(parallel=2)
    yield made
    made.close()


def plan() -> list[dict[str, Any]]:
    return [
        {"id": name, "title": title, "agent_prompt": f"do {name}", "depends_on": NEEDS[name]}
        for name, title in TITLES.items()
    ]


def on_the_forge(home: GiteaHome) -> dict[str, dict[str, Any]]:
    """Return the objects on the forge for each task, with names instead of numbers."""
    repository = home.repository
    pulls = {marker_key(pull["body"]).split("/")[2]: pull for pull in repository.pulls()}
    rows: dict[str, dict[str, Any]] = {}
    for issue in repository.issues():
        kind, _, name = marker_key(issue["body"]).split("/")
        assert (kind, issue["title"]) == ("issue", TITLES[name])
        assert name not in rows, f"{name} has two issues"
        comments = [c["body"] for c in repository.comments(issue["number"])]
        texts = [(marker_key(body).split("/")[3], _words(body)) for body in comments]
        rows[name] = {
            "state": issue["state"],
            "labels": sorted(label["name"] for label in issue["labels"]),
            # The progress comment changes all the time; another assertion covers it.
            "comments": [f"{purpose}: {text}" for purpose, text in texts if purpose != "progress"],
            "pull": _pull(home, pulls[name], issue["number"]) if name in pulls else None,
        }
    return dict(sorted(rows.items()))


def _words(comment: str) -> str:
    """A comment without its marker; of feedback only the fields that are the same in each run."""
    feedback = re.search(r'task_id: "(.+)"(?s:.+)self_assessment: "(.+)"', comment)
    return f"{feedback[1]}, {feedback[2]}" if feedback else without_markers(comment)


def _pull(home: GiteaHome, pull: dict[str, Any], issue: int) -> dict[str, Any]:
    name = marker_key(pull["body"]).split("/")[2]
    assert pull["title"] == f"[{name}] {TITLES[name]}"
    assert (pull["head"]["label"], pull["base"]["ref"]) == (f"agent/{name}/demo-1", "main")
    body = without_markers(pull["body"])
    assert body.startswith(f"Closes #{issue}\n\nAgent: caloron-agent-{name}")
    # A new pull request is described by an effect of its own.
    if pull["merged"]:
        assert "\n### Summary\n\n" in body
        assert "\nDone.\n" in body
    verdicts = [c["body"] for c in home.repository.comments(pull["number"])]
    assert all(marker_key(v).startswith(f"review/{pull['number']}/") for v in verdicts)
    return {
        "state": "merged" if pull["merged"] else pull["state"],
        "verdicts": [without_markers(verdict) for verdict in verdicts],
    }


def expected(home: GiteaHome, step: tuple[dict[str, Any], ...]) -> dict[str, dict[str, Any]]:
    numbers = {marker_key(p["body"]).split("/")[2]: p["number"] for p in home.repository.pulls()}
    return {
        name: _filled(row, task=name, pull=numbers.get(name))
        for name, row in zip(TITLES, step, strict=True)
    }


def _filled(value: Any, **names: Any) -> Any:
    """A row of the table with the names and numbers of this run."""
    if isinstance(value, dict):
        return {key: _filled(each, **names) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, **names) for each in value]
    return value.format(**names) if isinstance(value, str) else value


def statuses(home: GiteaHome) -> str:
    try:
        tasks = home.state_file()["state"]["tasks"]
    except FileNotFoundError:
        return ""
    return "".join(LETTER.get(tasks[name]["status"], "?") for name in TITLES if name in tasks)


def moves(home: GiteaHome) -> list[str]:
    now = dict.fromkeys(TITLES, "P")
    steps = ["PPP"]
    for move in home.events("task_moved"):
        assert now[move["task"]] == LETTER[move["old"]], move
        now[move["task"]] = LETTER[move["new"]]
        steps.append("".join(now.values()))
    return steps


def check(home: GiteaHome, number: int) -> None:
    what, letters, step = TABLE[number]
    wait_for(lambda: statuses(home) == letters, f"{what}: {letters}")
    try:
        wait_for(lambda: on_the_forge(home) == expected(home, step), what)
    except AssertionError:
        assert (what, on_the_forge(home)) == (what, expected(home, step))
        raise


def test_the_diamond_follows_the_table_on_a_real_gitea(home: GiteaHome) -> None:
    names = list(TITLES)
    work = {name: home.gate(f"work-{name}") for name in names}
    judge = {name: home.gate(f"judge-{name}") for name in names}
    home.script(
        *(writes(name, run=work[name].line) for name in names),
        *(does("review", name, run=f"{judge[name].line}; echo APPROVED") for name in names),
    )
    running = home.start_sprint(*plan())
    check(home, 0)
    work["task-1"].open()
    check(home, 1)
    work["task-2"].open()
    check(home, 2)
    judge["task-1"].open()
    check(home, 3)
    judge["task-2"].open()
    check(home, 4)
    work["task-3"].open()
    check(home, 5)
    judge["task-3"].open()
    check(home, 6)
    answer = running.wait()
    assert answer.code == 0, answer
    assert (answer.data["phase"], answer.data["total_tasks"]) == ("ended", 3)
    assert answer.data["completed_tasks"] == 3
    # The forge decides which of the two first issues it reports first.
    assert [("GRP" if step == "RGP" else step) for step in moves(home)] == MOVES
    _check_the_end(home)


def _check_the_end(home: GiteaHome) -> None:
    repository = home.repository
    assert repository.files() == {"README.md", "task-1.txt", "task-2.txt", "task-3.txt"}
    assert len(repository.issues()) == len(repository.pulls()) == 3
    for pull in repository.pulls():
        statuses_of_head = {
            s["context"]: s["status"] for s in repository.statuses(pull["head"]["sha"])
        }
        assert statuses_of_head == {"caloron/review": "success"}
        assert pull["merged_by"] is None or pull["merged_by"]["login"] == "ada"
    for issue in repository.issues():
        bodies = [c["body"] for c in repository.comments(issue["number"])]
        (progress,) = (b for b in bodies if marker_key(b).endswith("/progress"))
        assert re.search(r"^\*\*task-\d\*\* is \*\*Done\*\*", progress)
        assert {c["user"]["login"] for c in repository.comments(issue["number"])} == {"ada"}
    names = [label["name"] for label in repository.labels()]
    assert len(names) == len(set(names))
