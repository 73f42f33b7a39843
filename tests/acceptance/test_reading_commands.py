"""Commands that read a sprint: status, why, logs and history, while it runs and afterwards."""

from __future__ import annotations

from tests.acceptance.terminals import Terminal
from tests.support.home import Home, does, task, writes


def test_before_the_first_sprint_the_answers_are_empty_and_have_a_hint(home: Home) -> None:
    status = home.data("status")
    assert (status["project"], status["total_sprints"], status["last_sprint"]) == ("demo", 0, None)
    assert status["path"] == str(home.project())
    assert (status["backend"], status["framework"], status["repo"]) == ("direct", "stub", "")
    assert home.data("history") == {"project": "demo", "total": 0, "sprints": []}
    for command in (("why",), ("logs", "a")):
        answer = home.caloron(*command)
        assert answer.code == 3, answer
        assert "caloron sprint" in answer.error["hint"]


def test_a_running_sprint_names_the_reason_why_each_task_waits(home: Home) -> None:
    writing = home.gate("writing")
    home.script(writes("a", run=f"echo hello from a; {writing.line}"))
    running = home.start_sprint(task("a"), task("b", "a"), task("c"), options=("--parallel", "1"))
    writing.wait_for_agent()
    why = {t["id"]: t["why"] for t in home.data("why")["tasks"]}
    assert why == {
        "a": "an agent is writing the change",
        "b": "waiting for a",
        "c": "waiting for a free slot (1 of 1 busy)",
    }
    last = home.data("status")["last_sprint"]
    assert (last["sprint_id"], last["phase"], last["total_tasks"]) == ("demo-1", "running", 3)
    assert {t["id"]: t["status"] for t in last["tasks"]}["a"] == "InProgress"
    assert "hello from a" in home.data("logs", "a")["attempts"][0]["output"]
    assert str(running.pid) in home.caloron("status", json=False).stdout
    assert running.interrupt().code == 11
    stopped = home.data("why", "a")["tasks"]
    assert stopped[0]["why"].startswith("stopped while")
    assert "caloron resume" in home.caloron("status", json=False).stdout


def test_status_and_logs_are_followed_until_the_work_ends_or_ctrl_c(home: Home) -> None:
    first, second = home.gate("first"), home.gate("second")
    write = f"echo began; {first.line}; echo went on; {second.line}; echo came to its end"
    home.script(writes("a", run=write))
    running = home.start_sprint(task("a"))
    first.wait_for_agent()
    watched = [Terminal(home, "status", "--watch") for _ in range(2)]
    followed = [Terminal(home, "logs", "a", "--follow") for _ in range(2)]
    for terminal, words in zip((*watched, *followed), ["InProgress"] * 2 + ["began"] * 2,
                               strict=True):  # fmt: skip
        terminal.read_until(words)
    first.open()
    for terminal in followed:
        terminal.read_until("went on")
    for terminal in (watched[0], followed[0]):
        terminal.interrupt()
        code, screen = terminal.end()
        assert (code, "Traceback" in screen) == (0, False), screen
    second.open()
    assert running.wait().code == 0
    code, screen = followed[1].end()
    assert code == 0
    assert screen.count("came to its end") == screen.count("went on") == 1
    code, screen = watched[1].end()
    assert (code, "ended, 1 of 1 task done" in screen) == (0, True), screen
    for command in (("status", "--watch"), ("logs", "a", "--follow")):
        assert home.caloron(*command).code == 2


def test_after_the_end_only_unfinished_tasks_have_a_reason(
    home: Home,
) -> None:
    home.script(does("implement", "bad", output="no disk", exit_code=9), writes("good"))
    home.sprint(task("bad"), task("after", "bad"), task("good"))
    tasks = {t["id"]: t for t in home.data("why")["tasks"]}
    assert tasks.keys() == {"bad", "after"}
    assert tasks["bad"]["status"] == "Escalated"
    assert "exit code 9: no disk" in tasks["bad"]["why"]
    assert (tasks["after"]["status"], tasks["after"]["why"]) == ("Blocked", "held by bad")
    (good,) = home.data("why", "good")["tasks"]
    assert (good["status"], good["why"]) == ("Done", "")
    assert home.caloron("why", "ghost").code == 3
    status = home.data("status")["last_sprint"]
    assert (status["completed_tasks"], status["total_tasks"], status["phase"]) == (1, 3, "ended")


def test_logs_show_every_attempt_of_a_task_in_order(home: Home) -> None:
    home.script(
        does("implement", "a", attempt=1, output="first try", run="echo why >&2", exit_code=1),
        writes("a", attempt=2, output="second try"),
        does("review", output="I have looked.\nAPPROVED"),
    )
    assert home.sprint(task("a")).code == 0
    attempts = home.data("logs", "a")["attempts"]
    agents = [attempt for attempt in attempts if attempt["role"] != "verify"]
    assert [(a["role"], a["output"].partition("\n")[0]) for a in agents] == [
        ("implement", "first try"),
        ("implement", "second try"),
        ("review", "I have looked."),
    ]
    assert attempts[0]["errors"] == "why\n"
    text = home.caloron("logs", "a", json=False).stdout
    assert text.index("first try") < text.index("second try") < text.index("I have looked.")
    assert home.caloron("logs", "ghost").code == 3


def test_history_lists_the_sprints_newest_first_and_as_many_as_asked_for(home: Home) -> None:
    home.script(writes("a"), does("implement", "bad", exit_code=1), writes("c"))
    for name in ("a", "bad", "c"):
        home.sprint(task(name))
    history = home.data("history")
    assert (history["project"], history["total"]) == ("demo", 3)
    numbers = [(s["number"], s["completed_tasks"], s["total_tasks"]) for s in history["sprints"]]
    assert numbers == [(3, 1, 1), (2, 0, 1), (1, 1, 1)]
    assert all(s["goal"] == "make it so" for s in history["sprints"])
    short = home.data("history", "--limit", "1")
    assert (short["total"], len(short["sprints"])) == (3, 1)
    assert home.caloron("history", "--limit", "0").code == 2
