"""The retro: the morning page, the inbox, and the lessons in the prompt of the next planner."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.request import url2pathname

import pytest
import yaml

from tests.support.home import Home, does, task, writes

UNCLEAR = """done
---
caloron_feedback:
  task_clarity: 3
  blockers: ["the \\"docs\\" were <missing>"]
  tools_used: [bash]
  self_assessment: completed
  notes: it was hard to guess
---
"""
LESSON = "Write clearer tasks: name the inputs, the outputs and what must hold when it is done"


def page(home: Home, *command: str) -> str:
    answer = home.caloron(*command, json=False)
    assert answer.code == 0, answer
    return answer.stdout


def workspace(home: Home, name: str = "") -> Path:
    return home.project() / "workspace" / name


def planned(*tasks: dict[str, Any]) -> dict[str, Any]:
    return does("po", output=json.dumps(tasks))


def _mixed(home: Home) -> Home:
    """A sprint with a merged task that cost something, a failed task, and a blocked task."""
    home.set(verify="echo verified; test -f a.txt")
    home.script(
        writes("a", output=UNCLEAR, report={"cost_usd": 0.5, "tokens_in": 100, "tokens_out": 20}),
        does("implement", "b", output="no disk", exit_code=9),
    )
    answer = home.sprint(task("a"), task("b"), task("c", "b"))
    assert answer.code == 10, answer
    return home


@pytest.fixture
def mixed(home: Home) -> Home:
    return _mixed(home)


@pytest.fixture(scope="module")
def read_only(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """The mixed sprint, for tests that only read it."""
    home = Home(tmp_path_factory.mktemp("mixed"))
    yield _mixed(home.init())
    home.close()


def test_the_morning_page_lists_merged_work_waiting_work_and_cost(read_only: Home) -> None:
    data = read_only.data("report")
    tasks = {t["id"]: t for t in data["tasks"]}
    pull = tasks["a"]["pr_number"]
    assert (tasks["a"]["pr_state"], tasks["a"]["verification"]) == ("merged", "green")
    assert tasks["a"]["diff"] == {"files": 1, "added": 1, "removed": 0}
    assert [r["verdict"] for r in tasks["a"]["reviews"]] == ["approved"]
    assert (tasks["a"]["cost_usd"], tasks["a"]["tokens"]) == (0.5, 120)
    assert Path(tasks["a"]["verify_log"]).read_text() == "verified\n"
    (need,) = data["inbox"]
    assert (need["task"], need["holds"]) == ("b", ["c"])
    (problem,) = data["problems"]
    assert (problem["what"], problem["times"]) == ("exit code 9: no disk", 2)
    assert Path(problem["log"]).read_text() == "no disk\n"
    costs = {agent["agent"]: agent["cost_usd"] for agent in data["agents"]}
    assert costs == {"a": 0.5, "b": 0.0, "reviewer-1": 0.0}
    text = page(read_only, "report")
    assert text.startswith("Sprint demo-1: 1 of 3 tasks done\n")
    assert f"#{pull} merged" in text
    assert "$0.50 of $20.00" in text
    assert problem["log"] in text
    assert str(read_only.project() / "forge.git") in data["bring"]


def test_the_named_commands_continue_the_task_and_the_retro_is_written_again(
    mixed: Home,
) -> None:
    (need,) = mixed.data("inbox")["items"]
    before = (workspace(mixed) / "retro_report.md").read_text()
    assert "1 of 3 tasks done" in before
    mixed.script(*(writes(name, output="done") for name in "abc"))
    for command in need["commands"]:
        answer = mixed.caloron(*command.split()[1:])
        assert answer.code == 0, answer
    assert mixed.data("inbox")["items"] == []
    assert page(mixed, "inbox") == "Nothing needs your attention.\n"
    after = (workspace(mixed) / "retro_report.md").read_text()
    assert "3 of 3 tasks done" in after
    learned = json.loads(workspace(mixed, "learnings.json").read_text())
    assert [s["completed"] for s in learned["sprints"]] == [3]


class _Outside(HTMLParser):
    """Collects what a browser would load, and the text that it would show."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        #: What it would show only once it is clicked on.
        self.links: list[str] = []
        self.shown = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "link", "img", "iframe", "object", "embed", "missing"):
            self.loads.append(tag)
        names = ("src", "onload") if tag == "a" else ("src", "href", "onload")
        self.loads += [f"{tag}.{name}" for name, _ in attrs if name in names]
        self.links += [value or "" for name, value in attrs if (tag, name) == ("a", "href")]

    def handle_data(self, data: str) -> None:
        self.shown += data


