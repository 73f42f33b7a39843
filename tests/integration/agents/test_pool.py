"""Workspaces that are ready before they are needed are as good as ones made on demand."""

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

    def inside(self, place: Path, line: str) -> str:
        given = SandboxSpec(workspace=place / "workspace", home=place / "home")
        done = run(self.sandbox.confine(("sh", "-c", line), given))
        assert done.returncode == 0, done.stderr
        return done.stdout.decode().strip()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[PoolBench]:
    made = PoolBench(tmp_path)
    yield made
    made.pool.close()


def _take(bench: PoolBench, name: str, start: str, branch: str = "agent/a/s-1") -> Path:
    place = bench.home / "runs" / name
    assert bench.pool.take(place / "workspace", place / "home", start, branch)
    return place


def test_an_agent_works_and_commits_in_a_workspace_of_the_pool(bench: PoolBench) -> None:
    main = bench.mirror.fetch_main()
    bench.pool.open()
    bench.filled(main)
    place = _take(bench, "1", main)
    line = "git status -sb; echo x > new; git add new; git commit -qm mine; git log --format=%an,%s"
    assert bench.inside(place, line) == "## agent/a/s-1\nAda,mine\nCaloron,first"
    assert bench.inside(place, "touch ~/mine && ls ~") == "mine"
    bench.filled(main)


def test_a_workspace_is_moved_to_another_commit_when_that_is_wanted(bench: PoolBench) -> None:
    first = bench.mirror.fetch_main()
    second = bench.commit({"second": "second"})
    bench.pool.open()
    bench.filled(second)
    place = _take(bench, "1", first, "agent/b/s-1")
    assert bench.inside(place, "git status -sb; ls; echo y > first; git commit -qam y") == (
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


def test_the_pool_asks_the_forge_only_if_main_was_seen_elsewhere(
    bench: PoolBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = bench.mirror.fetch_main()
    asked: list[str] = []
    fetch = bench.mirror.fetch_main

    def asking() -> str:
        asked.append("")
        return fetch()

    monkeypatch.setattr(bench.mirror, "fetch_main", asking)
    bench.pool.refresh(main)
    bench.pool.open()
    bench.filled(main)
    assert asked == []
    newer = bench.commit({"newer": "newer"})
    bench.pool.refresh(newer)
    bench.filled(newer)
    assert asked


def test_an_empty_pool_says_so_and_a_closed_one_leaves_nothing(bench: PoolBench) -> None:
    place = bench.home / "run"
    assert not bench.pool.take(place / "workspace", place / "home", "x", "b")
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


def test_agents_of_a_root_who_hides_everything_still_read_the_mirror(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        made = PoolBench(tmp_path)
        made.pool.open()
        made.filled(made.mirror.fetch_main())
        place = _take(made, "1", made.mirror.fetch_main())
        assert made.inside(place, "git log --format=%s; cat first") == "first\nfirst"
        made.pool.close()
    finally:
        os.umask(before)


@pytest.fixture
def slow_rm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `rm` that takes as long as that of a large node_modules."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "rm").write_text("#!/bin/sh\necho $$ >$0.pid\nexec sleep 600\n")
    (tools / "rm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return tools / "rm"


def test_a_stop_deletes_nothing_and_the_next_start_does(
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
    (left,) = (bench.home / "trash").iterdir()
    assert len(list(left.iterdir())) == 2
    slow_rm.unlink()
    again = Trash(bench.home / "trash")
    again.open()
    wait_for(lambda: not list((bench.home / "trash").iterdir()), "the next start deletes it")
    again.close()


def test_a_pool_that_is_filled_when_a_stop_comes_makes_no_more(bench: PoolBench) -> None:
    stopping = threading.Event()
    made: list[Path] = []

    class Setup:
        def refuse_large(self, commit: str) -> None: ...

        def install_setup(self, workspace: Path, commit: str) -> str:
            made.append(workspace)
            stopping.set()
            return ""

    pool = Pool(
        bench.mirror, bench.sandbox, bench.home / "pool", 5, ADA, setup=Setup(), stopping=stopping
    )
    pool.open()
    wait_for(lambda: bool(made), "one is being made")
    pool.close()
    assert len(made) == 1
    assert pool._ready == []


def test_what_its_agent_made_read_only_is_deleted_in_the_background(tmp_path: Path) -> None:
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
