"""The stages of the catalogue that look at a forge, on a real Gitea and over its real API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from caloron.cli.main import main
from tests.support.gitea import Server

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
        given = {"host": gitea.url, "repo": made.full_name, "token_env": "OUR_TOKEN", **more}
        capsys.readouterr()
        code = main(["stage", "run", name, "--input", json.dumps(given), "--output", "json"])
        said = capsys.readouterr().out
        assert owner.token not in said
        assert code == 0, said
        return json.loads(said)["data"]["output"]

    run.repository = made  # type: ignore[attr-defined]
    run.anna = made.seen_by(anna)  # type: ignore[attr-defined]
    run.stranger = made.seen_by(gitea.person("stranger"))  # type: ignore[attr-defined]
    return run


def test_polling_goes_on_where_it_ended(stage: Any) -> None:
    first = stage("github_poll_events")
    number = stage.anna.open_issue("A wish", "please")["number"]
    second = stage("github_poll_events", since=first["polled_at"])
    told = [(e["type"], e.get("number"), e.get("title")) for e in second["events"]]
    assert ("issue", number, "A wish") in told


def test_a_pull_request_has_the_state_that_its_reviewers_give_it(stage: Any) -> None:
    stage.repository.write_file("a.py", "a = 1\n", branch="main", new_branch="work")
    number = stage.repository.open_pull("work", "Work")["number"]
    assert stage("get_pr_status", pr_number=number)["review_state"] == "pending"
    stage.anna.review(number, "REQUEST_CHANGES", "no")
    asked = stage("get_pr_status", pr_number=number)
    assert (asked["review_state"], asked["reviewers"]) == ("changes_requested", ["anna"])
    stage.anna.review(number, "APPROVED")
    told = stage("get_pr_status", pr_number=number)
    assert told == {"state": "open", "merged": False, "review_state": "approved",
                    "reviewers": ["anna"]}  # fmt: skip
    stage.repository.write_file("a.py", "a = 2\n", branch="work")
    assert stage("get_pr_status", pr_number=number)["review_state"] == "pending"


def test_feedback_of_strangers_is_not_taken_for_that_of_agents(stage: Any) -> None:
    number = stage.repository.open_issue("Task")["number"]
    stage.repository.comment(number, _FEEDBACK)
    stage.stranger.comment(number, _FEEDBACK)
    (item,) = stage("collect_sprint_feedback", issue_numbers=[number])["feedback_items"]
    assert (item["author"], item["parsed"]["task_clarity"]) == ("owner", 6)


def test_a_repository_is_described(stage: Any) -> None:
    stage.repository.write_file("src/a.py", "a = 1\n")
    told = stage("fetch_repo_context")
    assert (told["default_branch"], told["languages"]) == ("main", {"Python": 1})
    assert told["recent_commits"]