def test_the_html_page_is_a_single_file_that_loads_nothing_and_escapes_text(
    home: Home,
) -> None:
    evil = '<script src="http://x.invalid/a.js"></script>'
    home.script(does("implement", output=f"{evil}`|#", exit_code=1))
    home.caloron("sprint", f"goal {evil}", "--yes", "--plan", str(home.plan(task("a", title=evil))))
    parser = _Outside()
    text = page(home, "report", "--format", "html")
    parser.feed(text)
    assert parser.loads == []
    assert parser.links
    for link in parser.links:
        assert Path(url2pathname(link.removeprefix("file://"))).is_file()
    assert evil in parser.shown
    assert "default-src 'none'" in text
    assert "url(" not in text
    marked = page(home, "report", "--format", "md")
    assert "<script" not in marked
    assert home.data("report", "--format", "md")["page"] == marked


def test_show_finds_a_sprint_by_number_and_has_status_tools_tests_and_cost(
    read_only: Home,
) -> None:
    data = read_only.data("show", "1")
    assert data == read_only.data("show", "demo-1")
    tasks = {t["id"]: t for t in data["tasks"]}
    assert (tasks["a"]["status"], tasks["a"]["verification"], tasks["a"]["tools"]) == (
        "Done",
        "green",
        ["bash"],
    )
    assert (tasks["a"]["cost_usd"], tasks["a"]["clarity"]) == (0.5, 3)
    assert (data["completed_tasks"], data["total_tasks"], data["cost_usd"]) == (1, 3, 0.5)
    assert 'the "docs" were <missing>' in data["blockers"]
    assert "#1" in page(read_only, "show", "#1")


def test_an_agent_that_died_without_feedback_is_noted_on_its_issue_and_not_counted(
    read_only: Home,
) -> None:
    issue = {t["id"]: t["issue_number"] for t in read_only.data("report")["tasks"]}["b"]
    comments = [c for c in read_only.comments(issue) if "caloron_feedback:" in c]
    assert len(comments) == 2
    for comment in comments:
        block = yaml.safe_load(comment.split("---")[1])["caloron_feedback"]
        assert (block["self_assessment"], block["task_clarity"]) == ("crashed", 0)
        assert block["blockers"] == ["the agent ended with exit code 9: no disk"]
    assert read_only.data("report")["kpis"]["feedback_count"] == 1


@pytest.mark.parametrize("kind", ["no plan", "red main", "failed"])
def test_the_retro_is_written_for_every_outcome_of_a_sprint(home: Home, kind: str) -> None:
    words = {
        "no plan": "**stopped**: the plan is not valid",
        "red main": "**stopped**: main is red before the sprint",
        "failed": "b: Escalated: the agent ended with exit code 9",
    }
    if kind == "red main":
        home.script(writes("a"))
        assert home.sprint(task("a")).code == 0
        home.set(verify="false")
    fails = does("implement", "b", exit_code=9)
    home.script(does("po", output="no plan"), writes("a", ending=False), fails)
    home.sprint(*([] if kind == "no plan" else [task("a"), task("b")]))
    last = home.data("history")["sprints"][0]["sprint_id"]
    text = (workspace(home) / "retro_report.md").read_text()
    assert text.startswith(f"# Retro of sprint {last}\n")
    assert words[kind] in text
    assert kind != "failed" or "Ask agents for feedback" in text
    assert (workspace(home) / "retro" / f"sprint-{last}.md").read_text() == text
    assert "| Tasks done |" in text


def test_metrics_fill_every_field(read_only: Home) -> None:
    data = read_only.data("metrics")
    assert (data["total_sprints"], data["total_tasks"], data["completed_tasks"]) == (1, 3, 1)
    assert data["completion_rate"] == 0.333
    assert (data["avg_clarity"], data["tests_passing"], data["cost_usd"]) == (3.0, 1, 0.5)
    assert data["avg_sprint_time_s"] > 0
    assert data["total_interventions"] == 0
    assert ['the "docs" were <missing>', 1] in data["top_blockers"]
    assert data["top_tools"] == [["bash", 1]]


