"""Every view says the same of a sprint that was stopped, was cut off or never began."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.support.home import Home, task, writes
from tests.support.wait import wait_for


def text(home: Home, *command: str) -> str:
    return home.caloron(*command, json=False).stdout


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A sprint of one merged task, for tests that only read it."""
    home = Home(tmp_path_factory.mktemp("finished")).init()
    home.script(writes("a", run="sleep 1.3"))
    assert home.sprint(task("a")).code == 0
    yield home
    home.close()


@pytest.mark.parametrize("how", ["interrupt", "kill"])
def test_a_sprint_without_an_engine_is_shown_as_stopped_with_its_work_time(
    home: Home, how: str
) -> None:
    writing = home.gate("writing")
    home.script(writes("a", run=f"sleep 1; {writing.line}"))
    running = home.start_sprint(task("a"))
    writing.wait_for_agent()
    assert home.data("history")["sprints"][0]["outcome"] == "running"
    assert home.data("report")["outcome"] == "running"
    getattr(running, how)()
    if how == "kill":
        # Its agent lives on; while it does, the sprint is not stopped.
        assert home.data("report")["outcome"] == "without an engine"
        writing.open()
        wait_for(lambda: not home.processes("shim.py"), "the agent is done")
    report = home.data("report")
    assert report["outcome"] == "stopped"
    (row,) = report["tasks"]
    doing = {
        "interrupt": "an agent is writing the change",
        # The agent ended by itself while no engine was running.
        "kill": "the finished change is being checked and taken over",
    }
    assert row["why"] == f"stopped while {doing[how]}"
    if how == "interrupt":
        assert home.data("why")["tasks"][0]["why"] == row["why"]
        # The last sign of life of the killed process is some seconds old.
        assert min(row["elapsed_s"], report["agent_s"]) >= 1
    (sprint,) = home.data("history")["sprints"]
    assert (sprint["outcome"], sprint["exit_code"]) == ("stopped", None)


def test_the_log_of_an_interrupted_run_is_its_own(home: Home) -> None:
    writing = home.gate("writing")
    home.script(writes("a", run=f"echo attempt of $$; {writing.line}"))
    running = home.start_sprint(task("a"))
    writing.wait_for_agent()
    running.interrupt()
    writing.open()
    assert home.caloron("resume", "demo-1").code == 0
    # A stop that the user asked for is not a problem.
    assert home.data("report")["problems"] == []
    first, second = (a for a in home.data("trace", "a")["attempts"] if a["role"] == "implement")
    logs = [(Path(a["logs"]) / "output.log").read_text() for a in (first, second)]
    assert all("attempt of" in log for log in logs)
    assert logs[0] != logs[1]


def test_a_red_main_shows_the_failing_test_and_a_remedy(home: Home) -> None:
    ruler = "=" * 25
    lines = (
        "E  assert 1 == 2",
        "FAILED tests/test_x.py::test_y - assert",
        f"{ruler} 1 failed {ruler}",
    )
    home.script(writes("a"))
    assert home.sprint(task("a")).code == 0
    home.set(verify="; ".join(f'echo "{line}"' for line in lines) + "; false")
    plan = ("--plan", str(home.plan(task("b"))))
    refused = home.caloron("sprint", "go", "--yes", *plan, json=False)
    assert refused.code == 8
    pages = {
        "error": refused.stderr,
        "why": text(home, "why"),
        "inbox": text(home, "inbox"),
        "report": text(home, "report"),
    }
    for command, page in pages.items():
        assert "1 failed: tests/test_x.py::test_y" in page, (command, page)
        assert "| E  assert 1 == 2" in page, (command, page)
        assert "caloron resume demo-2" in page, (command, page)
        assert "--allow-red" in page, (command, page)
        # The report shows the line that verifies, which draws the ruler.
        assert ruler not in page or command == "report"
    assert "1 failed: tests/test_x.py::test_y" in text(home, "status")
    assert home.data("report")["main_before"] == "red (2 of 2 runs)"
    last, first = home.data("history")["sprints"]
    assert (last["outcome"], last["exit_code"], last["phase"]) == ("failed", 8, "ended")
    assert last["failure"] == "main is red before the sprint: 1 failed: tests/test_x.py::test_y"
    assert (first["outcome"], first["exit_code"], first["failure"]) == ("ended", 0, "")
    assert last["failure"] in text(home, "history")


def test_a_disabled_verification_is_not_reported_as_missing_tests(home: Home) -> None:
    home.script(writes("a")).set(verify="none")
    ran = home.caloron("sprint", "go", "--yes", "--plan", str(home.plan(task("a"))), json=False)
    assert ran.code == 0, ran
    for page in (ran.stdout + ran.stderr, text(home, "status")):
        assert "switched off (verify = none)" in page.lower()
        assert "no tests were found" not in page


def test_times_are_local_for_people_and_utc_for_programs(finished: Home) -> None:
    data = finished.caloron("report", TZ="XYZ-07:00").data
    began = datetime.fromisoformat(data["started_at"])
    assert began.utcoffset() == timedelta(0)
    report = finished.caloron("report", json=False, TZ="XYZ-07:00").stdout
    local = began + timedelta(hours=7)
    assert f"({local:%Y-%m-%d %H:%M} to " in report
    assert "UTC" not in report


def test_the_time_that_agents_worked_is_not_rounded_to_minutes(finished: Home) -> None:
    data = finished.data("report")
    assert data["agent_s"] == pytest.approx(sum(a["time_s"] for a in data["agents"]), abs=0.2)
    assert f"agents worked {data['agent_s']:.0f} s" in text(finished, "report")


def test_cycles_and_settings_show_the_time_of_the_reader(finished: Home) -> None:
    zone = "XYZ-07:00"
    began = datetime.fromisoformat(
        finished.caloron("agents", "show", "a").data["cycles"][0]["started_at"]
    )
    here = (began + timedelta(hours=7)).strftime("%Y-%m-%d %H:%M XYZ")
    assert f"1, {here}," in finished.caloron("agents", "show", "a", json=False, TZ=zone).stdout
    made = finished.caloron("config", "list").data["settings"]["created_at"]
    here = (datetime.fromisoformat(made) + timedelta(hours=7)).strftime("%Y-%m-%d %H:%M XYZ")
    listed = finished.caloron("config", "list", json=False, TZ=zone).stdout
    (line,) = [line for line in listed.splitlines() if line.startswith("created_at")]
    # The meaning of the setting follows its value.
    assert line.split(maxsplit=1)[1].startswith(f"{here}  ")
