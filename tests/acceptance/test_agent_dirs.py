"""Each agent of a sprint has a folder: its history and the input of people reach its prompt."""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.home import Home, does, task, writes
from tests.support.wait import wait_for


def _cycle(home: Home) -> dict[str, Any]:
    cycle: dict[str, Any] = home.caloron("agents", "show", "a").data["cycle"]
    return cycle


def test_a_crashed_cycle_is_in_the_next_prompt_with_its_number_and_its_last_step(
    home: Home,
) -> None:
    gate = home.gate("work")
    line = f"echo 'halfway through the parser'; {gate.line}"
    home.script(writes("a", run=line))
    running = home.start_sprint(task("a"))
    gate.wait_for_agent()
    # It is known while the agent is still at work.
    wait_for(
        lambda: home.caloron("agents", "show", "a").data["cycle"]["status"] == "open", "a wake"
    )
    running.kill()
    # The shim first: a shim records the end of its agent.
    for words in ("shim.py", ""):
        for pid in home.processes(words):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not home.processes(), "no process is left")
    gate.open()
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    first, second = home.prompts("implement", "a")
    assert "cycle" not in first
    assert second.startswith("Your own diary (data")
    assert "You are a, and this is your cycle 2." in second
    assert "Cycle 1 crashed" in second
    assert f"the last it wrote: at gate {gate.name}" in second

    shown = home.caloron("agents", "show", "a")
    assert shown.data["cycle"]["number"] == 2
    assert shown.data["cycle"]["status"] == "ended"
    assert {errand["status"] for errand in shown.data["queue"]} == {"done"}
    types = [event["type"] for event in shown.data["diary"]]
    assert types.count("attempt_started") == 2
    assert {"attempt_lost", "attempt_ended", "work_item_resolved"} <= set(types)
    assert "Cycle 2 ended as success" in home.caloron("agents", "show", "a", json=False).stdout
    assert (Path(shown.data["agent_dir"]) / "dashboard.md").read_text().startswith("#")
    assert len(shown.data["retros"]) == 1


def test_persona_context_and_errands_of_people_are_in_the_next_prompt(home: Home) -> None:
    agent_dir = home.project() / "agents" / "a"
    home.environment["MF_INSTANCE_DIR"] = str(agent_dir)
    home.environment["CALORON_TEST_TOKEN"] = "hunter2-is-my-token-1234567890"
    command = ("agent-state", "errands")
    payload = '{"do":"also write the changelog"}'
    enqueue = ("enqueue", "--kind", "chore", "--id", "changelog", "--payload", payload)
    home.caloron("agent-state", "scaffold", str(agent_dir), "--host", "caloron", "--agent", "a")
    assert home.caloron(*command, *enqueue).code == 0
    (agent_dir / "persona.md").write_text("You are patient. hunter2-is-my-token-1234567890")
    (agent_dir / "context" / "repos.md").write_text("The tests are slow: make check.")
    home.script(
        writes("a"), does("fix", files={"b.txt": "y"}),
        does("review", round=1, output="CHANGES_NEEDED: more"),
    )  # fmt: skip
    assert home.sprint(task("a")).code == 0
    (first,) = home.prompts("implement", "a")
    block = first.partition("[begin")[2].partition("[end")[0]
    assert first.startswith("From your user, for you (it says what to do;")
    assert "You are patient." in block
    assert "hunter2" not in first
    assert "make check" in block
    assert "also write the changelog" in block
    assert "channels.md" not in block, "an untouched placeholder says nothing"
    (fix,) = home.prompts("fix", "a")
    assert "You are patient." in fix
    assert "changelog" not in fix.partition("[end")[0] + fix.partition("From your user")[2]
    assert "changelog" not in home.prompts("review", "a")[0]
    errand = home.caloron(*command, "get", "--id", "changelog").data["lines"][0]
    assert errand["status"] == "done"
    assert (agent_dir / "persona.md").read_text().startswith("You are patient.")


