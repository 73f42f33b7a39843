"""The cost of agents is counted, a budget is kept, and a refusal of the provider is no failure."""

from __future__ import annotations

import json
from typing import Any

from tests.support.home import Home, does, task, writes
from tests.support.wait import wait_for


def _paid(name: str, usd: float) -> dict[str, Any]:
    return writes(name, report={"cost_usd": usd, "tokens_in": 100, "tokens_out": 10})


def _reports(words: str, **what: Any) -> dict[str, Any]:
    """An agent that ends with this report, a JSON object with variables of the shell."""
    return does("implement", "a", run=f'echo "{words}" > $CALORON_REPORT; exit 1', **what)


def test_a_used_up_budget_stops_the_sprint_and_more_money_lets_it_go_on(home: Home) -> None:
    home.script(_paid("a", 0.6), _paid("b", 0.6), _paid("c", 0.6))
    tasks = (task("a"), task("b", "a"), task("c", "b"))
    answer = home.sprint(*tasks, options=("--budget", "1"))
    assert answer.code == 11, answer
    assert answer.error["code"] == "STOPPED"
    assert "the budget of $1.00 is used up" in answer.error["message"]
    assert "--budget" in answer.error["hint"]
    assert answer.data["budget_usd"] == 1
    assert answer.data["cost_usd"] == 1.2
    assert answer.statuses["c"] == "Pending"
    asked = home.attempts("implement")
    assert asked == 2

    again = home.caloron("resume")
    assert again.code == 11, again
    assert home.attempts("implement") == asked
    assert "budget" in home.caloron("why", json=False).stdout

    answer = home.caloron("resume", "--budget", "5")
    assert answer.code == 0, answer
    assert answer.data["budget_usd"] == 5
    assert answer.data["cost_usd"] == 1.8
    assert answer.data["estimated_cost_usd"] == 0
    assert {name: t["cost_usd"] for name, t in answer.tasks.items()} == dict.fromkeys("abc", 0.6)
    assert answer.tasks["a"]["tokens"] == 110
    assert "budget: $5.00, of which $1.20 was spent before" in answer.stderr


def test_work_of_another_sprint_does_not_use_the_budget_of_this_sprint(home: Home) -> None:
    """The last agent spends the last cent; what waits then belongs to a sprint that was stopped."""
    writing = home.gate("writing")
    home.script(writes("a", run=writing.line))
    running = home.start_sprint(task("a"))
    writing.wait_for_agent()
    assert running.interrupt().code == 11
    paid = does("review", "b", report={"cost_usd": 0.6}, output="APPROVED")
    home.script(writes("b"), paid)
    answer = home.sprint(task("b"), options=("--budget", "0.5"))
    assert answer.code == 0, answer
    assert answer.data["cost_usd"] == 0.6
    assert home.files() == {"b.txt": b"b\n"}


def test_custom_agents_that_report_their_cost_have_to_keep_the_budget(home: Home) -> None:
    line = (
        "echo x > $CALORON_TASK_ID.txt; echo '{\"cost_usd\": 0.6}' > $CALORON_REPORT; echo APPROVED"
    )
    home.set(framework="command", command=["sh", "-c", line])
    answer = home.sprint(task("a"), task("b", "a"), task("c", "b"), options=("--budget", "1"))
    assert answer.code == 11, answer
    assert "the budget of $1.00 is used up" in answer.error["message"]
    assert answer.data["cost_usd"] == 1.2
    assert home.attempts("implement") == home.attempts("review") == 1


def test_a_planner_may_name_an_agent_that_costs_money(home: Home) -> None:
    """The project's own agents cost nothing, so nothing was counted before the plan was there."""
    line = f"echo '{json.dumps([task('a', framework='stub'), task('b', 'a', framework='stub')])}'"
    home.set(framework="command", run_budget_usd=1.0)
    home.set(command=["sh", "-c", f"test $CALORON_ROLE != po || {line}; echo APPROVED"])
    home.script(_paid("a", 0.6), _paid("b", 0.6))
    answer = home.caloron("sprint", "goal", "--yes", "--budget", "0.5")
    assert answer.code == 11, answer
    assert home.attempts("implement") == 1
    spec = json.loads(home.run_files("spec.json", "implement", "a")[0].read_text())
    assert spec["budget_usd"] == 0.5


