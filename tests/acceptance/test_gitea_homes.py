"""Several homes with one repository: sprints of the same name stay apart."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.gitea_home import TOKEN
from tests.support.gitea import Repository, Server
from tests.support.home import Home


def task(title: str) -> dict[str, object]:
    return {"id": "a", "title": title, "agent_prompt": title, "depends_on": []}


def writes(home: Home, name: str, run: str = "true") -> None:
    works = {"when": {"role": "implement"}, "files": {name: "x\n"}, "output": "done", "run": run}
    home.script(works)


def on(home: Home, repository: Repository) -> Home:
    home.environment[TOKEN] = repository.who.token
    forge_options = (
        "--host",
        repository.who.url,
        "--repo",
        repository.full_name,
        "--token-env",
        TOKEN,
    )
    return home.init("demo", "--forge", "gitea", *forge_options)


def test_a_recreated_project_does_not_use_the_branches_of_the_old_project(
    bare_home: Home, gitea: Server
) -> None:
    repository = gitea.repository(gitea.person("robot"))
    home = on(bare_home, repository)
    writes(home, "first.txt")
    assert home.sprint(task("First")).code == 0
    assert home.caloron("projects", "delete", "demo", "--force").code == 0
    on(home, repository)
    writes(home, "second.txt")
    answer = home.sprint(task("Second"))
    assert (answer.code, answer.statuses) == (0, {"a": "Done"}), answer
    assert repository.files() >= {"first.txt", "second.txt"}
    assert {"agent/a/demo-1", "agent/a/demo-2"} <= repository.branches().keys()


def test_two_homes_with_the_same_project_name_do_not_interfere(
    bare_home: Home, gitea: Server, tmp_path: Path
) -> None:
    repository = gitea.repository(gitea.person("robot"))
    first, second = on(bare_home, repository), Home(tmp_path / "another")
    gate = first.gate("work")
    writes(first, "login.txt", gate.line)
    running = first.start_sprint(task("Login"))
    gate.wait_for_agent()
    try:
        on(second, repository)
        writes(second, "billing.txt")
        answer = second.sprint(task("Billing"))
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
