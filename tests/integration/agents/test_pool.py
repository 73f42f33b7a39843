"""The pool prepares workspaces that equal the workspaces created on demand."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from caloron.agents.supervise.supervise import run
from caloron.agents.workspace.pool import Pool
from caloron.agents.workspace.workspaces import Trash
from caloron.ports import SandboxSpec
from tests.support.wait import wait_for
from tests.support.workspaces import Bench

ADA = ("Ada", "ada@example.org")


class PoolBench(Bench):
    def __init__(self, home: Path) -> None:
        super().__init__(home, {"first": "first"})
        self.pool = Pool(self.mirror, self.sandbox, home / "pool", 2, ADA)

    def filled(self, commit: str) -> None:
        def ready() -> bool:
            return [each.commit for each in self.pool._ready] == [commit, commit]

        wait_for(ready, f"two workspaces at {commit} are ready")

    def inside(self, run_dir: Path, line: str) -> str:
        spec = SandboxSpec(workspace=run_dir / "workspace", home=run_dir / "home")
        done = run(self.sandbox.confine(("sh", "-c", line), spec))
        assert done.returncode == 0, done.stderr
        return done.stdout.decode().strip()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[PoolBench]:
    pool_bench = PoolBench(tmp_path)
    yield pool_bench
    pool_bench.pool.close()


def _take(bench: PoolBench, name: str, start: str, branch: str = "agent/a/s-1") -> Path:
    run_dir = bench.home / "runs" / name
    assert bench.pool.take(run_dir / "workspace", run_dir / "home", start, branch)
    return run_dir


def test_an_agent_works_and_commits_in_a_workspace_of_the_pool(bench: PoolBench) -> None:
    main = bench.mirror.fetch_main()
    bench.pool.open()
    bench.filled(main)
    run_dir = _take(bench, "1", main)
    line = "git status -sb; echo x > new; git add new; git commit -qm mine; git log --format=%an,%s"
    assert bench.inside(run_dir, line) == "## agent/a/s-1\nAda,mine\nCaloron,first"
    assert bench.inside(run_dir, "touch ~/mine && ls ~") == "mine"
    bench.filled(main)


def test_a_workspace_is_moved_to_another_requested_commit(bench: PoolBench) -> None:
    first = bench.mirror.fetch_main()
    second = bench.commit({"second": "second"})
    bench.pool.open()
    bench.filled(second)
    run_dir = _take(bench, "1", first, "agent/b/s-1")
    assert bench.inside(run_dir, "git status -sb; ls; echo y > first; git commit -qam y") == (
        "## agent/b/s-1\nfirst"
    )
    detached = _take(bench, "2", second, "")
    assert bench.inside(detached, "git rev-parse HEAD; ls") == f"{second}\nfirst\nsecond"


def test_the_pool_follows_main(bench: PoolBench) -> None:
    bench.pool.open()
    bench.filled(bench.mirror.fetch_main())
    newer = bench.commit({"newer": "newer"})
    bench.pool.refresh()
    bench.filled(newer)


def test_the_pool_fetches_only_after_main_moved(
    bench: PoolBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = bench.mirror.fetch_main()
    fetches: list[str] = []
    fetch = bench.mirror.fetch_main

    def counting_fetch() -> str:
        fetches.append("")
        return fetch()

    monkeypatch.setattr(bench.mirror, "fetch_main", counting_fetch)
    bench.pool.refresh(main)
    bench.pool.open()
    bench.filled(main)
    assert fetches == []
    newer = bench.commit({"newer": "newer"})
    bench.pool.refresh(newer)
    bench.filled(newer)
    assert fetches


def test_an_empty_pool_returns_false_and_a_closed_pool_leaves_no_files(bench: PoolBench) -> None:
    run_dir = bench.home / "run"
    assert not bench.pool.take(run_dir / "workspace", run_dir / "home", "x", "b")
    bench.pool.open()
    bench.filled(bench.mirror.fetch_main())
    bench.pool.close()
    assert not (bench.home / "pool").exists()


def test_two_workspaces_as_root_have_two_owners(bench: PoolBench) -> None:
    main = bench.mirror.fetch_main()
    bench.pool.open()
    bench.filled(main)
    owners = {(_take(bench, name, main) / "workspace").stat().st_uid for name in "ab"}
    assert owners == {os.getuid()} if os.getuid() else len(owners - {0}) == 2


def test_agents_read_the_mirror_despite_a_strict_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        pool_bench = PoolBench(tmp_path)
        pool_bench.pool.open()
        pool_bench.filled(pool_bench.mirror.fetch_main())
        run_dir = _take(pool_bench, "1", pool_bench.mirror.fetch_main())
        assert pool_bench.inside(run_dir, "git log --format=%s; cat first") == "first\nfirst"
        pool_bench.pool.close()
    finally:
        os.umask(before)


@pytest.fixture
def slow_rm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `rm` as slow as that of a large node_modules."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "rm").write_text("#!/bin/sh\necho $$ >$0.pid\nexec sleep 600\n")
    (tools / "rm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return tools / "rm"


def test_the_next_start_deletes_the_workspaces_of_a_stopped_pool(
    bench: PoolBench, slow_rm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trash = Trash(bench.home / "trash")
    pool = Pool(bench.mirror, bench.sandbox, bench.home / "pool", 2, ADA, discard=trash.put)
    pool.open()
    wait_for(lambda: len(pool._ready) == 2, "the pool is filled")
    pool.close()
    assert not (bench.home / "pool").exists()
    trash.open()
    wait_for(slow_rm.with_name("rm.pid").exists, "the deletion is under way")
    # This would take ten minutes.
    trash.close()
    (remaining,) = (bench.home / "trash").iterdir()
    assert len(list(remaining.iterdir())) == 2
    slow_rm.unlink()
    again = Trash(bench.home / "trash")
    again.open()
    wait_for(lambda: not list((bench.home / "trash").iterdir()), "the next start deletes it")
    again.close()


def test_a_stop_ends_the_filling_of_the_pool(bench: PoolBench) -> None:
    stopping = threading.Event()
    created: list[Path] = []

    class Setup:
        def refuse_large(self, commit: str) -> None: ...

        def install_setup(self, workspace: Path, commit: str) -> str:
            created.append(workspace)
            stopping.set()
            return ""

    pool = Pool(
        bench.mirror, bench.sandbox, bench.home / "pool", 5, ADA, setup=Setup(), stopping=stopping
    )
    pool.open()
    wait_for(lambda: bool(created), "one is being made")
    pool.close()
    assert len(created) == 1
    assert pool._ready == []


def test_a_read_only_workspace_is_deleted_in_the_background(tmp_path: Path) -> None:
    trash = Trash(tmp_path / "trash")
    trash.open()
    stubborn = tmp_path / "workspace"
    (stubborn / "deep").mkdir(parents=True)
    (stubborn / "deep" / "file").touch()
    (stubborn / "deep").chmod(0o500)
    trash.put(stubborn)
    trash.put(tmp_path / "never there")
    assert not stubborn.exists()
    wait_for(lambda: not list((tmp_path / "trash").iterdir()), "it is deleted")
    trash.close()