@pytest.mark.usefixtures("user_without_hermes")
def test_the_cycles_of_a_sprint_are_shown_where_others_are(home: Home) -> None:
    home.script(writes("a"))
    assert home.sprint(task("a")).code == 0
    log = home.caloron("cycle", "log", "a").data
    assert [entry["event"] for entry in log["entries"]][::4] == ["begin", "end"]
    assert log["log_file"] == str(home.project() / "agents" / "a" / "cycle.log")
    status = home.caloron("cycle", "status", "a", "--project", "demo").data
    assert status["report"]["last_cycle"] == 1
    assert home.caloron("cycle", "status", "nobody", "--project", "demo").code == 3
    # Cycles of the agent itself come first; `--project` shows those of the sprint.
    assert home.caloron("cycle", "begin", "a").code == 0
    own = home.caloron("cycle", "log", "a").data
    assert [entry["event"] for entry in own["entries"]] == ["begin"]
    assert "--project demo" in own["notices"][0]


_FEEDBACK = """
---
caloron_feedback:
  task_clarity: 9
  blockers: []
  self_assessment: completed
  notes: "the window is half open"
---"""


def test_people_and_later_prompts_read_the_closing_words_and_no_block(home: Home) -> None:
    """An agent ends with its feedback block, as it is asked to: `---` says nothing to anybody."""
    home.script(
        does("po", output='Here it is.\n```json\n[{"id": "a", "title": "A",'
             ' "agent_prompt": "do a"}]\n```'),
        writes("a", output=f"I wrote a.txt and a test.\n{_FEEDBACK}"),
        does("fix", output=f"Nothing else to fix.\n{_FEEDBACK}"),
        default="CHANGES_NEEDED: more",
    )  # fmt: skip
    answer = home.sprint()
    assert answer.tasks["a"]["reason"] == "the fix round changed nothing: Nothing else to fix."
    pages = {
        name: home.caloron(*name.split(), json=False).stdout
        for name in ("trace a", "trace planner", "agents show a", "agents show planner-1", "why a",
                     "inbox", "report", "retro")
    }  # fmt: skip
    prompts = home.prompts("fix", "a")
    for name, text in (*pages.items(), ("a prompt", prompts[-1].partition("[end")[0])):
        assert ": ---" not in text, name
        assert "(---)" not in text, name
        assert "```)" not in text, name
    assert "finished (I wrote a.txt and a test.)" in pages["trace a"]
    assert "exit code 0 (I wrote a.txt and a test.)" in pages["trace a"]
    assert "finished (Here it is.)" in pages["trace planner"]
    assert "the progress comment on its issue was updated" in pages["trace a"]
    assert not re.search(r"  (progress|describe)$", pages["trace a"], re.MULTILINE)
    assert "It left: demo-1/a/1-implement: I wrote a.txt and a test." in prompts[0]


def test_a_task_of_a_later_sprint_with_the_same_id_inherits_no_diary(home: Home) -> None:
    home.script(writes("a", output="I wrote the first a."))
    assert home.sprint(task("a")).code == 0
    rejected = does("review", round=1, output="CHANGES_NEEDED: more")
    home.script(
        writes("a", {"other.txt": "x"}, output="I wrote the second a."),
        rejected,
        does("fix", files={"other.txt": "y"}),
    )
    assert home.sprint(task("a", title="Another a", agent_prompt="do another")).code == 0
    (first,) = home.prompts("implement", "a", "demo-2")
    assert "diary" not in first
    assert "demo-1" not in first
    (fix,) = home.prompts("fix", "a", "demo-2")
    opening = fix.partition("[end")[0]
    assert "It left: demo-2/a/1-implement: I wrote the second a." in opening
    assert "first a" not in opening
    assert "demo-1" not in opening
    # What the agent of that name did in both sprints is still there for people.
    shown = home.caloron("agents", "show", "a").data
    assert {work["sprint_id"] for work in shown["work"]} == {"demo-1", "demo-2"}


def test_a_cycle_that_a_person_stopped_has_not_crashed_and_names_what_is_next(home: Home) -> None:
    gate = home.gate("work")
    home.script(writes("a", run=gate.line))
    running = home.start_sprint(task("a"))
    gate.wait_for_agent()
    assert running.interrupt().code == 11
    cycle = _cycle(home)
    assert (cycle["status"], cycle["result"]) == ("ended", "partial")
    assert cycle["next_target"] == "implement of a, again"
    assert cycle["work_in_progress"] == "demo-1/a"
    gate.open()
    assert home.caloron("resume").code == 0
    prompt = home.prompts("implement", "a")[-1]
    assert "Reason: the sprint was stopped." in prompt
    assert "To do next: implement of a, again." in prompt
