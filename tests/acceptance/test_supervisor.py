"""Agents that hang are probed, restarted and handed to a person; agents at work are left alone."""

from __future__ import annotations

from typing import Any

from tests.support.home import Home, does, task, writes

#: An agent is silent after 0.9 seconds, and has half a second to answer a probe.
IMPATIENT: dict[str, Any] = {"stall_threshold_m": 0.015, "probe_grace_s": 0.5}

#: Short enough to kill what runs for 5 seconds, if that were silent.
LENIENT: dict[str, Any] = {"stall_threshold_m": 0.025, "probe_grace_s": 1}


def _hangs(home: Home) -> str:
    """The shell and the scripted agent above it are both stopped: nothing is left to answer."""
    return f"echo 'hanging: {home.root}/'; kill -STOP $PPID $$"


def test_a_stopped_agent_is_probed_restarted_escalated_and_released_by_a_comment(
    home: Home,
) -> None:
    home.set(**IMPATIENT)
    home.script(does("implement", "a", run=_hangs(home)), writes("b"))
    answer = home.sprint(task("a"), task("b", "a"))
    assert answer.code == 10, answer
    assert answer.statuses == {"a": "Escalated", "b": "Blocked"}
    assert "silent" in answer.tasks["a"]["why"]
    # The agent was started twice, and no process of it is left.
    assert len(home.printed("hanging: ")) == 2
    assert home.processes() == []

    comments = home.comments(answer.tasks["a"]["issue_number"])
    assert len([c for c in comments if c.startswith("@caloron-agent-a has been silent")]) == 1
    assert len([c for c in comments if c.startswith("The agent is restarted")]) == 1
    (escalation,) = home.escalations()
    assert home.state_file()["interventions"] == {"a": {"count": 3}}
    # The agent's home lists its remaining work.
    cycle = home.caloron("agents", "show", "a").data["cycle"]
    assert cycle["work_in_progress"] == "demo-1/a"
    assert cycle["next_target"] == "implement of a, again"

    home.script(writes("a"), writes("b"))
    home.caloron("issue", "comment", str(escalation["number"]), "resolved")
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"a\n", "b.txt": b"b\n"}
    assert [e["state"] for e in home.escalations()] == ["closed"]
    assert home.state_file()["interventions"] == {}


def test_an_agent_that_recovers_continues_and_a_hanging_reviewer_does_not_approve(
    home: Home,
) -> None:
    home.set(**IMPATIENT)
    home.script(
        does("implement", "a", attempt=1, run=_hangs(home)),
        does("review", "b", run="kill -STOP $PPID $$", output="APPROVED"),
        writes("a"),
        writes("b"),
    )
    answer = home.sprint(task("a"), task("b"))
    assert answer.statuses == {"a": "Done", "b": "Escalated"}, answer
    assert home.files() == {"a.txt": b"a\n"}
    assert "a" not in home.state_file()["interventions"]
    assert len(home.printed("hanging: ")) == 1
    assert home.processes() == []


def test_a_printing_and_a_busy_agent_are_left_alone(home: Home) -> None:
    home.set(**LENIENT)
    slow = "for i in $(seq 25); do echo still at it; sleep 0.2; done"
    busy = "end=$(($(date +%s) + 5)); while [ $(date +%s) -lt $end ]; do :; done"
    home.script(writes("slow", run=slow), writes("busy", run=busy))
    answer = home.sprint(task("slow"), task("busy"))
    assert answer.code == 0, answer
    assert len(home.events("attempt_started")) == 4  # the agents and their reviewers