def test_agents_side_by_side_never_have_more_than_the_budget_between_them(home: Home) -> None:
    """A run reserves its budget while it works, so the second run has to wait for the rest."""
    home.set(run_budget_usd=1.0)
    both = home.gate("both")
    home.script(*(_paid(name, 0.2) | {"run": both.line} for name in "ab"))
    running = home.start_sprint(task("a"), task("b"), options=("--budget", "1"))
    both.wait_for_agent()
    home.wait_for_status("b", "InProgress")
    assert home.attempts("implement") == 1
    both.open()
    answer = running.wait()
    assert answer.code == 0, answer
    assert answer.data["cost_usd"] == 0.4


def test_the_cost_of_an_interrupted_agent_is_counted(home: Home) -> None:
    writing = home.gate("writing")
    spent = "echo '{\"cost_usd\": 0.25}' > $CALORON_REPORT"
    home.script(_paid("b", 0.1), writes("a", run=f"{spent}; {writing.line}"))
    running = home.start_sprint(task("a"))
    writing.wait_for_agent()
    assert running.interrupt().code == 11
    writing.open()
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert answer.data["cost_usd"] == 0.5


def test_a_sprint_waits_for_an_exhausted_quota_and_counts_no_failure(home: Home) -> None:
    quota = (
        r"{\"trouble\": \"quota\", \"detail\": \"5-hour limit\","
        r" \"reset_at\": $(($(date +%s) + 6))}"
    )
    home.script(
        _reports(quota, attempt=1),
        # A real failure is retried; if the quota counted as another failure, it would be escalated.
        does("implement", "a", attempt=2, exit_code=1),
        writes("a", attempt=3),
    )
    running = home.start_sprint(task("a"))

    def waits() -> bool:
        if home.attempts("implement") != 1:
            return False
        (task_row,) = home.caloron("why").data["tasks"]
        (paused,) = home.caloron("status").data["last_sprint"]["unavailable"] or [{"what": ""}]
        return "waits: stub: quota until " in task_row["why"] and paused["what"] == "quota"

    wait_for(waits, "a task that waits for its quota")
    answer = running.wait()
    assert answer.code == 0, answer
    assert answer.stderr.count("stub: quota; nobody asks it until ") == 1
    assert home.escalations() == []
    assert home.attempts("implement") == 3
    assert home.files() == {"a.txt": b"a\n"}


def test_a_refused_credential_stops_the_sprint_until_the_user_fixes_it(home: Home) -> None:
    auth = r"{\"trouble\": \"auth\", \"detail\": \"invalid x-api-key\"}"
    home.script(_reports(auth), writes("b"))
    answer = home.sprint(task("a"), task("b", "a"))
    assert answer.code == 11, answer
    assert "no valid credential" in answer.error["message"]
    assert "invalid x-api-key" in answer.error["message"]
    assert "caloron resume" in answer.error["hint"]
    assert home.escalations() == []
    assert home.attempts("implement") == 1

    home.script(writes("a"), writes("b"))
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"a\n", "b.txt": b"b\n"}


def test_work_that_cannot_be_saved_stays_in_its_workspace_until_it_can(home: Home) -> None:
    """Not even a ref can be written when the provider says no in the middle of the work."""
    working = home.gate("working")
    report = r"{\"trouble\": \"quota\", \"reset_at\": 4102444800}"
    first = _reports(report, attempt=1)
    first["run"] = f"echo half a day > half.txt; {working.line}; {first['run']}"
    home.script(first, writes("a"))
    running = home.start_sprint(task("a"))
    working.wait_for_agent()
    blocked = home.project() / "mirror.git" / "refs" / "salvage"
    blocked.write_text("in the way\n")
    working.open()
    wait_for(lambda: home.events("agent_reported"), "the end of the agent")
    wait_for(lambda: home.events("salvage_failed"), "the failed salvage")
    running.interrupt()
    (kept,) = home.run_files("workspace/half.txt")
    assert kept.read_text() == "half a day\n"
    blocked.unlink()
    resumed = home.start("resume")
    wait_for(lambda: home.events("work_salvaged"), "the salvage")
    resumed.interrupt()
    (saved,) = home.events("work_salvaged")
    assert home.git("show", f"{saved['ref']}:half.txt", repository="mirror.git") == b"half a day\n"
    assert not kept.exists()
