"""What a real Gitea costs to watch, who has a say on it, and what its own CI and rules say."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from caloron.domain.model.snapshots import CommentSnapshot, PullSnapshot, ReviewSnapshot
from caloron.errors import CaloronError, ForgeError, NotYet, PreconditionFailed
from caloron.forge.connect import connect
from tests.integration.forge.people import main_of
from tests.integration.forge.worlds import Watch, World, gitea_world
from tests.support.fault_proxy import FaultProxy
from tests.support.gitea import Repository, Server
from tests.support.home import Home, task, writes

#: Requests of the API for a task that is approved at once, 38 with what a sprint needs to begin;
#: those of git, two or three for each fetch and four for each push, depend a little on timing.
PER_TASK, GIT_PER_TASK = 40, 22


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
    assert len(watch.look()) == 103
    # What changed within the last seconds is looked at again, because of the forge's clock.
    for _ in range(40):
        with proxy.counting() as heard:
            assert watch.look() == {}
        if len(heard) <= 3:
            break
    assert len(heard) <= 3, [str(h) for h in heard]
    # It stays so: the cursor moved past what it has told.
    with proxy.counting() as heard:
        for _ in range(5):
            assert watch.look() == {}
    assert len(heard) <= 15, [str(h) for h in heard]


def test_one_change_among_a_hundred_costs_a_few_requests_more(
    world: World, proxy: FaultProxy, repository: Repository
) -> None:
    for n in range(55):
        repository.open_issue(f"task {n}")
    watch = Watch(world.forge)
    world.anna.comment(7, "resolved")
    with proxy.counting() as heard:
        (seen,) = watch.look().values()
    assert isinstance(seen, CommentSnapshot)
    assert len(heard) <= 8, [str(h) for h in heard]


def until_idle(watch: Watch, proxy: FaultProxy) -> None:
    """What changed within the last seconds is looked at again, because of the forge's clock."""
    for _ in range(200):
        with proxy.counting() as heard:
            watch.look()
        if len(heard) <= 3:
            return
        time.sleep(0.1)
    raise AssertionError([str(h) for h in heard])


