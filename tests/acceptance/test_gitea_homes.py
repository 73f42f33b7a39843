"""Several homes with one repository: sprints of the same name stay apart."""

from __future__ import annotations

from pathlib import Path

from tests.support.gitea import Repository, Server
from tests.support.home import Home, task, writes
from tests.support.live import TOKEN, gitea_options


def on(home: Home, repository: Repository) -> Home:
    home.environment[TOKEN] = repository.who.token
    return home.init("demo", *gitea_options(repository))


def test_a_recreated_project_does_not_use_the_branches_of_the_old_project(
    bare_home: Home, gitea: Server
) -> None:
    repository = gitea.repository(gitea.person("robot"))
    home = on(bare_home, repository)
    home.script(writes("a", {"first.txt": "x\n"}))
    assert home.sprint(task("a", title="First")).code == 0
    assert home.caloron("project", "delete", "demo", "--force").code == 0
    on(home, repository)
    home.script(writes("a", {"second.txt": "x\n"}))
    answer = home.sprint(task("a", title="Second"))
    assert (answer.code, answer.statuses) == (0, {"a": "Done"}), answer
    assert repository.files() >= {"first.txt", "second.txt"}
    assert {"agent/a/demo-1", "agent/a/demo-2"} <= repository.branches().keys()


def test_two_homes_with_the_same_project_name_do_not_interfere(
    bare_home: Home, gitea: Server, tmp_path: Path
) -> None:
    repository = gitea.repository(gitea.person("robot"))
    first, second = on(bare_home, repository), Home(tmp_path / "another")
    gate = first.gate("work")
    first.script(writes("a", {"login.txt": "x\n"}, run=gate.line))
    running = first.start_sprint(task("a", title="Login"))
    gate.wait_for_agent()
    try:
        on(second, repository)
        second.script(writes("a", {"billing.txt": "x\n"}))
        answer = second.sprint(task("a", title="Billing"))
        assert (answer.code, answer.statuses) == (0, {"a": "Done"}), answer
    finally:
        second.close()
        gate.open()
    assert running.wait().code == 0
    assert repository.files() >= {"login.txt", "billing.txt"}
    assert {issue["title"]: issue["state"] for issue in repository.issues()} == {
        "Login": "closed",
        "Billing": "closed",
    }
