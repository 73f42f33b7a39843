"""The number of requests that polls of a real Gitea and a finished task cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.forge.worlds import Watch, World, gitea_world
from tests.support.fault_proxy import FaultProxy
from tests.support.gitea import Repository, Server
from tests.support.home import Home, task, writes
from tests.support.live import TOKEN, gitea_options

#: Requests of the API for a task that is approved at once, with what a sprint needs to begin; two
#: each describe its pull request when it is open, verified and reviewed. Those of git, two or three
#: for each fetch and four for each push, depend a little on timing.
PER_TASK, GIT_PER_TASK = 46, 22


@pytest.fixture
def world(gitea: Server, tmp_path: Path) -> Iterator[World]:
    with gitea_world(gitea, tmp_path) as made:
        yield made


@pytest.fixture
def proxy(world: World) -> FaultProxy:
    assert world.proxy
    return world.proxy


@pytest.fixture
def repository(world: World) -> Repository:
    assert world.repository
    return world.repository


def test_an_idle_poll_of_a_hundred_tasks_is_three_requests_at_most(
    world: World, proxy: FaultProxy
) -> None:
    watch = Watch(world.forge)
    for n in range(100):
        world.forge.create_issue(f"task {n}", "", ("caloron:task",))
    for n in range(3):
        world.clone.open_pull(world.forge, f"feature-{n}")
    assert len(watch.poll_changes()) == 103
    until_idle(watch, proxy)
    # It stays so: the cursor moved past everything that was reported.
    with proxy.counting() as heard:
        for _ in range(5):
            assert watch.poll_changes() == {}
    assert len(heard) <= 15, [str(h) for h in heard]


def until_idle(watch: Watch, proxy: FaultProxy) -> None:
    """Poll until changes of the last seconds are not read again, as the forge's clock requires."""
    for _ in range(200):
        with proxy.counting() as heard:
            watch.poll_changes()
        if len(heard) <= 3:
            return
        time.sleep(0.1)
    raise AssertionError([str(h) for h in heard])


def test_a_poll_costs_two_requests_per_changed_pull_request_and_one_per_fifty_others(
    world: World, proxy: FaultProxy, repository: Repository
) -> None:
    """The number of tasks does not matter. Each poll reads three lists."""
    pulls = []
    for n in range(10):
        repository.write_file(f"{n}.txt", "new\n", new_branch=f"feature-{n}")
        pulls.append(repository.open_pull(f"feature-{n}")["number"])
    watch, tasks = Watch(world.forge), 0
    # Her permission is requested once.
    world.anna.comment(pulls[0], "hello")
    for more in (20, 40):
        for _ in range(more):
            tasks += 1
            repository.open_issue(f"task {tasks}")
        for events in (10, 100):
            until_idle(watch, proxy)
            changed = pulls[: events // 10]
            for number in changed:
                world.anna.review(number, "commented", f"{tasks} tasks, {events} events")
            issues = range(pulls[-1] + 1, pulls[-1] + 21)
            for n in range(events - len(changed)):
                world.anna.comment(issues[n % len(issues)], f"remark {n}")
            with proxy.counting() as heard:
                snapshots = watch.poll_changes()
            assert len(snapshots) >= events
            pages = -(-events // 50)
            assert len(heard) <= 3 + 2 * len(changed) + pages, [str(h) for h in heard]


def test_a_finished_task_costs_a_known_number_of_requests(gitea: Server, bare_home: Home) -> None:
    """The requests of a sprint because of a task: without polls, with those of git."""
    proxy, robot = FaultProxy(gitea.url), gitea.person("robot")
    repository = gitea.repository(robot)
    bare_home.environment[TOKEN] = robot.token
    home = bare_home.init("demo", *gitea_options(repository, host=proxy.url), poll_s=3600.0)
    names = ("a", "b", "c")
    home.script(*map(writes, names))
    with proxy.counting() as heard:
        answer = home.sprint(*(task(name, *names[:n][-1:]) for n, name in enumerate(names)))
    proxy.close()
    assert set(answer.statuses.values()) == {"Done"}, answer
    root = f"/api/v1{repository.path}"
    lists = [f"{root}/{path}" for path in ("issues", "issues/comments", "git/refs/heads")]
    once = f"{root}/labels"
    asked = [h for h in heard if h.path.startswith("/api/") and h.path != once]
    asked = [h for h in asked if h.method != "GET" or h.path not in lists]
    git = [h for h in heard if not h.path.startswith("/api/")]
    assert len(asked) / len(names) <= PER_TASK, [str(h) for h in asked]
    assert len(git) / len(names) <= GIT_PER_TASK, [str(h) for h in git]
