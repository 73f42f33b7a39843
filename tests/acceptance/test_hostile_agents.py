"""Agents that do harm get at nothing, end as they must, and the sprint goes on."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from caloron.agents.workspace.workspaces import remove_workspace
from tests.acceptance.checkouts import from_repository
from tests.acceptance.hostile import (
    DAEMON,
    GROUPS,
    TRAP,
    assert_each_ended_as_it_must,
    run_hostile_sprint,
)
from tests.acceptance.unprivileged import UnprivilegedHome, can_run_unprivileged
from tests.integration.agents.test_scope import HOARD, needs_systemd
from tests.support.home import Home, does, task, writes
from tests.support.wait import wait_for

_AS_USER = pytest.param(
    "user",
    marks=pytest.mark.skipif(not can_run_unprivileged(), reason="only root can be another user"),
)


@pytest.fixture(params=["as we are", _AS_USER])
def anyones_home(request: pytest.FixtureRequest) -> Iterator[Home]:
    # Not in pytest's own folder, which no other user can enter.
    root = Path(tempfile.mkdtemp(prefix="caloron-hostile-"))
    root.chmod(0o755)
    home = UnprivilegedHome(root) if request.param == "user" else Home(root)
    try:
        yield home.init()
    finally:
        home.close()
        remove_workspace(root)


@pytest.mark.parametrize("group", GROUPS)
def test_hostile_agents_end_as_expected_and_the_sprint_continues(
    anyones_home: Home, group: str
) -> None:
    habits = GROUPS[group]
    answer = run_hostile_sprint(anyones_home, habits)
    assert answer.code == (10 if any(h.refused for h in habits.values()) else 0), answer
    assert_each_ended_as_it_must(anyones_home, answer, habits)


@needs_systemd
def test_memory_outside_of_any_process_escalates_the_task_and_names_the_limit(home: Home) -> None:
    home.set(memory_mb=160)
    file = home.root / "hoard.py"
    file.write_text(HOARD)
    home.set(read_only=[str(file)])
    home.script(writes("a", run=f"python3 -S -E {file}"), writes("b"))
    answer = home.sprint(task("a"), task("b"))
    assert answer.statuses == {"a": "Escalated", "b": "Done"}, answer
    assert "over 160 MB of memory, of 160 allowed by the kernel" in answer.tasks["a"]["why"]
    assert set(home.files()) == {"b.txt"}


def _shims(home: Home) -> list[int]:
    return home.processes("agents/supervise/shim.py")


@pytest.mark.parametrize("with_shim", [False, True], ids=["engine", "engine and shim"])
def test_daemons_end_after_a_kill_once_the_sprint_is_resumed(home: Home, with_shim: bool) -> None:
    daemon = DAEMON.replace(TRAP, str(home.root / "trapped"))
    waits = f"{daemon}; trap '' TERM; {home.gate('waiting').line}"
    home.script(writes("a", attempt=1, run=waits), writes("a"))
    running = home.start_sprint(task("a"))
    wait_for(lambda: home.printed("daemon") and home.processes("os.setsid()"), "a daemon")
    running.kill()
    shims = _shims(home)
    assert shims
    assert home.processes("os.setsid()")
    for pid in shims if with_shim else ():
        os.kill(pid, signal.SIGKILL)
    if not with_shim:
        # The death of an engine hurts no agent: it goes on to its end.
        home.gate("waiting").open()
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"a\n"}
    assert home.processes() == []
    assert home.attempts("implement") == 1 + with_shim


def test_endless_output_is_bounded_on_disk_and_in_memory(home: Home) -> None:
    home.set(output_cap_mb=4)
    done = home.gate("printed")
    home.script(writes("a", run=f"yes | head -c 200M; echo; {done.line}"), writes("b"))
    running = home.start_sprint(task("a"), task("b"))
    done.wait_for_agent()
    peaks = [_peak_mb(pid) for pid in _shims(home)]
    peaks_of_engine = _peak_mb(running.pid)
    done.open()
    answer = running.wait()
    assert answer.code == 0, answer
    assert answer.statuses == {"a": "Done", "b": "Done"}
    assert max(peaks) < 20
    assert peaks_of_engine < 120
    logs = home.run_files("output.log*")
    assert max(log.stat().st_size for log in logs) < 5 << 20


def _peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


#: As long as a task's prompt may be, in letters of four bytes: more than a command line takes.
_LONG = "\N{OWL}" * 60_000


def test_an_agent_cannot_write_its_input_files_through_proc(anyones_home: Home) -> None:
    """The prompt comes from a file outside, which /proc would open again for writing."""
    tries = "for n in self 1; do echo planted >> /proc/$n/fd/0 && echo $n >> wrote.txt; done"
    doors = "ls -l /proc/[0-9]*/fd 2>/dev/null | sed -n 's/.* -> //p' > doors.txt"
    line = f"cat > asked.txt; {tries}; chmod 777 /proc/self/fd/0; {doors}; echo APPROVED"
    anyones_home.set(framework="command", command=["sh", "-c", line], verify="none")
    answer = anyones_home.sprint(task("a", agent_prompt="Look for doors."))
    assert answer.code == 0, answer
    assert b"Look for doors." in anyones_home.files()["asked.txt"]
    assert "wrote.txt" not in anyones_home.files()
    inside = ("/memfd:", "pipe:", "anon_inode:", "/workspace/", "/proc/", "/dev/")
    targets = anyones_home.files()["doors.txt"].decode().splitlines()
    assert targets
    assert [target for target in targets if not target.startswith(inside)] == []
    prompts = anyones_home.run_files("prompt.txt", task="a")
    assert len(prompts) == 2
    for prompt in prompts:
        assert "planted" not in prompt.read_text()
        assert prompt.stat().st_mode & 0o111 == 0


def test_a_prompt_too_long_for_a_command_line_is_refused_with_a_remedy(home: Home) -> None:
    home.set(framework="command", command=["sh", "-c", "echo APPROVED", "sh", "{prompt}"])
    answer = home.sprint(task("a", agent_prompt=_LONG), task("b"))
    assert answer.code == 10, answer
    assert answer.statuses == {"a": "Escalated", "b": "Done"}
    assert "too long for a command line" in answer.tasks["a"]["why"]
    assert home.attempts("implement", "a") == 0


def test_files_of_setup_are_in_no_commit_even_if_the_agent_commits_them(
    bare_home: Home,
) -> None:
    package = json.dumps({"name": "x", "version": "1.0.0", "scripts": {"test": "true"}})
    home = from_repository(bare_home, {"package.json": package, ".gitignore": "other\n"})
    home.set(setup="mkdir -p node_modules/m; echo x > node_modules/m/index.js", verify="true")
    commit = ": > .git/info/exclude; git add -f .; git commit -q -m all; echo y >> a.txt"
    home.script(
        writes(
            "a", run=f"ls node_modules; mkdir -p node_modules/n; echo > node_modules/n/f; {commit}"
        )
    )
    answer = home.sprint(task("a"))
    assert answer.code == 0, answer
    assert home.files().keys() == {"package.json", ".gitignore", "a.txt"}
    every = home.git("log", "--all", "--format=", "--name-only").decode().split()
    assert not [name for name in every if name.startswith(("node_modules", ".caloron"))]


def test_a_conflict_in_a_file_with_an_undecodable_name_is_resolved(
    home: Home,
) -> None:
    name = "\"$(printf 'bad\\377')\""
    together = home.gate("together")
    home.script(
        *(does("implement", t, run=f"{together.line}; echo {t} > {name}") for t in ("a", "b")),
        does("resolve", run=f"echo both > {name}"),
    )
    running = home.start_sprint(task("a"), task("b"))
    together.wait_for_agent(2)
    together.open()
    answer = running.wait()
    assert answer.code == 0, answer
    assert home.git("cat-file", "blob", os.fsdecode(b"main:bad\xff")) == b"both\n"


def test_changes_of_an_agent_to_the_files_of_its_prompt_have_no_effect(home: Home) -> None:
    line = (
        "cat {prompt_file} > seen; rm -f {prompt_file}; ln -s /etc/passwd {prompt_file};"
        " rm -rf ~/.[a-z]* ~/*; ln -s / ~/report.json; echo APPROVED"
    )
    home.set(framework="command", command=["sh", "-c", line])
    answer = home.sprint(task("a"), task("b", "a"))
    assert answer.code == 0, answer
    assert b"do b" in home.files()["seen"]
    assert Path("/etc/passwd").read_text().startswith("root:")


#: Brings programs of the author's own into the virtual environment that setup makes.
_WHEEL_OF_PROGRAMS = """
import zipfile
approves = b'#!/bin/sh\\necho reviewed by the author itself\\necho APPROVED\\n'
with zipfile.ZipFile('helper-1-py3-none-any.whl', 'w') as wheel:
    info = 'helper-1.dist-info/'
    wheel.writestr(info + 'METADATA', 'Metadata-Version: 2.1\\nName: helper\\nVersion: 1\\n')
    wheel.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\\nTag: py3-none-any\\n')
    wheel.writestr(info + 'RECORD', '')
    for name in ('bash', 'sh', 'cat'):
        program = zipfile.ZipInfo('helper-1.data/scripts/' + name)
        program.external_attr = 0o100755 << 16
        wheel.writestr(program, approves)
