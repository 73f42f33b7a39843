"""A sprint can be stopped at any time and goes on where it was."""

from __future__ import annotations

import json
import signal

from tests.acceptance.home import Home, does, task, writes


def _stuck_writer(home: Home) -> None:
    home.script(writes("a", run=home.gate("writing").line), writes("b"))


def test_ctrl_c_saves_and_stops_and_resume_goes_on_to_the_end(home: Home) -> None:
    _stuck_writer(home)
    running = home.start_sprint(task("a"), task("b", "a"))
    home.gate("writing").wait_for_agent()
    answer = running.interrupt()
    assert answer.code == 11, answer
    assert answer.error["code"] == "STOPPED"
    assert "caloron resume" in answer.error["hint"]
    assert answer.data["sprint_id"] == "demo-1"
    assert answer.statuses == {"a": "InProgress", "b": "Pending"}
    assert all(task["why"] for task in answer.tasks.values())
    assert home.processes() == []

    home.gate("writing").open()
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert answer.json["command"] == "resume"
    assert answer.data["sprint_id"] == "demo-1"
    assert home.files() == {"a.txt": b"a\n", "b.txt": b"b\n"}
    assert len(home.issues()) == 2
    assert len(home.pulls()) == 2


def test_caloron_stop_ends_the_running_sprint_with_its_agents(home: Home) -> None:
    _stuck_writer(home)
    running = home.start_sprint(task("a"))
    home.gate("writing").wait_for_agent()
    stopped = home.caloron("stop")
    assert stopped.code == 0, stopped
    assert stopped.data == {"project": "demo", "stopped": True, "sprint_id": "demo-1"}
    answer = running.wait()
    assert answer.code == 11, answer
    assert answer.error["code"] == "STOPPED"
    assert home.processes() == []
    home.gate("writing").open()
    assert home.caloron("resume").code == 0
    assert home.files() == {"a.txt": b"a\n"}


def test_stop_while_nothing_runs_says_so(home: Home) -> None:
    answer = home.caloron("stop")
    assert answer.code == 0
    assert answer.data["stopped"] is False


def test_an_interrupted_attempt_counts_to_no_cap(home: Home) -> None:
    """Stopped again and again, the task still has its attempts."""
    _stuck_writer(home)
    running = home.start_sprint(task("a"))
    for arrival in (1, 2, 3):
        home.gate("writing").wait_for_agent(arrival)
        assert running.interrupt().code == 11
        running = home.start("resume")
    home.gate("writing").open()
    answer = running.wait()
    assert answer.code == 0, answer
    assert home.escalations() == []


def test_what_a_stopped_agent_had_written_is_kept(home: Home) -> None:
    _stuck_writer(home)
    running = home.start_sprint(task("a"))
    home.gate("writing").wait_for_agent()
    assert running.interrupt().code == 11
    saved = home.events("work_salvaged")
    assert len(saved) == 1
    assert home.git("show", f"{saved[0]['commit']}:a.txt", place="mirror.git") == b"a\n"


def test_a_sprint_stopped_in_mid_planning_is_planned_on_resume(home: Home) -> None:
    planning = home.gate("planning")
    plan = json.dumps([task("a")])
    home.script(does("po", run=planning.line, output=plan), writes("a"))
    running = home.start_sprint()
    planning.wait_for_agent()
    answer = running.interrupt()
    assert answer.code == 11, answer
    assert answer.data["tasks"] == []
    assert home.issues() == []
    planning.open()
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert answer.data["goal"] == "make it so"
    assert home.files() == {"a.txt": b"a\n"}


def test_a_plan_once_made_is_never_asked_for_again(home: Home) -> None:
    plan = json.dumps([task("a")])
    home.script(does("po", output=plan), writes("a", run=home.gate("writing").line))
    running = home.start_sprint()
    home.gate("writing").wait_for_agent()
    running.interrupt()
    home.gate("writing").open()
    assert home.caloron("resume").code == 0
    assert home.attempts("po") == 1


