"""Setup runs once, and its products work in every workspace: real tools in the real sandbox."""

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
from caloron.agents.workspace.setup_cache import SetupCache, SetupFailed
from caloron.errors import SetupCancelled
from caloron.ports import Caps
from tests.integration.agents.setup_bench import SetupBench
from tests.support.wait import paths, wait_for


@pytest.fixture
def bench(tmp_path: Path) -> SetupBench:
    return SetupBench(tmp_path)


def commands_of(setup: str) -> ProjectCommands:
    return ProjectCommands(setup=setup, lock_files=("lock",), products=("made", "deep/made"))


#: A setup whose product records the time of its run.
COUNTED = commands_of("mkdir made && date +%N >made/when && ln -s when made/link")


def run_of(workspace: Path) -> str:
    return (workspace / "made" / "when").read_text()


def test_setup_runs_once_and_the_second_workspace_gets_a_copy(bench: SetupBench) -> None:
    first, second = bench.workspace("1", {"lock": ""}), bench.workspace("2", {"lock": ""})
    assert bench.install(first, COUNTED) is True
    assert bench.install(second, COUNTED) is False
    assert run_of(first) == run_of(second)
    assert (second / "made" / "link").readlink() == Path("when")
    assert not os.path.samestat((first / "made/when").stat(), (second / "made/when").stat())
    assert bench.leftovers() == []


def test_another_lock_file_line_or_environment_runs_setup_again(bench: SetupBench) -> None:
    others = {
        "lock": (COUNTED, "other"),
        "line": (commands_of(COUNTED.setup + " && true"), "same"),
        "env": (ProjectCommands(setup=COUNTED.setup, products=("made",), env={"A": "1"}), "same"),
    }
    assert bench.install(bench.workspace("1", {}), COUNTED) is True
    for name, (commands, lock) in others.items():
        assert bench.install(bench.workspace(name, {}), commands, lock) is True, name


def test_another_version_of_a_tool_runs_setup_again(bench: SetupBench, monkeypatch: Any) -> None:
    tool = bench.folder / "bin" / "node"
    tool.parent.mkdir()
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    commands = commands_of(f": node; {COUNTED.setup}")
    ran = []
    for number, version in enumerate(("20", "20", "22")):
        tool.write_text(f"#!/bin/sh\necho v{version}\n")
        tool.chmod(0o755)
        seeds = bench.new_seeds(read_only=(tool.parent,))
        workspace = bench.workspace(str(number), {})
        ran.append(bench.install(workspace, commands, seeds=seeds))
    assert ran == [True, False, True]


def test_products_of_main_are_shared_and_products_of_a_branch_are_not(
    bench: SetupBench,
) -> None:
    def install(name: str, lock: str, scope: str) -> bool:
        return bench.install(bench.workspace(name, {}), COUNTED, lock, scope=scope)

    assert install("1", "branch", "task-a") is True
    assert install("2", "branch", "task-a") is False
    assert install("3", "branch", "task-b") is True
    assert install("4", "branch", "") is True
    assert install("5", "main", "") is True
    assert install("6", "main", "task-a") is False


def test_products_of_setup_are_not_work_of_the_agent(bench: SetupBench) -> None:
    products = "mkdir -p .venv src/x.egg-info 'a [b]/.venv' && touch .venv/a src/x.egg-info/b"
    files = {"src/x.py": "", ".gitignore": "*.o\n", "a [b]/x.py": ""}
    for name, ran in (("1", True), ("2", False)):
        workspace = bench.workspace(name, files)
        assert bench.install(workspace, commands_of(products)) is ran
        assert (workspace / "src/x.egg-info/b").exists()
        assert (workspace / "a [b]/.venv").is_dir()
        assert bench.inside(workspace, COUNTED, "touch '.venv/c' 'a [b]/.venv/c'") == ""
        assert bench.inside(workspace, COUNTED, "git status --porcelain") == ""


def test_products_that_depend_on_all_files_are_not_shared_between_commits(
    bench: SetupBench,
) -> None:
    commands = commands_of(
        "mkdir -p node_modules dist 'we!rd #1' && cp source dist && touch 'we!rd #1/a'"
    )
    for name in "12":
        workspace = bench.workspace(name, {"source": name})
        assert bench.install(workspace, commands) is True
        assert (workspace / "dist/source").read_text() == name
        assert bench.inside(workspace, commands, "git status --porcelain") == ""
    assert bench.complete_seeds() == 0
    assert "also made" in bench.folder.joinpath("1", "setup.log").read_text()


def test_tracked_files_are_not_overwritten(bench: SetupBench) -> None:
    bench.install(bench.workspace("1", {}), COUNTED)
    second = bench.workspace("2", {"made/when": "tracked"})
    assert bench.install(second, COUNTED) is False
    assert run_of(second) == "tracked"


