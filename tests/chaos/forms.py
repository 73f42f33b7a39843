"""Normal forms of a sprint: everything a user can notice, without numbers, hashes and times."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.chaos.world import World
from tests.support.git import git

#: The fields of a task that the stages steer by.
_STEERING = (
    "status", "links.generation", "change.is_empty", "attempts.failures", "escalation.number"
)  # fmt: skip
_SET_OR_NOT = ("change.head", "links.issue", "links.pull", "escalation.resume_work")
#: Commits that count only by whether they are the task's current head.
_OF_THE_HEAD = ("change.pushed", "review.posted_for", "merge.merging")
_AT_REST = ("Pending", "Done")
_OPEN_ACTION = ("planned", "intended")
_OPEN_ITEM = ("pending", "in_flight")


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=10)
    connection.row_factory = sqlite3.Row
    try:
        yield connection
    finally:
        connection.close()


def _all(connection: sqlite3.Connection, table: str, order: str) -> list[sqlite3.Row]:
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
        return []
    return connection.execute(f"SELECT * FROM {table} ORDER BY {order}").fetchall()


def durable_form(world: World) -> str:
    """Return the state that a crash at this moment would leave for the next engine.

    Finished and future tasks are left out, and so are names: the same situation of another
    task is the same form. The last effects of a finished task count once nothing else goes on,
    since no other task can see them.
    """
    if not (world.project() / "ledger.sqlite").exists():
        return ""
    with _reading(world.project() / "forge.sqlite") as forge:
        forge.execute("BEGIN")
        there = _Forge(forge, _refs(world.forge_git))
    with _reading(world.project() / "ledger.sqlite") as ledger:
        ledger.execute("BEGIN")
        form = _ledger_form(ledger, there)
    return json.dumps(form, sort_keys=True)


class _Forge:
    """The forge at one moment: which effects it shows, and whether its records follow its refs."""

    def __init__(self, forge: sqlite3.Connection, refs: dict[str, str]) -> None:
        self.refs = refs
        self.issues = {r["number"]: r for r in _all(forge, "issues", "number")}
        self.pulls = {r["number"]: r for r in _all(forge, "pulls", "number")}
        rows = (*self.issues.values(), *self.pulls.values())
        rows += (*_all(forge, "comments", "id"), *_all(forge, "reviews", "id"))
        self.keys = {r["marker_key"] for r in rows}
        tips = {r["name"]: r["tip"] for r in _all(forge, "branches", "name")}
        self.in_step = all(tips.get(name) == commit for name, commit in refs.items())

    def shows(self, effect: dict[str, Any]) -> bool:  # noqa: PLR0911 - one line for each
        match effect["type"]:
            case "push":
                return bool(self.refs.get(effect["branch"]) == effect["new"])
            case "merge":
                return bool(self.pulls[effect["pull"]]["state"] == "merged")
            case "label":
                return bool(effect["label"] in self.issues[effect["issue"]]["labels"])
            case "close_issue":
                return bool(self.issues[effect["issue"]]["state"] == "closed")
            case "progress":
                return bool(effect["marker"] in self.keys)
            case "describe":
                return effect["section"] in self.pulls[effect["number"]]["body"]
            case "reopen_issue":
                return bool(self.issues[effect["issue"]]["state"] == "open")
            case "revert":
                return effect["branch"] in self.refs
            case _:
                return bool(effect["key"] in self.keys)


def _ledger_form(ledger: sqlite3.Connection, there: _Forge) -> dict[str, Any]:
    actions = [r for r in _all(ledger, "actions", "id") if r["state"] in _OPEN_ACTION]
    # No task waits for comments about another task: they count where nothing else is open.
    actions = [r for r in actions if r["kind"] not in ("progress", "describe")] or actions
    results = {r["item"]: r["result"] is not None for r in _all(ledger, "leases", "item")}
    items = [
        (r["kind"], r["status"], results[r["id"]])
        for r in _all(ledger, "work_items", "id")
        if r["status"] in _OPEN_ITEM
    ]
    facts = [json.loads(r["data"]) for r in _all(ledger, "inbox", "id")]
    tasks = [
        json.loads(r["data"]) | {"status": r["status"]} for r in _all(ledger, "tasks", "position")
    ]
    active = [t for t in tasks if t["status"] not in _AT_REST]
    done = {t["plan"]["id"] for t in tasks if t["status"] == "Done"}
    return {
        "sprints": [
            (r["phase"], _field(json.loads(r["data"]), "planning.work") is not None)
            for r in _all(ledger, "sprints", "number")
        ],
        "tasks": sorted(_steering(t) for t in active),
        "effects": sorted(
            (r["kind"], r["state"], there.shows(json.loads(r["data"])))
            for r in actions
            if not active or r["task"] not in done
        ),
        "items": sorted(items),
        "ends": sorted(f["role"] for f in facts if f["type"] == "work_ended"),
        "in_step": there.in_step,
    }


def _field(data: Any, path: str) -> Any:
    """Return a stored field by its path; None where a group is not there."""
    for name in path.split("."):
        data = data.get(name) if data else None
    return data


def _steering(task: dict[str, Any]) -> list[str]:
    head, verified = _field(task, "change.head"), _field(task, "merge.verified")
    steering = [f"{path}={_field(task, path)}" for path in _STEERING]
    steering += [path for path in _SET_OR_NOT if _field(task, path)]
    steering += [path for path in _OF_THE_HEAD if _field(task, path) and _field(task, path) == head]
    if verified and verified["head"] == head:
        steering.append("verified")
    if _field(task, "merge.unverified"):
        revert = _field(task, "merge.revert") or {}
        steps = ("head", "pull", "merged", "sound", "reopened")
        steering += ["unverified", *(f"revert {step}" for step in steps if revert.get(step))]
    return [*steering, f"work={_field(task, 'work.role') or ''}"]


def _refs(repository: Path) -> dict[str, str]:
    heads = repository / "refs" / "heads"
    return {
        str(file.relative_to(heads)): file.read_text("ascii").strip()
        for file in heads.rglob("*")
        if file.is_file() and file.suffix != ".lock"
    }


def final_form(world: World) -> dict[str, Any]:
    """Return the result of a finished sprint, per task and purpose."""
    with _reading(world.project() / "ledger.sqlite") as ledger:
        statuses = {r["id"]: r["status"] for r in _all(ledger, "tasks", "position")}
        sprints = _all(ledger, "sprints", "number")
        phases = [(r["id"], r["phase"]) for r in sprints]
        insights = [json.loads(r["data"]).get("insight") for r in sprints]
        open_effects = ledger.execute(
            "SELECT count(*) FROM actions WHERE state IN ('planned', 'intended')"
        ).fetchone()[0]
        open_items = ledger.execute(
            "SELECT count(*) FROM work_items WHERE status IN ('pending', 'in_flight')"
        ).fetchone()[0]
    with _reading(world.project() / "forge.sqlite") as forge:
        issues, pulls = _all(forge, "issues", "number"), _all(forge, "pulls", "number")
        comments, reviews = _all(forge, "comments", "id"), _all(forge, "reviews", "id")
    names = {row["number"]: _purpose(row["marker_key"]) for row in (*issues, *pulls)}
    return {
        "phases": phases,
        "insights": insights,
        "statuses": statuses,
        "open": (open_effects, open_items),
        "tree": git(world.forge_git, "rev-parse", "main^{tree}"),
        "merges": sorted(_merges(world.forge_git, names)),
        "issues": sorted((names[r["number"]], r["state"], r["labels"]) for r in issues),
        "pulls": sorted(
            (names[r["number"]], r["state"], r["branch"], _closes(r["body"], names)) for r in pulls
        ),
        "sections": sorted(
            (names[r["number"]], r["body"].count("<!-- caloron-section:")) for r in pulls
        ),
        "comments": sorted(_comments(comments, names)),
        "reviews": sorted(
            (names[r["pull"]], _round(r["marker_key"]), r["verdict"]) for r in reviews
        ),
        "files": _files(world.project()),
    }


def _files(project: Path) -> dict[str, Any]:
    """Return the content of the files that scripts read."""
    workspace = project / "workspace"
    history = _json(project / "sprints.json").get("sprints", [])
    learnings = _json(workspace / "learnings.json").get("sprints", [])
    versions = _json(workspace / "agent_versions.json")
    return {
        "sprints": [(r["id"], r["exit_code"], r["completed_tasks"]) for r in history],
        "learnings": [(r["sprint_id"], r["completed"]) for r in learnings],
        "plan": [task["id"] for task in _json(workspace / "dag.json")],
        "agents": sorted(file.name for file in workspace.glob("agents/*.agent")),
        "versions": sorted((agent, len(known)) for agent, known in versions.items()),
        "skills": sorted(_json(workspace / "skill_store.json")),
        "set aside": sorted(file.name for file in workspace.glob("*.json.*-*")),
    }


def _json(file: Path) -> Any:
    """Return `{}` for a missing file; a half-written file fails here."""
    return json.loads(file.read_bytes()) if file.exists() else {}


def _comments(rows: list[Any], names: dict[int, str]) -> list[tuple[str, str]]:
    """Return all comments by issue; the number in the marker of feedback is left out as random."""
    named_keys = [(names[row["issue"]], _purpose(row["marker_key"])) for row in rows]
    feedback = {(name, re.sub(r"/\d+-(\w+)-\d+$", r"/\1", key)) for name, key in named_keys
                if "/feedback/" in key}  # fmt: skip
    return [(name, key) for name, key in named_keys if "/feedback/" not in key] + sorted(feedback)


def _purpose(key: str) -> str:
    return re.sub(r"[0-9a-f]{40}", "COMMIT", key)


def _round(key: str) -> str:
    """`review/<pull>/<head>/<round>/<claim>`: only the round is not a matter of chance."""
    return key.split("/")[3] if key.count("/") == 4 else key


def _closes(body: str, names: dict[int, str]) -> str:
    match = re.search(r"Closes #(\d+)", body)
    return names.get(int(match[1]), "?") if match else ""


def _merges(repository: Path, names: dict[int, str]) -> list[str]:
    """The subjects on the line of main, with the pull requests by their purpose."""
    subjects = git(repository, "log", "--first-parent", "--format=%s", "main").splitlines()

    def named(match: re.Match[str]) -> str:
        return names.get(int(match[1]), match[0])

    return [re.sub(r"#(\d+)", named, subject) for subject in subjects]


def done_twice(world: World) -> list[str]:
    """List the keys that several objects on the forge have."""
    with _reading(world.project() / "forge.sqlite") as forge:
        keys: list[str] = []
        for table, order in (("issues", "number"), ("pulls", "number"), ("comments", "id")):
            keys += [r["marker_key"] for r in _all(forge, table, order) if r["marker_key"]]
        keys += [r["marker_key"].rsplit("/", 1)[0] for r in _all(forge, "reviews", "id")]
    return [key for key, count in Counter(keys).items() if count > 1]


def lost_work(world: World, read: Callable[[str], str] | None = None) -> list[str]:
    """List work of done tasks that is missing on main, by content and not by status.

    `read` gives a file of main, empty if it is missing; without it, the local forge is read.
    """

    def on_main(path: str) -> str:
        names = git(world.forge_git, "ls-tree", "-r", "--name-only", "main").splitlines()
        return git(world.forge_git, "show", f"main:{path}") if path in names else ""

    with _reading(world.project() / "ledger.sqlite") as ledger:
        done = [r["id"] for r in _all(ledger, "tasks", "position") if r["status"] == "Done"]
    unknown = [
        f"the test does not say what {task} brings" for task in done if task not in world.work
    ]
    return unknown + [
        f"the work of {task} is lost: {path} on main has no line {line!r}"
        for task in done
        for path, text in world.work.get(task, {}).items()
        for line in text.splitlines()
        if line not in (read or on_main)(path).splitlines()
    ]


def left_behind(world: World) -> list[str]:
    """List workspaces and homes of agents that a finished sprint did not remove."""
    project = world.project()
    runs, pool = project / "runs", project / "pool"
    paths = [*runs.rglob("workspace"), *runs.rglob(".workspace.*"), *runs.rglob("home")]
    paths += pool.iterdir() if pool.exists() else []
    return [str(path.relative_to(project)) for path in paths if "/.git/" not in str(path)]
