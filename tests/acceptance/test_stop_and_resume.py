"""A sprint can be stopped at any time and goes on where it was."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.support.home import Home, does, task, writes
from tests.support.wait import process_lives, wait_for


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
    (saved,) = home.events("work_salvaged")
    assert home.git("show", f"{saved['commit']}:a.txt", repository="mirror.git") == b"a\n"

    home.gate("writing").open()
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert answer.json["command"] == "resume"
    assert answer.data["sprint_id"] == "demo-1"
    assert home.files() == {"a.txt": b"a\n", "b.txt": b"b\n"}
    assert len(home.issues()) == 2
    assert len(home.pulls()) == 2


def test_a_running_sprint_refuses_others_until_caloron_stop_ends_it_with_its_agents(
    home: Home,
) -> None:
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
    assert len(home.events("sprint_created")) == 1
    stopped = home.caloron("stop")
    assert stopped.code == 0, stopped
    expected = {"project": "demo", "stopped": True, "sprint_id": "demo-1", "number": 1}
    assert stopped.data == expected
    answer = running.wait()
    assert answer.code == 11, answer
    assert answer.error["code"] == "STOPPED"
    assert home.processes() == []
    home.gate("writing").open()
    assert home.caloron("resume").code == 0
    assert home.files() == {"a.txt": b"a\n"}


#: Git waits in the workspace until the test makes a file, as it does for long with large files.
_SLOW_GIT = (
    "git config filter.slow.clean"
    " 'touch .git/here; while ! test -e .git/go; do sleep 0.1; done; cat';"
    " echo '*.txt filter=slow' > .git/info/attributes"
)


def _slow_workspace(home: Home) -> Path:
    """The `.git` folder of the workspace whose hand-over waits."""
    return wait_for(lambda: home.run_files("workspace/.git/here"), "the hand-over")[0].parent


def test_a_stop_ends_a_long_transfer_of_work_and_resume_completes_it(home: Home) -> None:
    home.script(writes("a", run=_SLOW_GIT))
    running = home.start_sprint(task("a"))
    repository = _slow_workspace(home)
    doing = "the finished change is being checked and taken over"
    assert [row["why"] for row in home.caloron("why").data["tasks"]] == [doing]
    stopped = home.caloron("stop")
    assert stopped.code == 0, stopped
    assert running.wait().code == 11
    assert home.processes() == []
    (repository / "go").touch()
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"a\n"}
    # The agent had ended: its work is paid for once.
    assert home.attempts("implement", "a") == 1


def test_a_stop_does_not_wait_for_a_long_salvage_and_resume_makes_it(home: Home) -> None:
    home.script(writes("a", run=f"{_SLOW_GIT}; {home.gate('writing').line}"))
    running = home.start_sprint(task("a"))
    home.gate("writing").wait_for_agent()
    stopped = home.caloron("stop")
    assert stopped.code == 0, stopped
    assert running.wait().code == 11
    assert home.processes() == []
    assert home.events("work_salvaged") == []
    (_slow_workspace(home) / "go").touch()
    home.gate("writing").open()
    resumed = home.start("resume")
    saved = wait_for(lambda: home.events("work_salvaged"), "the salvage")
    assert home.git("show", f"{saved[0]['commit']}:a.txt", repository="mirror.git") == b"a\n"
    resumed.interrupt()


def test_an_interrupted_attempt_counts_towards_no_limit(home: Home) -> None:
    """A task that is stopped repeatedly keeps its attempts."""
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


def test_a_sprint_stopped_in_mid_planning_is_planned_on_resume(home: Home) -> None:
    """A finished plan is not requested again."""
    planning, writing = home.gate("planning"), home.gate("writing")
    plan = json.dumps([task("a")])
    home.script(does("po", run=planning.line, output=plan), writes("a", run=writing.line))
    running = home.start_sprint()
    planning.wait_for_agent()
    answer = running.interrupt()
    assert answer.code == 11, answer
    assert answer.data["tasks"] == []
    assert home.issues() == []
    planning.open()
    resumed = home.start("resume")
    writing.wait_for_agent()
    assert resumed.interrupt().code == 11
    writing.open()
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert home.attempts("po") == 2
    assert answer.data["goal"] == "make it so"
    assert home.files() == {"a.txt": b"a\n"}


def test_resume_of_a_finished_sprint_repeats_its_exit_code(home: Home) -> None:
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


def test_without_a_sprint_there_is_nothing_to_stop_or_to_resume(home: Home) -> None:
    home.script(writes("a"))
    stopped = home.caloron("stop")
    assert (stopped.code, stopped.data["stopped"]) == (0, False)
    assert home.caloron("resume").code == 3
    home.sprint(task("a"))
    assert home.caloron("resume", "demo-7").code == 3


def test_a_second_ctrl_c_leaves_at_once_and_nothing_is_lost(home: Home) -> None:
    """An agent that ignores signals does not delay the end."""
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


def test_an_agent_of_a_killed_sprint_keeps_its_slot_until_it_ends(
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


def _killed_with_an_agent_at_work(home: Home) -> int:
    """The process of an agent whose engine was killed."""
    _stuck_writer(home)
    running = home.start_sprint(task("a"))
    home.gate("writing").wait_for_agent()
    running.kill()
    (agent,) = home.caloron("status").data["last_sprint"]["orphaned_agents"]
    assert (agent["task"], agent["role"]) == ("a", "implement")
    assert process_lives(agent["pid"])
    return int(agent["pid"])


def test_an_agent_that_outlives_its_engine_is_named_until_resume_adopts_it(home: Home) -> None:
    pid = _killed_with_an_agent_at_work(home)
    for command in ("status", "why", "inbox", "report"):
        text = " ".join(home.caloron(command, json=False).stdout.split())
        assert f"agent a (implement) still runs as process {pid}" in text
        assert "caloron resume demo-1" in text
        assert "caloron stop" in text
        assert "stopped" not in text, command
    assert "without an engine" in home.caloron("history", json=False).stdout
    (agent,) = home.caloron("why").data["orphaned_agents"]
    assert agent["pid"] == pid
    resumed = home.start("resume")
    wait_for(lambda: home.caloron("status").data["engine"], "an engine drives it again")
    assert home.caloron("status").data["last_sprint"]["orphaned_agents"] == []
    home.gate("writing").open()
    assert resumed.wait().code == 0
    assert home.attempts("implement") == 1, "the same agent came to its end"
    assert home.files() == {"a.txt": b"a\n"}


def test_stop_ends_an_agent_whose_engine_was_killed(home: Home) -> None:
    pid = _killed_with_an_agent_at_work(home)
    planned = home.caloron("stop", "--dry-run").json["planned_actions"]
    assert [action["target"] for action in planned] == ["demo-1"]
    stopped = home.caloron("stop")
    assert stopped.code == 0, stopped
    expected = {"project": "demo", "stopped": True, "sprint_id": "demo-1", "number": 1}
    assert stopped.data == expected
    assert not process_lives(pid)
    assert home.processes() == []
    assert home.caloron("status").data["last_sprint"]["orphaned_agents"] == []
    assert home.caloron("stop").data["stopped"] is False
    home.gate("writing").open()
    assert home.caloron("resume").code == 0
    assert home.files() == {"a.txt": b"a\n"}
