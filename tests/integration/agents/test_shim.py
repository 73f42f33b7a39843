"""The shim with real processes: attempts, output, lease and end of an agent."""

from __future__ import annotations

import os
import signal
import sqlite3
from pathlib import Path

import pytest

from caloron.agents.sandbox.bubblewrap import Bubblewrap
from caloron.agents.supervise import launch
from caloron.agents.supervise.attempt import LOST, MOST_INTERRUPTIONS
from caloron.agents.supervise.processes import children
from caloron.ports import SandboxSpec
from tests.integration.agents.conftest import Attempt
from tests.support.wait import process_lives, wait_for

CAP = 1_000_000


def test_the_shim_of_an_ended_agent_writes_its_result_and_wakes_the_engine(
    attempt: Attempt,
) -> None:
    wake = attempt.home / "wake"
    os.mkfifo(wake)
    reader = os.open(wake, os.O_RDONLY | os.O_NONBLOCK)
    attempt.start_shell("echo hello; echo oops >&2; echo; echo bye; echo", wake=str(wake))
    assert attempt.end() == 0
    assert attempt.result() == {
        "exit_code": 0,
        "timed_out": False,
        "bytes": len("hello\noops\n\nbye\n\n"),
        "last_line": "bye",
        "over": "",
    }
    assert os.read(reader, 10) == b"."
    os.close(reader)
    assert attempt.output() == "hello\n\nbye\n\n"
    assert (attempt.run_dir / "stderr.log").read_text() == "oops\n"


@pytest.mark.parametrize(
    ("script", "code", "last"),
    [
        ("exit 7", 7, ""),
        ("echo why >&2; exit 1", 1, "why"),
        ("kill -KILL $$", 137, ""),
        ("kill -TERM $$", 143, ""),
        # Agents have the default signal handlers.
        ("(kill -HUP $$); sleep 1000", 129, ""),
    ],
)
def test_the_result_has_the_exit_code_or_signal_of_the_agent(
    attempt: Attempt, script: str, code: int, last: str
) -> None:
    attempt.start_shell(script)
    result = attempt.finished()
    assert (result["exit_code"], result["last_line"]) == (code, last)


def test_a_missing_program_is_named_in_the_result(attempt: Attempt) -> None:
    attempt.start("no-such-agent")
    result = attempt.finished()
    assert result["exit_code"] == 127
    assert result["last_line"] == "cannot start no-such-agent: No such file or directory"