def test_a_look_costs_two_requests_for_each_pull_request_that_changed_and_one_for_fifty_others(
    world: World, proxy: FaultProxy, repository: Repository
) -> None:
    """However many tasks there are. Three lists are asked for in any case."""
    pulls = []
    for n in range(10):
        repository.write_file(f"{n}.txt", "new\n", new_branch=f"feature-{n}")
        pulls.append(repository.open_pull(f"feature-{n}")["number"])
    watch, tasks = Watch(world.forge), 0
    # Whether she has a say is asked once.
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
                seen = watch.look()
            assert len(seen) >= events
            pages = -(-events // 50)
            assert len(heard) <= 3 + 2 * len(changed) + pages, [str(h) for h in heard]


def test_a_finished_task_costs_a_known_number_of_requests(gitea: Server, bare_home: Home) -> None:
    """Without looking: what a sprint asks for because of a task, git's own requests included."""
    proxy, robot = FaultProxy(gitea.url), gitea.person("robot")
    repository = gitea.repository(robot)
    bare_home.environment["ROBOT"] = robot.token
    where = ("--host", proxy.url, "--repo", repository.full_name, "--token-env", "ROBOT")
    home = bare_home.init("demo", "--forge", "gitea", *where, poll_s=3600.0)
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


def test_a_stranger_is_heard_and_has_no_say(
    world: World, gitea: Server, repository: Repository
) -> None:
    watch = Watch(world.forge)
    pull = world.clone.open_pull(world.forge, "feature")
    eve = repository.seen_by(gitea.person("eve"))
    watch.look()
    eve.comment(pull.number, "caloron:approve")
    eve.review(pull.number, "APPROVED", "good")
    comment, review = sorted(watch.look().values(), key=lambda s: s.object)
    assert isinstance(comment, CommentSnapshot)
    assert isinstance(review, ReviewSnapshot)
    assert (comment.author, comment.trusted) == ("eve", False)
    assert (review.author, review.verdict, review.trusted) == ("eve", "approved", False)


def test_only_listed_people_have_a_say_where_there_is_a_list(
    world: World, gitea: Server, repository: Repository, proxy: FaultProxy
) -> None:
    token = gitea.person("caloron").token
    forge = connect("gitea", proxy.url, repository.full_name, token, people=("eve",))
    issue = forge.create_issue("one", "", ())
    repository.seen_by(gitea.person("eve")).comment(issue.number, "resolved")
    world.anna.comment(issue.number, "resolved")
    said = {c.author: c.trusted for c in forge.comments(issue.number)}
    forge.close()
    assert said == {"eve": True, "anna": False}


def test_a_person_with_our_own_account_is_told_apart_by_the_marker(
    world: World, repository: Repository
) -> None:
    """The token is often the user's own."""
    watch = Watch(world.forge)
    issue = world.forge.create_issue("one", "", ())
    watch.look()
    repository.comment(issue.number, "resolved")
    (seen,) = watch.look().values()
    assert isinstance(seen, CommentSnapshot)
    assert (seen.author, seen.trusted) == (world.forge.author, True)


def test_the_forges_own_ci_is_waited_for_and_ours_is_not_part_of_it(
    world: World, repository: Repository
) -> None:
    head = world.clone.open_pull(world.forge, "feature").head
    repository.status(head, "success", "caloron/review")
    assert world.forge.checks(head).state == "none"
    repository.status(head, "pending", "ci/build")
    repository.status(head, "success", "ci/lint")
    pending = world.forge.checks(head)
    assert (pending.state, "ci/build" in pending.detail) == ("pending", True)
    repository.status(head, "failure", "ci/build")
    red = world.forge.checks(head)
    assert (red.state, "ci/build" in red.detail) == ("red", True)
    repository.status(head, "success", "ci/build")
    assert world.forge.checks(head).state == "green"


def test_a_required_check_that_has_not_reported_is_pending(
    world: World, repository: Repository
) -> None:
    repository.protect(enable_status_check=True, status_check_contexts=["ci/build"])
    forge = world.reopened()
    about = forge.about()
    assert (about.protected, about.required_checks) == (True, ("ci/build",))
    head = world.clone.open_pull(forge, "feature").head
    checks = forge.checks(head)
    assert (checks.state, "ci/build" in checks.detail) == ("pending", True)
    forge.close()


def test_a_protected_main_that_we_may_not_merge_into_is_told_before_and_at_the_merge(
    world: World, repository: Repository
) -> None:
    repository.protect(
        enable_merge_whitelist=True, merge_whitelist_usernames=["anna"], enable_push=False
    )
    forge = world.reopened()
    about = forge.about()
    assert (about.protected, about.can_push, about.can_merge) == (True, True, False)
    pull = world.clone.open_pull(forge, "feature")
    with pytest.raises(ForgeError) as refused:
        forge.merge(pull.number, pull.head, "", "")
    assert not isinstance(refused.value, NotYet)
    assert f"#{pull.number}" in str(refused.value)
    assert refused.value.hint
    forge.close()


def test_required_approvals_are_told(world: World, repository: Repository) -> None:
    repository.protect(required_approvals=2)
    forge = world.reopened()
    assert forge.about().required_approvals == 2
    forge.close()


def test_a_repository_without_a_commit_is_empty(gitea: Server, tmp_path: Path) -> None:
    ours = gitea.person("caloron")
    repository = gitea.repository(ours, empty=True)
    forge = connect("gitea", gitea.url, repository.full_name, ours.token)
    assert forge.about().empty
    assert forge.branch("main") is None
    assert forge.issues() == []
    watch = Watch(forge)
    commit = repository.write_file("README.md", "# new\n")
    assert [s.object for s in watch.look().values()] == ["branch:main"]
    assert main_of(forge) == commit
    forge.close()


def test_a_change_from_a_fork_is_told_with_its_owner(
    world: World, gitea: Server, repository: Repository
) -> None:
    watch = Watch(world.forge)
    eve = gitea.person("eve")
    forked = eve.post(f"{repository.path}/forks", {"name": repository.full_name.split("/")[1]})
    fork = Repository(eve, forked["full_name"])
    commit = fork.write_file("a.txt", "hers", new_branch="feature")
    number = repository.seen_by(eve).open_pull("eve:feature")["number"]
    (seen,) = watch.look().values()
    assert isinstance(seen, PullSnapshot)
    assert (seen.number, seen.branch, seen.head) == (number, "eve:feature", commit)


def test_a_repository_that_is_not_there_or_not_ours_is_named(gitea: Server) -> None:
    ours = gitea.person("caloron")
    forge = connect("gitea", gitea.url, "caloron/nowhere", ours.token)
    with pytest.raises(CaloronError, match="nowhere") as missing:
        forge.about()
    assert not isinstance(missing.value, PreconditionFailed) or missing.value.hint
    forge.close()
