"""`caloron sprint --graph`: a composition that yields tasks plans a sprint, also through kills."""

from __future__ import annotations

import json
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.checkouts import repository
from tests.acceptance.searching import sources_of_secret
from tests.support.endpoint import Endpoint, openai
from tests.support.home import Home, does, task, writes
from tests.support.http_server import Reply, Request
from tests.support.noether import wrapped
from tests.support.wait import wait_for

_COMPONENT = {"name": "Basket", "purpose": "holds things", "interface": "add(thing)"}
_DESIGN = {"design_doc": "# Basket", "components": [_COMPONENT], "risks": []}
_TASKS = {"tasks": [task("basket", component="Basket"), task("till", "basket")]}

_BUILD = ("sprint", "Build the Basket", "--graph", "sprint_plan", "--yes")


@pytest.fixture
def shop(home: Home) -> Home:
    return home.script(
        does("implement", files={"a.txt": "a\n"}),
        does("check", output="All there.\nAPPROVED"),
    )


def _graph(home: Home, output: Any) -> str:
    file = home.root / "graph.json"
    file.write_text(wrapped({"op": "Const", "value": output}))
    return str(file)


def _begun(home: Home) -> int:
    return int(home.caloron("history").data["total"])


def test_the_phases_plan_a_goal_and_the_sprint_finishes(home: Home) -> None:
    home.script(
        writes("impl-basket"),
        writes("tests-basket"),
        does("check", output="All there.\nAPPROVED"),
    )
    answer = home.caloron("sprint", "Build the Basket", "--graph", "full_cycle", "--yes")
    assert answer.code == 0, answer
    assert set(answer.statuses) == {
        "impl-basket", "tests-basket", "review-impl-basket", "review-tests-basket",
    }  # fmt: skip
    assert set(answer.statuses.values()) == {"Done"}
    assert "architect_po, dev_po: answered by rules: no model is configured" in answer.stderr
    assert home.attempts("po") == 0
    assert set(home.files()) == {"impl-basket.txt", "tests-basket.txt"}


def test_a_plan_uses_the_content_of_the_repository(shop: Home) -> None:
    answer = shop.caloron(
        "sprint", "--plan-only", "Add a basket, then test it", "--graph", "kickoff"
    )
    assert answer.code == 0, answer
    assert [t["id"] for t in answer.data["tasks"]] == ["task-1", "task-2"]
    assert answer.data["phase"] == "approval"


def test_a_dry_run_shows_the_plan_and_begins_nothing(shop: Home) -> None:
    graph_input = json.dumps({"constraints": "no database"})
    answer = shop.caloron(
        "sprint", "Build the Basket", "--graph", "sprint_plan.json", "--graph-input", graph_input,
        "--dry-run",
    )  # fmt: skip
    assert answer.code == 9, answer
    targets = [a["target"] for a in answer.json["planned_actions"]]
    assert targets == ["demo-1", "impl-basket", "tests-basket"]
    assert not (shop.project() / "ledger.sqlite").exists()
    assert not (shop.project() / "planning.json").exists()


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({"dag": {"tasks": {"a": {"title": "A", "depends_on": ["x"]}}}}, "unknown task 'x'"),
        ([task("a", framework="nobody")], "unknown framework"),
        (42, "gave no tasks"),
    ],
)
def test_a_graph_without_a_valid_plan_reports_every_error_and_begins_nothing(
    shop: Home, output: Any, message: str
) -> None:
    answer = shop.caloron("sprint", "go", "--graph", _graph(shop, output), "--yes")
    assert answer.code == 2, answer
    assert message in answer.error["message"]
    assert not (shop.project() / "ledger.sqlite").exists()
    assert not (shop.project() / "planning.json").exists()


def test_invalid_options_are_refused_with_the_right_code(shop: Home) -> None:
    graph, plan = _graph(shop, [task("a")]), str(shop.plan(task("a")))

    def code(*options: str) -> int:
        return shop.caloron("sprint", "go", *options, "--yes").code

    assert code("--graph", graph, "--plan", plan) == 2
    assert code("--graph", graph, "--single") == 2
    assert code("--graph", "") == 2
    assert code("--graph-input", "{}") == 2
    assert code("--graph", graph, "--graph-input", "[1]") == 2
    assert code("--graph", "nowhere.json") == 3
    bad = Path(graph)
    bad.write_text("{")
    assert code("--graph", graph) == 2
    bad.write_text(wrapped({"op": "Stage", "id": "no_such_stage"}))
    assert code("--graph", graph) == 3
    bad.write_text(wrapped({"op": "Stage", "id": "review_po"}))
    refused = shop.caloron("sprint", "go", "--graph", graph, "--yes")
    assert refused.code == 2
    assert "tasks" in refused.error["message"]
    unknown = shop.caloron(
        "sprint", "go", "--graph", "full_cycle", "--yes", CALORON_LLM_PROVIDER="chatgpt"
    )
    assert unknown.code == 2
    assert "no provider" in unknown.error["message"]
    failed = shop.caloron(
        "sprint", "go", "--graph", "kickoff", "--graph-input", '{"repo": "nowhere"}', "--yes"
    )
    assert failed.code == 12
    assert "nothing was started" in failed.error["hint"]
    assert _begun(shop) == 0


def _answers(home: Home, endpoint: Endpoint) -> Home:
    home.environment |= {
        "CALORON_LLM_PROVIDER": "openai-api",
        "CALORON_LLM_BASE_URL": endpoint.url,
        "CALORON_LLM_MODEL": "m-1",
    }
    return home


