"""Setup runs once, and what it made works in every workspace: real tools in the real sandbox."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from caloron.agents.sandbox.bubblewrap import NoSandbox
from caloron.agents.supervise.processes import family
from caloron.agents.workspace import setup_cache as seeds_module
from caloron.agents.workspace.project_detection import ProjectCommands
from caloron.agents.workspace.setup_cache import SetupCache, SetupCancelled, SetupFailed
from caloron.ports import Caps
from tests.integration.agents.setup_bench import Place
from tests.support.wait import wait_for


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def line(setup: str) -> ProjectCommands:
    return ProjectCommands(setup=setup, lock_files=("lock",), products=("made", "deep/made"))


#: What it made says which run made it.
COUNTED = line("mkdir made && date +%N >made/when && ln -s when made/link")


def made(workspace: Path) -> str:
    return (workspace / "made" / "when").read_text()


def test_setup_runs_once_and_the_second_workspace_gets_a_copy(place: Place) -> None:
    first, second = place.workspace("1", {"lock": ""}), place.workspace("2", {"lock": ""})
    assert place.install(first, COUNTED) is True
    assert place.install(second, COUNTED) is False
    assert made(first) == made(second)
    assert (second / "made" / "link").readlink() == Path("when")
    assert not os.path.samestat((first / "made/when").stat(), (second / "made/when").stat())
    assert place.left() == []


def test_another_lock_file_line_or_environment_runs_setup_again(place: Place) -> None:
    others = {
        "lock": (COUNTED, "other"),
        "line": (line(COUNTED.setup + " && true"), "same"),
        "env": (ProjectCommands(setup=COUNTED.setup, products=("made",), env={"A": "1"}), "same"),
    }
    assert place.install(place.workspace("1", {}), COUNTED) is True
    for name, (commands, lock) in others.items():
        assert place.install(place.workspace(name, {}), commands, lock) is True, name


def test_another_version_of_a_tool_runs_setup_again(place: Place, monkeypatch: Any) -> None:
    tool = place.folder / "bin" / "node"
    tool.parent.mkdir()
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    commands = line(f": node; {COUNTED.setup}")
    ran = []
    for number, version in enumerate(("20", "20", "22")):
        tool.write_text(f"#!/bin/sh\necho v{version}\n")
        tool.chmod(0o755)
        seeds = place.new_seeds(read_only=(tool.parent,))
        workspace = place.workspace(str(number), {})
        ran.append(place.install(workspace, commands, seeds=seeds))
    assert ran == [True, False, True]


def test_what_an_agents_branch_made_is_not_for_others_but_main_is_for_all(place: Place) -> None:
    def install(name: str, lock: str, scope: str) -> bool:
        return place.install(place.workspace(name, {}), COUNTED, lock, scope=scope)

    assert install("1", "branch", "task-a") is True
    assert install("2", "branch", "task-a") is False
    assert install("3", "branch", "task-b") is True
    assert install("4", "branch", "") is True
    assert install("5", "main", "") is True
    assert install("6", "main", "task-a") is False


def test_nothing_that_setup_made_looks_like_work(place: Place) -> None:
    made = "mkdir -p .venv src/x.egg-info 'a [b]/.venv' && touch .venv/a src/x.egg-info/b"
    files = {"src/x.py": "", ".gitignore": "*.o\n", "a [b]/x.py": ""}
    for name, ran in (("1", True), ("2", False)):
        workspace = place.workspace(name, files)
        assert place.install(workspace, line(made)) is ran
        assert (workspace / "src/x.egg-info/b").exists()
        assert (workspace / "a [b]/.venv").is_dir()
        assert place.inside(workspace, COUNTED, "touch '.venv/c' 'a [b]/.venv/c'") == ""
        assert place.inside(workspace, COUNTED, "git status --porcelain") == ""


def test_what_may_be_made_of_any_file_is_not_for_other_commits(place: Place) -> None:
    commands = line("mkdir -p node_modules dist 'we!rd #1' && cp source dist && touch 'we!rd #1/a'")
    for name in "12":
        workspace = place.workspace(name, {"source": name})
        assert place.install(workspace, commands) is True
        assert (workspace / "dist/source").read_text() == name
        assert place.inside(workspace, commands, "git status --porcelain") == ""
    assert place.whole() == 0
    assert "also made" in place.folder.joinpath("1", "setup.log").read_text()


def test_what_is_tracked_is_not_planted_over(place: Place) -> None:
    place.install(place.workspace("1", {}), COUNTED)
    second = place.workspace("2", {"made/when": "tracked"})
    assert place.install(second, COUNTED) is False
    assert made(second) == "tracked"


def test_a_link_in_the_repository_leads_no_copy_outside(place: Place) -> None:
    commands = line("mkdir -p deep/made && touch deep/made/x")
    place.install(place.workspace("1", {"deep/a": ""}), commands)
    outside = place.folder / "outside"
    outside.mkdir()
    second = place.workspace("2", {})
    (second / "deep").symlink_to(outside)
    assert place.install(second, commands) is False
    assert list(outside.iterdir()) == []


def test_a_link_that_setup_left_is_not_followed(place: Place) -> None:
    secret = place.folder / "secret"
    secret.write_text("top secret")
    commands = line(f"ln -s {place.folder} made && mkdir .venv && ln -s {secret} .venv/stolen")
    for name, ran in (("1", True), ("2", False)):
        workspace = place.workspace(name, {})
        assert place.install(workspace, commands) is ran
        assert (workspace / ".venv/stolen").is_symlink()
        assert (workspace / "made").is_symlink()


@pytest.mark.parametrize(
    "trap", ["ln -sf {outside} .git/info/exclude", "mkfifo .git/info/exclude", "rm -r .git/info"]
)
def test_a_trap_that_setup_left_in_git_harms_nobody_outside(place: Place, trap: str) -> None:
    outside = place.folder / "outside"
    outside.write_text("untouched")
    setup = f"rm -f .git/info/exclude; {trap.format(outside=outside)}; touch made"
    workspace = place.workspace("1", {})
    place.install(workspace, line(setup))
    assert outside.read_text() == "untouched"
    assert place.inside(workspace, COUNTED, "git status --porcelain") == ""


def test_a_failing_setup_says_why_and_leaves_nothing(place: Place) -> None:
    workspace = place.workspace("1", {})
    commands = line("echo begun; touch half; echo 'no such package: leftpad' >&2; exit 3")
    with pytest.raises(SetupFailed, match="no such package: leftpad") as failed:
        place.install(workspace, commands)
    assert failed.value.log.read_text() == "begun\nno such package: leftpad\n"
    assert str(failed.value.log) in failed.value.hint
    assert place.whole() == 0
    assert place.left() == []
    with pytest.raises(SetupFailed):
        place.install(place.workspace("2", {}), commands)


def test_the_time_limit_ends_every_process(place: Place) -> None:
    workspace = place.workspace("1", {})
    script = "(setsid sh -c 'trap \"\" TERM; while :; do sleep 1; touch alive; done' &) ; sleep 999"
    with pytest.raises(SetupFailed, match="did not end within 2 s"):
        place.install(workspace, line(script), seeds=place.new_seeds(timeout_s=2))
    ours = [pid for pid in family(os.getpid()) if "alive" in _command_line(pid)]
    assert ours == []
    assert place.whole() == 0


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def test_a_setup_that_fills_the_disk_is_ended(place: Place) -> None:
    script = "i=0; while :; do i=$((i+1)); head -c 4000000 /dev/zero >f$i; sleep 0.05; done"
    small = place.new_seeds(caps=Caps(disk_mb=20))
    with pytest.raises(SetupFailed, match="MB on disk, of 20 allowed"):
        place.install(place.workspace("1", {}), line(script), seeds=small)


def test_a_flood_of_output_is_cut_and_its_end_is_kept(place: Place) -> None:
    workspace = place.workspace("1", {})
    with pytest.raises(SetupFailed, match="the last word"):
        place.install(workspace, line("yes | head -c 40000000; echo the last word; exit 1"))
    size = workspace.with_name("setup.log").stat().st_size
    assert (16 << 20) <= size < (17 << 20)


def test_two_at_once_run_setup_once(place: Place) -> None:
    commands = line(f"sleep 1; {COUNTED.setup}")
    workspaces = [place.workspace(str(number), {}) for number in range(3)]
    ran: list[bool] = []

    def install(workspace: Path, seeds: SetupCache) -> None:
        ran.append(place.install(workspace, commands, seeds=seeds))

    threads = [
        threading.Thread(target=install, args=(workspace, place.new_seeds()))
        for workspace in workspaces
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ran) == [False, False, True]
    assert len({made(workspace) for workspace in workspaces}) == 1


_PLANT = """
import sys
from pathlib import Path
from tests.integration.agents.test_setup_cache import Place, line
place = Place(Path(sys.argv[1]))
place.install(Path(sys.argv[2]), line(sys.argv[3]))
"""


def _in_another_process(
    place: Place, workspace: Path, commands: ProjectCommands
) -> subprocess.Popen[bytes]:
    argv = (sys.executable, "-c", _PLANT, str(place.folder), str(workspace), commands.setup)
    root = Path(__file__).parents[3]
    env = os.environ | {"PYTHONPATH": os.pathsep.join((str(root), *sys.path))}
    return subprocess.Popen(argv, env=env, cwd=root)


def test_killed_in_the_middle_of_setup_nothing_half_made_is_used(place: Place) -> None:
    first, second = place.workspace("1", {}), place.workspace("2", {})
    commands = line("mkdir made; touch made/half; [ -e go ] || sleep 600; touch made/whole")
    process = _in_another_process(place, first, commands)
    wait_for((first / "made/half").exists, "setup has begun")
    process.send_signal(signal.SIGKILL)
    process.wait()
    (second / "go").touch()
    assert place.install(second, commands) is True
    assert (second / "made/whole").exists()
    assert place.whole() == 1
    assert place.left() == []


def test_killed_while_a_seed_is_copied_it_is_made_again(place: Place) -> None:
    first, second = place.workspace("1", {}), place.workspace("2", {})
    commands = line("mkdir made && cd made && seq 30000 | xargs touch && touch whole")
    process = _in_another_process(place, first, commands)
    seeds = place.folder / "seeds"
    wait_for(lambda: list(seeds.glob(".new-*/files/made")), "the copy has begun")
    process.send_signal(signal.SIGKILL)
    process.wait()
    place.install(second, commands)
    assert sum(1 for _ in (second / "made").iterdir()) == 30_001
    assert place.left() == []


def test_only_the_seeds_that_were_used_last_are_kept(place: Place) -> None:
    for number in range(9):
        place.install(place.workspace(str(number), {}), COUNTED, f"lock {number}")
        if number == 7:
            assert place.install(place.workspace("again", {}), COUNTED, "lock 0") is False
    assert place.whole() == 8
    assert place.install(place.workspace("first", {}), COUNTED, "lock 0") is False
    assert place.install(place.workspace("second", {}), COUNTED, "lock 1") is True
    assert len(list((place.folder / "seeds").glob("*.lock"))) == 8


def test_without_a_sandbox_or_lock_files_every_workspace_runs_setup(tmp_path: Path) -> None:
    place = Place(tmp_path, NoSandbox())
    first, second = place.workspace("1", {}), place.workspace("2", {})
    assert place.install(first, COUNTED) is True
    assert place.install(second, COUNTED) is True
    confined = Place(tmp_path / "confined")
    assert confined.install(confined.workspace("1", {}), COUNTED, lock="") is True
    assert confined.install(confined.workspace("2", {}), COUNTED, lock="") is True


def test_no_setup_is_nothing_to_do(place: Place) -> None:
    assert place.install(place.workspace("1", {}), ProjectCommands()) is False


def test_a_secret_of_the_environment_is_not_in_the_log(place: Place) -> None:
    seeds = place.new_seeds(env={"INDEX_TOKEN": "s3cr3t-0123456789abcdef"})
    workspace = place.workspace("1", {})
    place.install(workspace, line('echo "with $INDEX_TOKEN"'), seeds=seeds)
    log = workspace.with_name("setup.log").read_text()
    assert "with" in log
    assert "s3cr3t" not in log


def test_a_copy_that_is_under_way_ends_with_a_stop(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.install(place.workspace("1", {}), COUNTED)
    slow = place.folder / "slow"
    slow.mkdir()
    # As slow as a large node_modules.
    (slow / "cp").write_text("#!/bin/sh\necho $$ >$0.pid\nexec sleep 600\n")
    (slow / "cp").chmod(0o755)
    monkeypatch.setattr(seeds_module, "_COPY_ENV", {"PATH": f"{slow}:{os.defpath}"})
    pid = slow / "cp.pid"

    def stop() -> None:
        wait_for(lambda: pid.exists() and bool(pid.read_text()), "the copy is under way")
        place.seeds.cancelled.set()

    threading.Thread(target=stop).start()
    with pytest.raises(SetupCancelled):
        place.install(place.workspace("2", {}), COUNTED)
    assert not family(int(pid.read_text()))


def test_a_setup_that_is_stopped_is_no_setup_that_failed(place: Place) -> None:
    workspace = place.workspace("1", {})
    threading.Timer(1.0, place.seeds.cancelled.set).start()
    with pytest.raises(SetupCancelled):
        place.install(workspace, line("mkdir made; sleep 600"))
    assert not issubclass(SetupCancelled, SetupFailed)