def test_an_agent_gets_its_prompt_its_folder_and_only_its_own_environment(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORGE_TOKEN", "secret")
    prompt = attempt.home / "prompt"
    prompt.write_text("do this\n")
    env = {"PATH": os.environ["PATH"], "CALORON_ROLE": "fix"}
    attempt.start_shell("cat; pwd; env; tr '\\0' '\\n' < /proc/$PPID/environ",
                        stdin=str(prompt), env=env)  # fmt: skip
    assert attempt.end() == 0
    output = attempt.output()
    assert output.startswith(f"do this\n{attempt.workspace}\n")
    assert "CALORON_ROLE=fix" in output
    assert "CALORON_ATTEMPT=1" in output
    assert "secret" not in output


@pytest.mark.parametrize("number", range(3, 15))
def test_a_file_is_open_for_an_agent_at_its_number(attempt: Attempt, number: int) -> None:
    file = attempt.home / "file"
    file.write_text("what it holds\n")
    attempt.start_shell(f"cat /dev/fd/{number}", files={str(number): str(file)})
    assert attempt.end() == 0
    assert attempt.output() == "what it holds\n"


def test_an_attempt_is_counted_once_after_its_process_started(attempt: Attempt) -> None:
    attempt.start_shell("true")
    assert attempt.end() == 0
    assert attempt.lease()["attempt"] == 1
    assert attempt.events("attempt_started") == attempt.events("attempt_ended") == 1
    attempt.fence()
    attempt.token = attempt.claim(60_000).token
    attempt.start_shell("echo attempt $CALORON_ATTEMPT")
    assert attempt.end() == 0
    assert attempt.lease()["attempt"] == 2
    assert attempt.output() == "attempt 2\n"


def test_a_killed_shim_frees_its_lock_and_its_agent_is_ended_by_reaping(attempt: Attempt) -> None:
    attempt.start_shell("sleep 1000 & echo child $!; echo ready; wait")
    child = int(attempt.wait_for_output("ready").split()[1])
    agent = attempt.agent()
    assert launch.is_alive(attempt.run_dir)
    os.kill(attempt.identity()["pid"], signal.SIGKILL)
    launch.wait_until_gone(attempt.run_dir)
    assert not launch.is_alive(attempt.run_dir)
    assert process_lives(agent)
    launch.reap(attempt.run_dir)
    assert not process_lives(agent)
    assert not process_lives(child)
    assert attempt.result() is None


def test_reaping_never_touches_a_process_that_got_the_id_of_an_agent(attempt: Attempt) -> None:
    agent = attempt.start_sleeping()
    os.kill(attempt.identity()["pid"], signal.SIGKILL)
    launch.wait_until_gone(attempt.run_dir)
    file = attempt.run_dir / "shim.json"
    text = file.read_text()
    started = str(attempt.identity()["agent_start_time"])
    for other in (text.replace(started, "1"), text.replace(attempt.identity()["boot_id"], "x")):
        file.write_text(other)
        launch.reap(attempt.run_dir)
        assert process_lives(agent)
    file.write_text(text)
    launch.reap(attempt.run_dir)
    assert not process_lives(agent)


@pytest.mark.parametrize(
    ("trap", "saved"), [("''", ""), ("'echo saved; exit 0'", "saved\n")], ids=["ignores", "saves"]
)
def test_a_stopped_agent_may_clean_up_but_not_go_on(
    attempt: Attempt, trap: str, saved: str
) -> None:
    attempt.start_shell(f"trap {trap} TERM; echo ready; while :; do sleep 0.05; done")
    attempt.wait_for_output("ready")
    launch.stop(attempt.run_dir)
    assert not process_lives(attempt.agent())
    assert attempt.end() == 4
    assert attempt.result() is None
    assert attempt.output() == f"ready\n{saved}"


def test_stopping_a_shim_that_is_itself_frozen_still_ends_both(attempt: Attempt) -> None:
    agent = attempt.start_sleeping()
    os.kill(attempt.identity()["pid"], signal.SIGSTOP)
    launch.stop(attempt.run_dir)
    assert not launch.is_alive(attempt.run_dir)
    assert not process_lives(agent)


def test_a_child_of_an_agent_ends_with_the_agent(attempt: Attempt) -> None:
    attempt.start_shell(
        "(sh -c 'trap \"\" TERM; echo $$; exec sleep 1000' &); sleep 0.1; echo done"
    )
    assert attempt.finished()["last_line"] == "done"
    assert not process_lives(int(attempt.output().split()[0]))


def test_a_child_in_another_session_ends_with_the_agent(attempt: Attempt) -> None:
    go = attempt.workspace / "go"
    attempt.start_shell(
        "setsid sh -c 'echo $$; exec sleep 1000' & echo ready;"
        " until test -e go; do sleep 0.05; done"
    )
    attempt.wait_for_output("ready")
    wait_for(lambda: any(word.isdigit() for word in attempt.output().split()), "a pid")
    child = next(int(word) for word in attempt.output().split() if word.isdigit())
    attempt.renewals(2)
    go.touch()
    assert attempt.end() == 0
    assert not process_lives(child)


def test_a_shim_whose_item_was_taken_over_ends_its_agent_without_a_result(
    attempt: Attempt,
) -> None:
    agent = attempt.start_sleeping()
    attempt.fence()
    assert attempt.end() == 3
    assert not process_lives(agent)
    assert attempt.result() is None


def test_a_shim_that_starts_with_an_old_token_starts_no_agent(attempt: Attempt) -> None:
    attempt.fence()
    attempt.start_shell("touch started")
    assert attempt.end() == 3
    assert not (attempt.workspace / "started").exists()
    assert attempt.lease()["attempt"] == 0


def test_a_shim_that_cannot_renew_its_lease_ends_its_agent(attempt: Attempt) -> None:
    attempt.start_sleeping()
    wait_for(lambda: attempt.lease()["attempt"] == 1, "the attempt is counted")
    other = sqlite3.connect(attempt.ledger.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert attempt.end() == 3
    other.execute("ROLLBACK")
    other.close()
    assert not process_lives(attempt.agent())
    assert attempt.result() is None


def test_a_shim_retries_while_the_ledger_is_locked(attempt: Attempt) -> None:
    attempt.start_shell("echo ready; until test -e go; do sleep 0.05; done", lease_ms=60_000)
    attempt.wait_for_output("ready")
    wait_for(lambda: attempt.lease()["attempt"] == 1, "the attempt is counted")
    other = sqlite3.connect(attempt.ledger.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    (attempt.workspace / "go").touch()
    log = attempt.run_dir / "shim.log"
    wait_for(lambda: "locked" in log.read_text(), "the shim reports the locked ledger")
    other.execute("ROLLBACK")
    other.close()
    attempt.finished()


def test_an_agent_over_its_time_limit_is_ended_and_its_result_names_the_limit(
    attempt: Attempt,
) -> None:
    attempt.start_shell("echo working; exec sleep 1000", limit_s=0.5)
    result = attempt.finished()
    ending = (result["timed_out"], result["exit_code"], result["last_line"])
    assert ending == (True, 128 + signal.SIGTERM, "working")


def test_a_hundred_megabytes_of_output_stay_small_on_disk_and_in_memory(attempt: Attempt) -> None:
    attempt.start_shell(
        "echo first; head -c 100000000 /dev/zero | tr '\\0' x; echo; echo the last line;"
        " touch printed; until test -e go; do sleep 0.05; done",
        output_cap=CAP,
    )
    wait_for((attempt.workspace / "printed").exists, "everything is printed")
    wait_for(lambda: _disk(attempt.run_dir) >= CAP, "the output is taken")
    assert _disk(attempt.run_dir) < CAP + 10_000
    status = Path(f"/proc/{attempt.identity()['pid']}/status").read_text()
    peak_kb = int(status.split("VmHWM:")[1].split()[0])
    assert peak_kb <= 17 * 1024
    (attempt.workspace / "go").touch()
    result = attempt.finished()
    output = (attempt.run_dir / "output.log").read_bytes()
    assert len(output) < CAP + 100
    assert output.startswith(b"first\nxxx")
    assert output.endswith(b"xxx\nthe last line\n")
    omitted = 100_000_000 + len("first\n\nthe last line\n") - CAP
    assert f"\n[... {omitted} bytes omitted ...]\n".encode() in output
    assert (result["last_line"], result["bytes"]) == ("the last line", omitted + CAP)


def _disk(run_dir: Path) -> int:
    return sum(file.stat().st_size for file in run_dir.glob("output.log*"))


@pytest.mark.parametrize("size", [0, 1, 499, 500, 501, 999, 1000, 1001, 1499, 1500, 1501, 7777])
def test_output_over_the_cap_keeps_its_beginning_and_its_end(attempt: Attempt, size: int) -> None:
    text = "".join(chr(33 + i % 90) for i in range(size))
    (attempt.workspace / "text").write_text(text)
    attempt.start("cat", "text", output_cap=1000)
    assert attempt.end() == 0
    kept = (attempt.run_dir / "output.log").read_text()
    note = f"\n[... {size - 1000} bytes omitted ...]\n"
    assert kept == (text if size <= 1000 else text[:500] + note + text[-500:])
    assert not (attempt.run_dir / "output.log.tail").exists()


def test_output_without_valid_utf8_is_readable(attempt: Attempt) -> None:
    attempt.start_shell("printf 'caf\\351 \\377\\376 end\\n'")
    result = attempt.finished()
    assert result["last_line"] == "caf\ufffd \ufffd\ufffd end"
    assert attempt.output() == "caf\ufffd \ufffd\ufffd end\n"


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("while :; do :; done", id="computes silently"),
        pytest.param("sh -c 'while :; do :; done' & wait", id="waits for a child that computes"),
        pytest.param("while sleep 0.05; do echo x; done", id="prints"),
        pytest.param("while sleep 0.05; do echo x >&2; done", id="prints errors"),
    ],
)
def test_renewals_of_an_active_agent_record_activity(attempt: Attempt, script: str) -> None:
    attempt.start_shell(script)
    attempt.renewals(1)
    recorded = attempt.lease()["activity_at"]
    wait_for(lambda: attempt.lease()["activity_at"] > recorded, "activity is recorded")


def test_renewals_of_a_sleeping_agent_record_no_activity(attempt: Attempt) -> None:
    attempt.start_sleeping()
    attempt.renewals(2)
    recorded = attempt.lease()["activity_at"]
    attempt.renewals(3)
    assert attempt.lease()["activity_at"] == recorded


def test_a_frozen_agent_records_no_activity_and_a_probe_reports_its_state(
    attempt: Attempt,
) -> None:
    attempt.start_shell("while :; do echo x; done", output_cap=1000)
    attempt.wait_for_output("x")
    agent = attempt.agent()
    os.kill(agent, signal.SIGSTOP)
    attempt.renewals(3)
    recorded = attempt.lease()["activity_at"]
    attempt.renewals(3)
    assert attempt.lease()["activity_at"] == recorded
    text = launch.probe(attempt.run_dir)
    assert text.startswith(f"process {agent} is stopped (T), no CPU used in 0.2 s")
    assert "0 children" in text


def test_a_probe_distinguishes_an_unknown_agent_from_an_ended_agent(attempt: Attempt) -> None:
    assert launch.probe(attempt.run_dir) == "no agent process was started"
    attempt.start_shell("true")
    assert attempt.end() == 0
    assert launch.probe(attempt.run_dir) == f"process {attempt.agent()} has ended"


def test_a_shim_needs_little_memory(attempt: Attempt) -> None:
    attempt.start_sleeping()
    attempt.renewals(2)
    status = Path(f"/proc/{attempt.identity()['pid']}/status").read_text()
    # The interpreter with sqlite3 takes 11 MB of it.
    assert int(status.split("VmRSS:")[1].split()[0]) <= 16 * 1024


def _start_in_sandbox(attempt: Attempt, script: str, interruptions: int = 0) -> None:
    spec = SandboxSpec(workspace=attempt.workspace, network="full")
    confined = Bubblewrap().confine(("/bin/sh", "-c", script), spec)
    attempt.start(
        *confined.argv,
        env=confined.env,
        files={str(number): str(path) for number, path in confined.files.items()},
        sandbox_depth=confined.sandbox_depth,
        interruptions=interruptions,
    )


@pytest.mark.parametrize("process", ["outside", "inside"])
@pytest.mark.parametrize("interruptions", [MOST_INTERRUPTIONS - 1, MOST_INTERRUPTIONS])
def test_a_killed_sandbox_is_an_interruption_and_a_failure_only_if_it_is_killed_repeatedly(
    attempt: Attempt, process: str, interruptions: int
) -> None:
    _start_in_sandbox(attempt, "echo ready; sleep 600", interruptions)
    attempt.wait_for_output("ready")
    outer = attempt.agent()
    os.kill(outer if process == "outside" else children(outer)[0], signal.SIGKILL)
    if interruptions < MOST_INTERRUPTIONS:
        assert attempt.end() == LOST
        assert attempt.result() is None
    else:
        assert attempt.finished()["exit_code"] == 137


@pytest.mark.parametrize(
    ("script", "code"),
    [("kill -9 $$", 137), ("exit 137", 137), ("kill -TERM $$", 143), ("sleep 9 & kill -9 $$", 137)],
)
def test_an_agent_that_ends_itself_by_a_signal_in_a_sandbox_has_a_result(
    attempt: Attempt, script: str, code: int
) -> None:
    _start_in_sandbox(attempt, script)
    assert attempt.finished()["exit_code"] == code