"""


def _author_with_programs(home: Home, review: str) -> list[str]:
    """An agent whose change installs programs with the names of the system's."""
    (home.root / "wheel.py").write_text(_WHEEL_OF_PROGRAMS)
    agent = home.root / "agent.sh"
    agent.write_text(
        'case "$CALORON_ROLE" in\n'
        f"implement) python3 {home.root}/wheel.py; echo backdoor > a.txt\n"
        "  printf -- '--no-index\\n./helper-1-py3-none-any.whl\\n' > requirements.txt ;;\n"
        f"review) {review} ;;\n"
        "esac\n"
    )
    home.set(read_only=[str(agent), str(home.root / "wheel.py")])
    return ["bash", str(agent)]


@pytest.mark.parametrize(
    "review",
    ["echo 'CHANGES_NEEDED: it has a backdoor'", "echo 'CHANGES_NEEDED: it is bad' | cat"],
    ids=["its shell", "its tools"],
)
def test_programs_of_the_author_cannot_replace_the_verdict_of_the_reviewer(
    home: Home, review: str
) -> None:
    """The change installs a `bash`, a `sh` and a `cat` that approve everything."""
    home.set(framework="command", command=_author_with_programs(home, review))
    home.set(verify="none")
    answer = home.sprint(task("a"))
    assert answer.code == 10, answer
    assert answer.statuses == {"a": "Escalated"}
    assert home.printed("CHANGES_NEEDED: it ")
    assert home.files() == {}


