"""From a goal to a plan: checked before anything is done, repaired once, never half taken."""

from __future__ import annotations

import json
from typing import Any

from tests.support.home import Home, does, task, writes

_CYCLE = json.dumps([task("a", "b"), task("b", "a")])


def test_the_planner_repairs_an_invalid_plan_from_its_errors(home: Home) -> None:
    home.script(
        does("po", match="form a cycle", output=json.dumps([task("a"), task("b", "a")])),
        does("po", output=_CYCLE),
        writes("a"),
        writes("b"),
    )
    answer = home.sprint()
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"a\n", "b.txt": b"b\n"}
    assert len(home.issues()) == 2


def test_a_plan_that_stays_invalid_ends_the_sprint_before_any_issue_and_can_be_resumed(
    home: Home,
) -> None:
    home.script(does("po", output=_CYCLE))
    answer = home.sprint()
    assert answer.code == 8, answer
    assert answer.error["code"] == "PRECONDITION_FAILED"
    assert "cycle" in answer.error["message"]
    assert answer.error["hint"]
    assert home.attempts("po") == 2
    assert home.issues() == []

    home.script(does("po", output=json.dumps([task("a")])), writes("a"))
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert answer.data["sprint_id"] == "demo-1"
    assert home.files() == {"a.txt": b"a\n"}


_MALFORMED: dict[str, tuple[Any, str]] = {
    "not a list": ({"id": "a"}, "list"),
    "id with a path": ([task("../x")], "../x"),
    "cycle": ([task("a", "c"), task("b", "a"), task("c", "b")], "cycle"),
    "wrong type": ([task("a", title=5)], "title"),
    "unknown framework": ([task("a", framework="abacus")], "abacus"),
}


def test_a_malformed_plan_file_is_refused_before_anything_happens(
    home: Home,
) -> None:
    home.script(writes("a"))
    file = home.root / "plan.json"
    for kind, (content, named) in _MALFORMED.items():
        file.write_text(json.dumps(content))
        answer = home.caloron("sprint", "go", "--plan", str(file), "--yes")
        assert answer.code == 2, (kind, answer)
        assert answer.error["code"] == "INVALID_ARGS"
        assert named in answer.error["message"], kind
        assert str(file) in answer.error["message"], kind
    assert home.issues() == []
    assert not (home.project() / "ledger.sqlite").exists()
    assert not (home.path / "kv").exists()


def test_a_plan_file_that_cannot_be_read_is_named(home: Home) -> None:
    home.script(writes("a"))
    missing = home.caloron("sprint", "go", "--plan", "nowhere.json")
    assert missing.code == 3
    assert "nowhere.json" in missing.error["message"]
    file = home.root / "plan.json"
    for content in (b"", b"{nope", b"\xff\xfe\x00", b"[" * 100_000):
        file.write_bytes(content)
        answer = home.caloron("sprint", "go", "--plan", str(file))
        assert answer.code == 2, (content[:10], answer)
        assert "plan.json" in answer.error["message"]
    assert home.caloron("sprint", "go", "--plan", str(home.root)).code == 2
    assert home.issues() == []


def test_a_goal_without_words_is_refused(home: Home) -> None:
    home.script(writes("a"))
    assert home.caloron("sprint", "  ").code == 2
    assert home.caloron("sprint").code == 2
    assert home.caloron("sprint", "x" * 64_001).code == 2


def test_the_acceptance_criteria_and_the_prompt_reach_agent_reviewer_and_issue(home: Home) -> None:
    criterion = "the greeting is polite"
    home.script(
        does("implement", match=criterion, files={"a.txt": "please\n"}),
        does("review", match=criterion, output="APPROVED"),
        default="?",
    )
    answer = home.sprint(task("a", acceptance=[criterion], agent_prompt="greet the user"))
    assert answer.code == 0, answer
    body = home.caloron("issue", "show", "1").data["body"]
    assert criterion in body
    assert "greet the user" in body