def test_resume_goes_on_after_a_kill(home: Home) -> None:
    """The agent lives on without its engine, and its work is taken by the next one."""
    _stuck_writer(home)
    running = home.start_sprint(task("a"), task("b", "a"))
    home.gate("writing").wait_for_agent()
    running.kill()
    assert home.processes("writing-open") != []
    home.gate("writing").open()
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert home.attempts("implement", "a") == 1
    assert home.files() == {"a.txt": b"a\n", "b.txt": b"b\n"}


def test_resume_of_a_finished_sprint_gives_the_code_it_ended_with(home: Home) -> None:
    home.script(writes("a"), does("implement", "bad", exit_code=1))
    assert home.sprint(task("a")).code == 0
    again = home.caloron("resume")
    assert (again.code, again.data["sprint_id"]) == (0, "demo-1")
    assert home.sprint(task("bad")).code == 10
    again = home.caloron("resume")
    assert (again.code, again.data["sprint_id"]) == (10, "demo-2")
    assert again.error["code"] == "TASKS_NOT_DONE"
    assert home.caloron("resume", "demo-1").code == 0
    assert len(home.events("attempt_started")) == 4


def test_resume_without_a_sprint_or_of_an_unknown_one_is_not_found(home: Home) -> None:
    home.script(writes("a"))
    assert home.caloron("resume").code == 3
    home.sprint(task("a"))
    assert home.caloron("resume", "demo-7").code == 3


def test_a_second_sprint_while_one_runs_is_told_who_holds_the_project(home: Home) -> None:
    _stuck_writer(home)
    running = home.start_sprint(task("a"))
    home.gate("writing").wait_for_agent()
    for command in (("sprint", "another", "--yes"), ("resume",)):
        refused = home.caloron(*command)
        assert refused.code == 5, refused
        assert refused.error["code"] == "CONFLICT"
        assert str(running.pid) in refused.error["message"]
        assert "demo-1" in refused.error["message"]
        assert "caloron stop" in refused.error["hint"]
    home.gate("writing").open()
    assert running.wait().code == 0
    assert len(home.events("sprint_created")) == 1


def test_a_second_ctrl_c_leaves_at_once_and_nothing_is_lost(home: Home) -> None:
    """An agent that ignores every polite word does not keep its user waiting."""
    line = f"trap '' TERM; {home.gate('writing').line}"
    home.script(writes("a", run=line))
    running = home.start_sprint(task("a"))
    home.gate("writing").wait_for_agent()
    running.process.send_signal(signal.SIGINT)
    running.wait_for_line("stopping")
    assert running.interrupt().code == 11
    home.gate("writing").open()
    assert home.caloron("resume").code == 0
    assert home.files() == {"a.txt": b"a\n"}


def test_an_agent_of_a_killed_sprint_keeps_its_slot_until_it_ends_and_then_others_go_on(
    home: Home,
) -> None:
    _stuck_writer(home)
    running = home.start_sprint(task("a"), options=("--parallel", "1"))
    home.gate("writing").wait_for_agent()
    running.kill()
    second = home.start_sprint(task("b"), options=("--parallel", "1"))
    home.wait_for_status("b", "InProgress", sprint="demo-2")
    home.gate("writing").open()
    answer = second.wait()
    assert answer.code == 0, answer
    assert answer.data["sprint_id"] == "demo-2"
    answer = home.caloron("resume", "demo-1")
    assert answer.code == 0, answer
    assert home.attempts("implement", "a") == 1
    assert home.files() == {"a.txt": b"a\n", "b.txt": b"b\n"}


def test_a_sprint_stopped_in_mid_verification_goes_on_with_it(home: Home) -> None:
    verifying = home.gate("verifying")
    home.set(verify=verifying.line)
    home.script(writes("a"))
    running = home.start_sprint(task("a"))
    verifying.wait_for_agent()
    assert running.interrupt().code == 11
    verifying.open()
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"a\n"}
