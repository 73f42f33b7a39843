"""The stages of the catalogue with effects: a real ledger, a real forge, whole ticks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from caloron.domain.model.snapshots import marker_key
from caloron.engine.graphs.runtime import GraphRuntime, RunOptions
from caloron.engine.tick import TickResult
from caloron.forge.local.forge import LocalForge
from caloron.graph.prepare import prepare
from caloron.ledger.state_file import kv_path
from caloron.stages.compositions import composition
from tests.integration.engine.test_every_stage_matters import MiniSprint


class GraphSprint(MiniSprint):
    """The small sprint, with a run of the graph as each of its ticks."""

    def __init__(self, home: Path) -> None:
        super().__init__(home / "projects" / "shop")
        self._at = GraphRuntime(home)
        self._prepared = prepare(composition("sprint_tick_stateful") or b"", self._at.catalogue)
        self.ticks = 0

    def tick(self) -> TickResult:
        self.world.poll()
        self.ledger.append_facts(self.sprint, self.world.facts)
        self.world.facts.clear()
        self.ticks += 1
        options = RunOptions(run_id=f"tick-{self.ticks}", cached=False)
        answer = self._at.run(self._prepared, {"sprint_id": self.sprint}, options).output
        assert answer["persisted_path"] == str(kv_path(self.sprint))
        taken = tuple(answer["actions_taken"])
        state = self.ledger.state(self.sprint)
        saved = TickResult(state=state, moves=(), actions_taken=taken, changed=answer["changed"])
        self.saved.append(saved)
        return saved


@pytest.fixture
def shop(run: Any, home: Path) -> Path:
    assert run("init", "shop", "--framework", "stub")[0] == 0
    return home


def test_a_sprint_is_driven_to_its_end_by_runs_of_the_graph_alone(shop: Path) -> None:
    sprint = GraphSprint(shop)
    assert sprint.run() == {"a": "Done", "b": "Done"}
    assert sprint.ledger.state(sprint.sprint).sprint.phase == "ended"
    assert b'"Done"' in kv_path(sprint.sprint).read_bytes()
    assert all(saved.changed for saved in sprint.saved[:-1])
    sprint.ledger.close()


def test_the_graph_takes_the_same_actions_as_the_engine_loop(shop: Path, tmp_path: Path) -> None:
    graph, loop = GraphSprint(shop), MiniSprint(tmp_path)
    assert graph.run() == loop.run()
    answer = [[saved.actions_taken for saved in sprint_run.saved] for sprint_run in (graph, loop)]
    assert answer[0] == answer[1]
    assert sum(map(len, answer[0])) > 20
    for sprint_run in (graph, loop):
        sprint_run.ledger.close()


def test_a_silent_agent_is_probed_by_the_graph(shop: Path) -> None:
    sprint = GraphSprint(shop)
    item = sprint.run_until_an_agent_works()
    sprint.make_silent(25)
    answer = sprint.tick().actions_taken
    assert answer[0].startswith("probe:a (silent for 25 min)")
    assert any(line.startswith(f"probe/{item}") for line in answer)
    assert json.loads(kv_path(sprint.sprint).read_bytes())["interventions"] == {"a": {"count": 1}}
    sprint.ledger.close()


def test_a_late_tick_is_refused_and_changes_nothing(run: Any, shop: Path) -> None:
    sprint = GraphSprint(shop)
    loaded = run(
        "stage", "run", "load_tick_state", "--input", f'{{"sprint_id": "{sprint.sprint}"}}'
    )
    answer = loaded[1]["data"]["output"]
    sprint.tick()
    before = sprint.ledger.load(sprint.sprint)
    late = {name: answer[name] for name in ("state", "now", "loaded")}
    value = {"sprint_id": sprint.sprint, "tick_result": late}
    line = ("stage", "run", "save_tick_state", "--input", json.dumps(value))
    run.refused(12, "changed by another tick", *line)
    assert sprint.ledger.load(sprint.sprint).version == before.version
    sprint.ledger.close()


def test_facts_that_arrive_during_a_tick_wait_for_the_next_tick(run: Any, shop: Path) -> None:
    sprint = GraphSprint(shop)
    sprint.tick()
    sprint.drain()
    value = json.dumps({"sprint_id": sprint.sprint})
    envelope = run.data("stage", "run", "load_tick_state", "--input", value)["output"]
    assert envelope["facts"]
    sprint.world.person.comment(1, "a late comment")
    sprint.world.poll()
    sprint.ledger.append_facts(sprint.sprint, sprint.world.facts)
    late = {"state": envelope["state"], "now": envelope["now"], "loaded": envelope["loaded"]}
    answer = {"sprint_id": sprint.sprint, "tick_result": late}
    assert run("stage", "run", "save_tick_state", "--input", json.dumps(answer))[0] == 0
    remaining = [getattr(fact, "body", "") for fact in sprint.ledger.load(sprint.sprint).facts]
    assert "a late comment" in remaining
    assert len(remaining) < len(envelope["facts"])
    sprint.ledger.close()


@pytest.mark.parametrize("name", ["../evil-1", "shop", "nobody-1", "", "shop-99"])
def test_an_unknown_sprint_is_refused_and_nothing_is_written(
    name: str, run: Any, shop: Path
) -> None:
    before = sorted(str(path) for path in shop.rglob("*.json"))
    value = {"sprint_id": name}
    assert run("stage", "run", "load_tick_state", "--input", json.dumps(value))[0] == 12
    value["tick_result"] = {"state": {"sprint": {"id": name, "number": 1, "goal": ""}}, "now": 1,
                            "loaded": {"version": 1, "through": 0}}  # type: ignore[assignment]  # fmt: skip
    assert run("stage", "run", "save_tick_state", "--input", json.dumps(value))[0] == 12
    after = sorted(str(path) for path in shop.rglob("*.json") if "traces" not in str(path))
    assert after == before


def _stage(run: Any, name: str, **value: Any) -> Any:
    value = {"host": "local", "repo": "demo", **value}
    answer = run.data("stage", "run", name, "--input", json.dumps(value))
    return answer["output"]


def test_stages_read_a_forge_through_the_port(run: Any, sprinted: Path) -> None:
    status = _stage(run, "get_pr_status", pr_number=2)
    assert status == {"state": "merged", "merged": True, "review_state": "approved",
                      "reviewers": ["caloron"],
                      "verdicts": {"caloron": "approved"}}  # fmt: skip
    polled = _stage(run, "github_poll_events")
    kinds = {event["type"] for event in polled["events"]}
    assert {"issue", "pull", "review", "comment"} <= kinds
    again = _stage(run, "github_poll_events", since=polled["polled_at"])
    assert again["events"] == []
    forge = LocalForge(sprinted, actor="ada")
    forge.comment(1, "hello")
    forge.close()
    (news,) = _stage(run, "github_poll_events", since=polled["polled_at"])["events"]
    assert (news["type"], news["body"]) == ("comment", "hello")


def test_feedback_is_read_from_the_comments_of_issues(run: Any, sprinted: Path) -> None:
    forge = LocalForge(sprinted)
    forge.comment(1, "---\ncaloron_feedback:\n  task_id: a\n  task_clarity: 8\n---\n")
    forge.comment(1, "---\ncaloron_feedback: [broken\n---\n")
    forge.close()
    items = _stage(run, "collect_sprint_feedback", issue_numbers=[1])["feedback_items"]
    answer = [item["parsed"]["task_clarity"] for item in items if item["is_parsed_yaml"]]
    assert 8 in answer
    assert all(item["created_at"].endswith("Z") for item in items)
    (broken,) = [item for item in items if not item["is_parsed_yaml"]]
    assert broken["raw_body"].startswith("---\ncaloron_feedback: [broken")


def test_a_repository_is_described_from_its_own_commits(run: Any, sprinted: Path) -> None:
    answer = _stage(run, "fetch_repo_context")
    assert answer["default_branch"] == "main"
    assert any("Task a" in commit["message"] for commit in answer["recent_commits"])


def test_an_unreachable_forge_is_a_failure_and_never_an_empty_answer(run: Any) -> None:
    value = {"host": "http://127.0.0.1:9", "repo": "a/b", "token_env": "NO_SUCH_TOKEN"}
    run.refused(12, "", "stage", "run", "github_poll_events", "--input", json.dumps(value))


def test_repeated_runs_of_a_graph_open_one_issue(run: Any, sprinted: Path) -> None:
    body = "please <!-- caloron:issue/demo-1/a -->"
    answer = {"title": "A wish", "body": body, "labels": ["wish"]}
    first = _stage(run, "github_create_issue", **answer)
    assert _stage(run, "github_create_issue", **answer) == first
    other = _stage(run, "github_create_issue", **answer, key="monday")
    assert other["issue_number"] == first["issue_number"] + 1
    forge = LocalForge(sprinted)
    issue = forge.issue(first["issue_number"])
    assert (issue.title, issue.labels) == ("A wish", ("wish",))
    # The text of an issue cannot forge the marker of a sprint.
    assert marker_key(issue.body).startswith("graph/issue/")
    assert forge.find_issue("issue/demo-1/a") != issue
    forge.close()


def test_repeated_runs_of_a_graph_add_one_comment_and_one_label(run: Any, sprinted: Path) -> None:
    reply = {"issue_number": 1, "body": "hello"}
    written = [_stage(run, "github_post_comment", **reply) for _ in range(2)]
    assert written[0] == written[1]
    for _ in range(2):
        label = {"issue_number": 1.0, "label": "seen"}
        assert _stage(run, "github_add_label", **label) == {"ok": True, "error": None}
    forge = LocalForge(sprinted)
    assert [c.body.splitlines()[0] for c in forge.comments(1)].count("hello") == 1
    assert forge.issue(1).labels.count("seen") == 1
    forge.close()
    refused = _stage(run, "github_add_label", issue_number=99, label="seen")
    assert (refused["ok"], refused["error"]) == (False, "there is no issue #99")


def test_a_comment_of_a_graph_contains_no_secret(
    run: Any, sprinted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "kq7Zt2Wm9Xc4Vb8Ln1Ry")
    _stage(run, "github_post_comment", issue_number=1, body="it is kq7Zt2Wm9Xc4Vb8Ln1Ry")
    forge = LocalForge(sprinted)
    assert "kq7Zt2Wm" not in forge.comments(1)[-1].body
    forge.close()


def test_a_graph_merges_a_pull_request_or_reports_why_it_cannot(run: Any, sprinted: Path) -> None:
    done = _stage(run, "github_merge_pr", pr_number=2)
    assert (done["merged"], done["error"]) == (True, None)
    assert len(done["merge_commit"]) == 40
    refused = _stage(run, "github_merge_pr", pr_number=2, head="0" * 40)
    assert (refused["merged"], refused["merge_commit"]) == (False, "")
    assert "was merged at" in refused["error"]
    assert "no pull request #77" in _stage(run, "github_merge_pr", pr_number=77)["error"]


def test_an_empty_comment_is_refused_before_anything_is_written(run: Any, sprinted: Path) -> None:
    value = {"host": "local", "repo": "demo", "issue_number": 1, "body": " "}
    line = ("stage", "run", "github_post_comment", "--input", json.dumps(value))
    run.refused(12, "the comment on #1 is empty", *line)