def test_a_lesson_of_the_first_sprint_stands_in_the_prompt_of_the_second_planner(
    home: Home,
) -> None:
    home.script(
        planned(task("a")),
        writes("a", output=UNCLEAR),
        writes("b", output=UNCLEAR.replace("clarity: 3", "clarity: 9").replace("<missing>", "ok")),
    )
    assert home.sprint().code == 0
    assert "earlier sprints" not in home.prompts("po", sprint="demo-1")[0].lower()
    report = (workspace(home) / "retro_report.md").read_text()
    assert LESSON in report
    home.script(
        planned(task("b")),
        writes("b", output=UNCLEAR.replace("clarity: 3", "clarity: 9")),
    )
    assert home.sprint().code == 0
    prompt = home.prompts("po", sprint="demo-2")[0]
    assert LESSON in prompt
    assert "demo-1: 1/1 tasks done, clarity 3.0/10" in prompt
    assert 'the "docs" were <missing>' in prompt
    learned = json.loads(workspace(home, "learnings.json").read_text())
    assert learned["last_po_context"] in prompt
    status = {i["text"]: (i["status"], i["applied_in"]) for i in learned["improvements"]}
    assert status[LESSON] == ("applied", ["demo-2"])
    trends = {t["metric"]: t for t in home.data("retro")["trends"]}
    assert trends["avg_clarity"]["direction"] == "improved"
    assert (trends["avg_clarity"]["before"], trends["avg_clarity"]["n"]) == (3.0, 1)


def test_a_sprint_without_results_never_repeats_the_numbers_of_the_previous_sprint(
    mixed: Home,
) -> None:
    mixed.set(verify="false")
    answer = mixed.sprint(task("x"))
    assert answer.code == 8, answer
    shown = mixed.data("show", "2")
    assert (shown["completed_tasks"], shown["total_tasks"], shown["cost_usd"]) == (0, 0, 0)
    assert (shown["kpis"]["avg_clarity"], shown["tasks"], shown["tools_used"]) == (None, [], {})
    assert "main is red" in (workspace(mixed) / "retro_report.md").read_text()
    assert "main is red" in page(mixed, "report")
    needs = {need["sprint_id"]: need for need in mixed.data("inbox")["items"]}
    assert needs["demo-2"]["commands"][1] == "caloron resume demo-2 --allow-red"
    data = mixed.data("metrics")
    assert (data["total_sprints"], data["total_tasks"], data["completed_tasks"]) == (2, 3, 1)


def test_crashes_in_the_retro_lose_nothing_and_double_nothing(home: Home) -> None:
    home.script(writes("a", output=UNCLEAR))
    command: tuple[str, ...] = (
        "sprint",
        "make it so",
        "--yes",
        "--plan",
        str(home.plan(task("a"))),
    )
    for point in ("learnings.before_commit", "learnings.after_commit"):
        once = home.root / point
        killed = home.caloron(*command, CALORON_CRASH_AT=f"engine|{point}|1|{once}")
        assert (killed.code, once.exists()) == (-9, True)
        assert not workspace(home, "learnings.json").exists()
        command = ("resume",)
    assert home.caloron("resume").code == 0
    learned = json.loads(workspace(home, "learnings.json").read_text())
    assert [s["sprint_id"] for s in learned["sprints"]] == ["demo-1"]
    assert "1 of 1 tasks done" in workspace(home, "retro_report.md").read_text()
    assert not list(workspace(home).glob("learnings.json.*"))


def test_the_retro_has_the_measured_time_of_each_agent(read_only: Home) -> None:
    """Feedback counts each run as at least a minute; the table has the measured time."""
    (agent,) = [a for a in read_only.data("retro")["agents"] if a["agent"] == "a"]
    assert agent["time_s"] < 60
    section = page(read_only, "retro").split("## Agent feedback")[1]
    feedback, rest = section.split("\n## ", 1)
    assert "120 tokens" in feedback
    assert " min" not in feedback
    assert "| agent | role | runs | failed | time |" in rest