def test_programs_of_the_author_cannot_replace_the_verification(home: Home) -> None:
    """The shell that runs the verification is not one that the change installs."""
    home.set(framework="command", command=_author_with_programs(home, "echo APPROVED"))
    home.set(verify="echo red; exit 1")
    answer = home.sprint(task("a"))
    assert answer.code == 10, answer
    assert home.files() == {}


def test_setup_of_a_change_cannot_make_the_reviewers_git_run_its_programs(home: Home) -> None:
    """Setup runs programs of the author in the same workspace that the reviewer gets."""
    evil = (
        "printf '#!/bin/sh\\necho evil >> /tmp/ran\\n' > .git/evil; chmod +x .git/evil;"
        " git config core.fsmonitor /workspace/.git/evil; echo set up"
    )
    agent = home.root / "agent.sh"
    agent.write_text(
        'case "$CALORON_ROLE" in\n'
        f"implement) cat > setup.sh <<'END'\n{evil}\nEND\n;;\n"
        "review) git status --short; [ -e /tmp/ran ] && echo 'ran: evil'; echo APPROVED ;;\n"
        "esac\n"
    )
    home.set(read_only=[str(agent)], framework="command", command=["bash", str(agent)])
    home.set(setup="[ ! -e setup.sh ] || sh setup.sh", verify="none")
    answer = home.sprint(task("a"))
    assert answer.code == 0, answer
    logs = [log.read_text() for log in home.run_files("setup.log", "review", "a")]
    assert any("set up" in text for text in logs)
    assert home.printed("ran: ") == []


def test_a_branch_that_is_too_large_is_refused_before_it_is_checked_out(home: Home) -> None:
    """A few objects that stand for many files: on a branch, no agent's limit holds for them."""
    home.set(disk_mb=48)
    reading = home.gate("reading")
    home.script(writes("a"), does("review", "a", round=1, run=reading.line, output="APPROVED"))
    running = home.start_sprint(task("a"))
    reading.wait_for_agent()
    push = (
        "blob=$(head -c 2M /dev/zero | git hash-object -w --stdin);"
        " tree=$(for n in $(seq 60); do printf '100644 blob %s\\t%s\\n' $blob $n; done"
        " | git mktree);"
        " who='-c user.name=x -c user.email=x@x.invalid'; branch=refs/heads/agent/a/demo-1;"
        " git update-ref $branch $(git $who commit-tree -p $branch -m more $tree)"
    )
    home.run_outside("sh", "-ec", push, cwd=home.project() / "forge.git")
    reading.open()
    answer = running.wait()
    assert answer.statuses == {"a": "Escalated"}, answer
    assert "take more than 48 MB on disk" in answer.tasks["a"]["why"]
    assert set(home.files()) == set()
