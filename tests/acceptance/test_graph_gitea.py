"""The stages of the catalogue that read a forge, on a real Gitea and over its real API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from caloron.cli.app import main
from caloron.domain.model.effects import CreateIssue
from caloron.domain.model.snapshots import marker
from caloron.domain.model.sprint import Planning, Sprint, SprintSettings, State
from caloron.domain.rules.evaluate import evaluate
from caloron.stages.values import state_json
from caloron.testing import planned
from tests.support.gitea import Server
from tests.support.home import writes
from tests.support.live import GiteaHome

_FEEDBACK = "---\ncaloron_feedback:\n  task_id: a\n  task_clarity: 6\n---\n"


@pytest.fixture
def stage(
    gitea: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Any:
    """Runs a stage on a repository of its own, as `owner`."""
    monkeypatch.setenv("CALORON_HOME", str(tmp_path))
    owner, anna = gitea.person("owner"), gitea.person("anna")
    made = gitea.repository(owner)
    made.collaborator(anna)
    monkeypatch.setenv("OUR_TOKEN", owner.token)

    def run(name: str, **more: Any) -> Any:
        stage_input = {"host": gitea.url, "repo": made.full_name, "token_env": "OUR_TOKEN", **more}
        capsys.readouterr()
        code = main(["stage", "run", name, "--input", json.dumps(stage_input), "--output", "json"])
        message = capsys.readouterr().out
        assert owner.token not in message
        assert code == 0, message
        return json.loads(message)["data"]["output"]

    run.repository = made  # type: ignore[attr-defined]
    run.anna = made.acting_as(anna)  # type: ignore[attr-defined]
    return run


def test_a_tick_without_an_inbox_polls_the_forge(
    stage: Any, gitea: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """The issue of a task, seen on the real forge, lets its agent start."""
    task = planned("a")
    author = stage.repository.full_name.partition("/")[0]
    sprint = Sprint(
        id="shop-1",
        number=1,
        goal="g",
        planning=Planning(given_plan=(task,)),
        settings=SprintSettings(author=author),
    )
    first = evaluate(State(sprint=sprint), (), 1.0)
    (asked,) = (action for action in first.actions if isinstance(action, CreateIssue))
    body, since = f"{asked.body}\n\n{marker(asked.key)}", stage("github_poll_events")["polled_at"]
    number = stage.repository.open_issue(asked.title, body)["number"]
    stage_input = {
        "host": gitea.url, "repo": stage.repository.full_name, "token_env": "OUR_TOKEN",
        "now": 2.0, "agents": [], "sprint_id": "shop-1",
    }  # fmt: skip
    stage_input |= {"state": state_json(first.state), "interventions": {}, "since": since}
    capsys.readouterr()
    graph = ["graph", "run", "sprint_tick", "--input", json.dumps(stage_input)]
    code = main([*graph, "--output", "json"])
    message = json.loads(capsys.readouterr().out)
    assert code == 0, message
    result = message["data"]["output"]
    assert result["state"]["tasks"]["a"]["links"]["issue"] == number
    assert "start:shop-1/a/1-implement" in result["actions_taken"]
    assert result["polled_at"]


def test_flat_records_advance_on_a_real_forge(
    stage: Any, gitea: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tick over a forge starts and finishes a task, as the first compositions promised."""
    repository = stage.repository
    kept = {
        "state": {"sprint_id": "s", "tasks": {"a": {"title": "A", "agent_id": "dev-1"}}},
        "interventions": {}, "since": stage("github_poll_events")["polled_at"],
    }  # fmt: skip
    now = 1000.0

    def tick() -> list[str]:
        nonlocal kept, now
        now += 1
        stage_input = kept | {
            "host": gitea.url, "repo": repository.full_name, "token_env": "OUR_TOKEN",
            "agents": {}, "now": now,
        }  # fmt: skip
        capsys.readouterr()
        assert main(["graph", "run", "sprint_tick_core", "--input", json.dumps(stage_input)]) == 0
        answer = json.loads(capsys.readouterr().out)
        kept = {"state": answer["state"], "interventions": {}, "since": answer["polled_at"]}
        return list(answer["actions_taken"])

    assert tick() == []
    number = repository.open_issue("A", "please")["number"]
    repository.label(number, "caloron:task")
    assert tick() == ["spawn:dev-1"]
    repository.write_file("a.py", "a = 1\n", branch="main", new_branch="work")
    pull = repository.open_pull("work", "Work", f"Closes #{number}")["number"]
    assert tick() == [f"review:PR#{pull}"]
    stage.anna.review(pull, "APPROVED", "good")
    assert tick() == [f"merge:PR#{pull}"]
    repository.merge(pull)
    assert tick() == [f"done:#{number}"]
    assert kept["state"]["tasks"]["a"]["status"] == "Done"
    assert tick() == []


def test_a_sprint_is_planned_and_evaluated_on_the_forge_of_its_project(
    gitea: Server, tmp_path: Path
) -> None:
    home = GiteaHome(tmp_path, gitea).on_gitea()
    try:
        home.repository.write_file("src/a.py", "a = 1\n")
        home.script(
            writes("task-1", output=f"done\n{_FEEDBACK.replace('task_id: a', 'task_id: task-1')}")
        )
        ended = home.caloron("sprint", "Add a basket", "--graph", "kickoff", "--yes")
        assert ended.code == 0, ended
        assert ended.statuses == {"task-1": "Done"}
        assert home.repository.issues()[0]["title"] == "Add a basket"
        home.repository.comment(1, _FEEDBACK.replace("task_id: a", "task_id: task-1"))
        answer = home.caloron("graph", "run", "retro", "--input", '{"sprint_id": "demo-1"}')
        assert answer.code == 0, answer
        page = answer.data["output"]["report_markdown"]
        assert "1 of 1 tasks done" in page
        assert "clarity 6/10" in page
        assert not any(token in answer.stdout for token in home.tokens)
    finally:
        home.close()