def _is_design(request: Request) -> bool:
    return "You are the architect" in str(request.json)


def test_the_same_command_continues_a_killed_planning_without_a_repeated_request(
    shop: Home,
) -> None:
    gate = threading.Event()

    def answer(request: Request) -> Reply:
        if _is_design(request):
            return openai(json.dumps(_DESIGN))
        return Reply(openai(json.dumps(_TASKS)).body, before=lambda: gate.wait(60))

    with Endpoint(answer) as endpoint:
        _answers(shop, endpoint)
        running = shop.start(*_BUILD)
        wait_for(lambda: len(endpoint.requests) == 2, "the planner is asked for tasks")
        for second in (_BUILD, ("sprint", "Another", "--graph", "sprint_plan", "--yes")):
            busy = shop.caloron(*second)
            assert busy.code == 5
            assert "planning a sprint of demo runs already: process" in busy.error["message"]
        running.kill()
        assert not (shop.project() / "ledger.sqlite").exists()
        result = shop.caloron("resume")
        assert result.code == 3
        assert "caloron sprint 'Build the Basket' --graph sprint_plan" in result.error["hint"]
        gate.set()
        ended = shop.caloron(*_BUILD)
    assert ended.code == 0, ended
    assert ended.statuses == {"basket": "Done", "till": "Done"}
    assert "architect_po, dev_po: asked of openai-api" in ended.stderr
    assert [_is_design(asked) for asked in endpoint.requests] == [True, False, False]
    assert _begun(shop) == 1
    assert not (shop.project() / "planning.json").exists()


@pytest.mark.parametrize(
    ("point", "then"), [("before_commit", _BUILD), ("after_commit", ("resume",))]
)
def test_a_kill_while_the_sprint_is_recorded_leaves_one_sprint_and_one_plan(
    shop: Home, point: str, then: tuple[str, ...]
) -> None:
    def answer(request: Request) -> Reply:
        return openai(json.dumps(_DESIGN if _is_design(request) else _TASKS))

    with Endpoint(answer) as endpoint:
        _answers(shop, endpoint)
        crash = f"engine|sprint.{point}|1|{shop.root / 'crashed'}"
        assert shop.caloron(*_BUILD, CALORON_CRASH_AT=crash).code == -9
        assert len(endpoint.requests) == 2
        ended = shop.caloron(*then)
    assert ended.code == 0, ended
    assert ended.statuses == {"basket": "Done", "till": "Done"}
    assert "planning was interrupted" not in ended.stderr
    assert len(endpoint.requests) == 2
    assert _begun(shop) == 1


def test_an_invalid_plan_is_not_kept_for_the_next_attempt(shop: Home) -> None:
    """A model may do better when it is asked again, and a journal would not ask it."""
    refused = shop.caloron("sprint", "go", "--graph", _graph(shop, {"tasks": [task("po")]}))
    assert refused.code == 2
    with closing(sqlite3.connect(shop.path / "graph" / "runs" / "journal.db")) as journal:
        assert journal.execute("SELECT * FROM runs").fetchall() == []


def test_a_model_error_fails_the_planning_and_earlier_answers_are_kept(
    shop: Home,
) -> None:
    broken = [True]

    def answer(request: Request) -> Reply:
        if _is_design(request):
            return openai(json.dumps(_DESIGN))
        return Reply({}, 401) if broken[0] else openai(json.dumps(_TASKS))

    command = ("sprint", "--plan-only", "Build the Basket", "--graph", "sprint_plan")
    with Endpoint(answer) as endpoint:
        _answers(shop, endpoint)
        failed = shop.caloron(*command)
        assert failed.code == 12
        assert "status 401" in failed.error["message"]
        broken[0] = False
        kickoff = shop.caloron(*command)
    assert kickoff.code == 0, kickoff
    assert [t["id"] for t in kickoff.data["tasks"]] == ["basket", "till"]
    assert sum(map(_is_design, endpoint.requests)) == 1


def test_the_first_sprint_in_a_repository_can_be_planned_by_a_graph(bare_home: Home) -> None:
    folder = repository(bare_home).path
    bare_home.script(does("implement", files={"a.txt": "a\n"}))
    command = ("sprint", "Build the Basket", "--framework", "stub", "--yes", "--graph")
    refused = bare_home.caloron(*command, _graph(bare_home, {"tasks": []}), cwd=folder)
    assert refused.code == 2, refused
    assert not (bare_home.path / "projects").exists()
    ended = bare_home.caloron(*command, "sprint_plan", cwd=folder)
    assert ended.code == 0, ended
    assert set(ended.statuses) == {"impl-basket", "tests-basket"}


def test_a_secret_in_the_goal_is_stored_nowhere(shop: Home) -> None:
    secret = "sk-planted-0123456789abcdef"
    shop.environment["SHOP_API_KEY"] = secret
    graph_input = json.dumps({"constraints": f"log in with {secret}"})
    goal = f"Build the Basket, with {secret}"
    command = (
        "sprint",
        "--plan-only",
        goal,
        "--graph",
        "sprint_plan",
        "--graph-input",
        graph_input,
    )
    kickoff = shop.caloron(*command)
    assert kickoff.code == 0, kickoff
    assert sources_of_secret(shop, "Build the Basket")
    assert sources_of_secret(shop, secret, kickoff) == []
