"""Whole sprints with the real Claude Code in the real sandbox, against a scripted model."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.acceptance.searching import sources_of_secret
from tests.support.claude import claude
from tests.support.home import Home, task
from tests.support.model_server import (
    HANGS,
    Asked,
    ModelServer,
    Rule,
    Turn,
    Use,
    bash,
    write,
)

_KEY = "sk-ant-planted-key-4711"
_PLANS = "You are the product owner"
_IMPLEMENTS = "Carry out the task below"
_REVIEWS = "You are the reviewer"
_FIXES = "was not accepted"
_RETRO_PROMPT = "You look back at a software sprint"
_FILE = "/workspace/greet.py"


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer(Rule((_REVIEWS,), [["It does what was asked.\nAPPROVED"]])) as server:
        yield server


@pytest.fixture
def home(bare_home: Home, model: ModelServer) -> Home:
    bare_home.environment |= {
        "CALORON_CLAUDE": str(claude()),
        "ANTHROPIC_BASE_URL": model.url,
        "ANTHROPIC_API_KEY": _KEY,
        "CLAUDE_CODE_MAX_RETRIES": "1",
    }
    bare_home.init("demo", "--framework", "claude-code", verify="python3 greet.py")
    return bare_home.set(retro="rules")


def implements(*turns: Turn) -> Rule:
    return Rule((_IMPLEMENTS,), turns or [[write(_FILE, "print('hello')\n")], ["I wrote it."]])


def asked_to(model: ModelServer, words: str) -> list[Asked]:
    return [asked for asked in model.requests if words in asked.prompt]


def test_claude_code_plans_writes_fixes_in_the_same_conversation_and_is_merged(
    home: Home, model: ModelServer
) -> None:
    plan = [{"id": "greet", "title": "Greet", "agent_prompt": "Write greet.py."}]
    edit = {"file_path": _FILE, "old_string": "hello", "new_string": "hello, world"}
    model.rules[:] = [
        Rule((_PLANS,), [[json.dumps(plan)]]),
        implements(
            ["I begin.", write(_FILE, "print('hello')\n")],
            [bash("python3 greet.py && pwd && id -un")],
            ["I wrote greet.py with a greeting."],
        ),
        Rule((_REVIEWS, "hello, world"), [["Good.\nAPPROVED"]]),
        Rule((_REVIEWS,), [["Nobody is named.\nCHANGES_NEEDED: greet the world"]]),
        Rule((_FIXES,), [[Use("Read", {"file_path": _FILE})], [Use("Edit", edit)], ["Fixed."]]),
    ]
    answer = home.sprint()
    assert answer.code == 0, answer
    assert answer.statuses == {"greet": "Done"}
    assert home.files() == {"greet.py": b"print('hello, world')\n"}
    verdicts = [verdict for verdict, _ in home.reviews(home.pulls()[0]["number"])]
    assert verdicts == ["changes_requested", "approved"]
    fixes = asked_to(model, _FIXES)
    assert "greet the world" in fixes[0].prompt
    assert "I wrote greet.py with a greeting." in fixes[0].text
    assert "/workspace\nagent" in fixes[0].text
    assert "I wrote greet.py with a greeting." not in asked_to(model, _REVIEWS)[0].text
    assert all("You work for Caloron" in asked.text for asked in model.requests)
    assert answer.data["cost_usd"] > 0
    assert answer.tasks["greet"]["cost_usd"] > 0
    assert answer.tasks["greet"]["tokens"] > 0
    assert sources_of_secret(home, _KEY) == []


def test_the_retro_in_auto_mode_repeats_its_question_until_the_answer_is_json(
    home: Home, model: ModelServer
) -> None:
    advice = {
        "category": "TaskTemplate",
        "priority": "medium",
        "description": "Say which greeting is wanted",
        "evidence": "greet guessed it",
        "applies_when": "a task writes text for people",
    }
    analysis = {
        "themes": [],
        "improvements": [advice],
        "learnings": ["one file"],
        "sentiment": "mixed",
    }
    fenced = f"```json\n{json.dumps(analysis)}\n```"
    model.rules += [
        implements(),
        Rule((_RETRO_PROMPT, "could not be used"), [[fenced]]),
        Rule((_RETRO_PROMPT,), [["It went well."]]),
    ]
    home.set(retro="auto")
    answer = home.sprint(task("greet"))
    assert (answer.code, answer.data["phase"]) == (0, "ended"), answer
    first, second = asked_to(model, _RETRO_PROMPT)
    assert "| Tasks done | 1 of 1 |" in first.prompt
    assert "holds no JSON object" in second.prompt
    retro = home.caloron("retro").data
    assert retro["model_analysis"]["by"].startswith("claude-code claude-")
    assert retro["model_analysis"]["improvements"] == [advice]
    spent = {agent["agent"]: agent["cost_usd"] for agent in retro["agents"]}
    assert 0 < spent["retro-1"] < retro["kpis"]["cost_usd"]
    page = retro["report_markdown"].replace("\\", "")
    assert f"the analysis by {retro['model_analysis']['by']}." in page


def test_an_agent_whose_model_hangs_is_restarted_in_its_conversation(
    home: Home, model: ModelServer
) -> None:
    home.set(stall_threshold_m=0.1, probe_grace_s=2.0)
    begin = bash("echo one > begun.txt")
    model.rules += [
        Rule((_IMPLEMENTS, "were interrupted"), [[write(_FILE, "print(1)\n")], ["I went on."]]),
        Rule((_IMPLEMENTS,), [["never said"]], [HANGS], anywhere=("echo one > begun.txt",)),
        Rule((_IMPLEMENTS,), [["I begin.", begin]]),
    ]
    answer = home.sprint(task("greet"))
    assert (answer.code, answer.statuses) == (0, {"greet": "Done"}), answer
    assert home.files() == {"begun.txt": b"one\n", "greet.py": b"print(1)\n"}
    comments = "\n".join(home.comments(home.issues()[0]["number"]))
    assert "The agent is restarted" in comments
    assert "I begin." in asked_to(model, "were interrupted")[0].text