def test_a_link_in_the_repository_does_not_redirect_the_copy(bench: SetupBench) -> None:
    commands = commands_of("mkdir -p deep/made && touch deep/made/x")
    bench.install(bench.workspace("1", {"deep/a": ""}), commands)
    outside = bench.folder / "outside"
    outside.mkdir()
    second = bench.workspace("2", {})
    (second / "deep").symlink_to(outside)
    assert bench.install(second, commands) is False
    assert list(outside.iterdir()) == []


def test_a_link_that_setup_left_is_not_followed(bench: SetupBench) -> None:
    secret = bench.folder / "secret"
    secret.write_text("top secret")
    commands = commands_of(
        f"ln -s {bench.folder} made && mkdir .venv && ln -s {secret} .venv/stolen"
    )
    for name, ran in (("1", True), ("2", False)):
        workspace = bench.workspace(name, {})
        assert bench.install(workspace, commands) is ran
        assert (workspace / ".venv/stolen").is_symlink()
        assert (workspace / "made").is_symlink()


@pytest.mark.parametrize(
    "trap", ["ln -sf {outside} .git/info/exclude", "mkfifo .git/info/exclude", "rm -r .git/info"]
)
def test_git_configuration_of_setup_does_not_run_outside(bench: SetupBench, trap: str) -> None:
    outside = bench.folder / "outside"
    outside.write_text("untouched")
    setup = f"rm -f .git/info/exclude; {trap.format(outside=outside)}; touch made"
    workspace = bench.workspace("1", {})
    bench.install(workspace, commands_of(setup))
    assert outside.read_text() == "untouched"
    assert bench.inside(workspace, COUNTED, "git status --porcelain") == ""


def test_a_failed_setup_has_a_reason_and_leaves_no_files(bench: SetupBench) -> None:
    workspace = bench.workspace("1", {})
    commands = commands_of("echo begun; touch half; echo 'no such package: leftpad' >&2; exit 3")
    with pytest.raises(SetupFailed, match="no such package: leftpad") as failed:
        bench.install(workspace, commands)
    assert failed.value.log.read_text() == "begun\nno such package: leftpad\n"
    assert str(failed.value.log) in failed.value.hint
    assert bench.complete_seeds() == 0
    assert bench.leftovers() == []
    with pytest.raises(SetupFailed):
        bench.install(bench.workspace("2", {}), commands)


def test_the_time_limit_ends_every_process(bench: SetupBench) -> None:
    workspace = bench.workspace("1", {})
    script = "(setsid sh -c 'trap \"\" TERM; while :; do sleep 1; touch alive; done' &) ; sleep 999"
    with pytest.raises(SetupFailed, match="did not end within 2 s"):
        bench.install(workspace, commands_of(script), seeds=bench.new_seeds(timeout_s=2))
    ours = [pid for pid in family(os.getpid()) if "alive" in _command_line(pid)]
    assert ours == []
    assert bench.complete_seeds() == 0


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def test_a_setup_over_its_disk_limit_is_ended(bench: SetupBench) -> None:
    script = "i=0; while :; do i=$((i+1)); head -c 4000000 /dev/zero >f$i; sleep 0.05; done"
    small = bench.new_seeds(caps=Caps(disk_mb=20))
    with pytest.raises(SetupFailed, match="MB on disk, of 20 allowed"):
        bench.install(bench.workspace("1", {}), commands_of(script), seeds=small)


def test_a_flood_of_output_is_cut_and_its_end_is_kept(bench: SetupBench) -> None:
    workspace = bench.workspace("1", {})
    with pytest.raises(SetupFailed, match="the last word"):
        bench.install(workspace, commands_of("yes | head -c 40000000; echo the last word; exit 1"))
    size = workspace.with_name("setup.log").stat().st_size
    assert (16 << 20) <= size < (17 << 20)


def test_two_concurrent_installs_run_setup_once(bench: SetupBench) -> None:
    commands = commands_of(f"sleep 1; {COUNTED.setup}")
    workspaces = [bench.workspace(str(number), {}) for number in range(3)]
    ran: list[bool] = []

    def install(workspace: Path, seeds: SetupCache) -> None:
        ran.append(bench.install(workspace, commands, seeds=seeds))

    threads = [
        threading.Thread(target=install, args=(workspace, bench.new_seeds()))
        for workspace in workspaces
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ran) == [False, False, True]
    assert len({run_of(workspace) for workspace in workspaces}) == 1


_PLANT = """
import sys
from pathlib import Path
from tests.integration.agents.test_setup_cache import SetupBench, commands_of
bench = SetupBench(Path(sys.argv[1]))
bench.install(Path(sys.argv[2]), commands_of(sys.argv[3]))
"""


