"""A sprint on a real Gitea: webhooks wake it, it can be stopped in an outage, nothing leaks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.searching import sources_of_secret
from tests.support.gitea import Person, Repository, Server
from tests.support.home import Home, does, task, writes
from tests.support.live import TOKEN, gitea_options
from tests.support.sockets import free_port
from tests.support.wait import process_lives

SECRET = "what-only-the-forge-and-we-know"


@pytest.fixture
def server(own_gitea: Server) -> Iterator[Server]:
    """A server of this test's own: the test kills it and starts it again."""
    yield own_gitea
    if not own_gitea.pid:
        own_gitea.start()


@pytest.fixture
def ada(server: Server) -> Person:
    return server.person("ada")


@pytest.fixture
def repository(server: Server, ada: Person) -> Repository:
    return server.repository(ada)


@pytest.fixture
def home(bare_home: Home, repository: Repository, ada: Person) -> Home:
    """A home with project `demo` on that repository."""
    bare_home.environment |= {TOKEN: ada.token, "HOOK": SECRET}
    return bare_home.init("demo", *gitea_options(repository))


def test_a_webhook_delivers_an_act_long_before_the_next_poll(
    home: Home, repository: Repository
) -> None:
    port, gate = free_port(), home.gate("work")
    home.set(webhook=f"127.0.0.1:{port}", webhook_secret_env="HOOK", poll_s=3600.0)
    repository.webhook(f"http://127.0.0.1:{port}/", SECRET)
    home.script(writes("a", run=gate.line))
    running = home.start_sprint(task("a"))
    gate.wait_for_agent()
    repository.edit_issue(1, state="closed")
    home.wait_for_status("a", "Cancelled")
    answer = running.wait()
    assert answer.statuses == {"a": "Cancelled"}, answer


def test_stop_ends_the_agents_of_a_killed_engine_while_the_forge_is_unavailable(
    home: Home, server: Server
) -> None:
    gate = home.gate("work")
    home.script(writes("a", run=f"echo half > half.txt; {gate.line}"))
    running = home.start_sprint(task("a"))
    gate.wait_for_agent()
    running.kill()
    server.kill()
    (agent,) = home.caloron("status").data["last_sprint"]["orphaned_agents"]
    stopped = home.caloron("stop")
    assert not process_lives(agent["pid"])
    assert stopped.code == 0, stopped
    assert stopped.data["stopped"] is True
    assert home.caloron("stop").data["stopped"] is False
    gate.open()
    server.start()
    answer = home.caloron("resume")
    assert answer.statuses == {"a": "Done"}, answer
    # The work that the agent had written before it was stopped is kept.
    assert home.events("work_salvaged") != []


def test_the_token_is_written_nowhere(home: Home, repository: Repository, ada: Person) -> None:
    """Neither Caloron nor an agent that prints the token writes it to a file."""
    home.script(
        writes("a", output=f"I found {ada.token}"),
        does("review", output=f"I saw {ada.token}\nAPPROVED"),
    )
    answer = home.sprint(task("a"))
    assert answer.statuses == {"a": "Done"}, answer
    assert sources_of_secret(home, ada.token, answer) == []
    for number in (1, 2):
        assert not [c for c in repository.comments(number) if ada.token in c["body"]]


def test_agents_never_get_a_token_even_if_the_settings_pass_it(home: Home) -> None:
    home.script(writes("a")).set(pass_env=[TOKEN])
    answer = home.sprint(task("a"))
    assert answer.code == 2
    assert TOKEN in answer.error["message"]
    refused = home.caloron("config", "set", "pass_env", f"HOOK {TOKEN}")
    assert refused.code == 2