def _in_another_process(
    bench: SetupBench, workspace: Path, commands: ProjectCommands
) -> subprocess.Popen[bytes]:
    argv = (sys.executable, "-c", _PLANT, str(bench.folder), str(workspace), commands.setup)
    root = Path(__file__).parents[3]
    env = os.environ | {"PYTHONPATH": os.pathsep.join((str(root), *sys.path))}
    return subprocess.Popen(argv, env=env, cwd=root)


def test_an_incomplete_seed_of_a_killed_setup_is_not_used(bench: SetupBench) -> None:
    first, second = bench.workspace("1", {}), bench.workspace("2", {})
    commands = commands_of("mkdir made; touch made/half; [ -e go ] || sleep 600; touch made/whole")
    process = _in_another_process(bench, first, commands)
    wait_for((first / "made/half").exists, "setup has begun")
    process.send_signal(signal.SIGKILL)
    process.wait()
    (second / "go").touch()
    assert bench.install(second, commands) is True
    assert (second / "made/whole").exists()
    assert bench.complete_seeds() == 1
    assert bench.leftovers() == []


def test_a_copy_that_was_killed_is_repeated(bench: SetupBench) -> None:
    first, second = bench.workspace("1", {}), bench.workspace("2", {})
    commands = commands_of("mkdir made && cd made && seq 30000 | xargs touch && touch whole")
    process = _in_another_process(bench, first, commands)
    seeds = bench.folder / "seeds"
    wait_for(lambda: paths(seeds, ".new-*/files/made"), "the copy has begun")
    process.send_signal(signal.SIGKILL)
    process.wait()
    bench.install(second, commands)
    assert sum(1 for _ in (second / "made").iterdir()) == 30_001
    assert bench.leftovers() == []


def test_only_the_seeds_that_were_used_last_are_kept(bench: SetupBench) -> None:
    for number in range(9):
        bench.install(bench.workspace(str(number), {}), COUNTED, f"lock {number}")
        if number == 7:
            assert bench.install(bench.workspace("again", {}), COUNTED, "lock 0") is False
    assert bench.complete_seeds() == 8
    assert bench.install(bench.workspace("first", {}), COUNTED, "lock 0") is False
    assert bench.install(bench.workspace("second", {}), COUNTED, "lock 1") is True
    assert len(list((bench.folder / "seeds").glob("*.lock"))) == 8


def test_without_a_sandbox_or_lock_files_every_workspace_runs_setup(tmp_path: Path) -> None:
    bench = SetupBench(tmp_path, NoSandbox())
    first, second = bench.workspace("1", {}), bench.workspace("2", {})
    assert bench.install(first, COUNTED) is True
    assert bench.install(second, COUNTED) is True
    confined = SetupBench(tmp_path / "confined")
    assert confined.install(confined.workspace("1", {}), COUNTED, lock="") is True
    assert confined.install(confined.workspace("2", {}), COUNTED, lock="") is True


def test_a_project_without_setup_needs_no_install(bench: SetupBench) -> None:
    assert bench.install(bench.workspace("1", {}), ProjectCommands()) is False


def test_a_secret_of_the_environment_is_not_in_the_log(bench: SetupBench) -> None:
    seeds = bench.new_seeds(env={"INDEX_TOKEN": "s3cr3t-0123456789abcdef"})
    workspace = bench.workspace("1", {})
    bench.install(workspace, commands_of('echo "with $INDEX_TOKEN"'), seeds=seeds)
    log = workspace.with_name("setup.log").read_text()
    assert "with" in log
    assert "s3cr3t" not in log


def test_a_stop_ends_a_running_copy(bench: SetupBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.install(bench.workspace("1", {}), COUNTED)
    slow = bench.folder / "slow"
    slow.mkdir()
    # This copy is as slow as that of a large node_modules.
    (slow / "cp").write_text("#!/bin/sh\necho $$ >$0.pid\nexec sleep 600\n")
    (slow / "cp").chmod(0o755)
    monkeypatch.setattr(seeds_module, "_COPY_ENV", {"PATH": f"{slow}:{os.defpath}"})
    pid = slow / "cp.pid"

    def stop() -> None:
        wait_for(lambda: pid.exists() and bool(pid.read_text()), "the copy is under way")
        bench.seeds.cancelled.set()

    threading.Thread(target=stop).start()
    with pytest.raises(SetupCancelled):
        bench.install(bench.workspace("2", {}), COUNTED)
    assert not family(int(pid.read_text()))


def test_a_stopped_setup_is_not_a_failed_setup(bench: SetupBench) -> None:
    workspace = bench.workspace("1", {})
    threading.Timer(1.0, bench.seeds.cancelled.set).start()
    with pytest.raises(SetupCancelled):
        bench.install(workspace, commands_of("mkdir made; sleep 600"))
    assert not issubclass(SetupCancelled, SetupFailed)
