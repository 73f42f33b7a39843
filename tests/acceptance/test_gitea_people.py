"""On a real Gitea only people with write access decide what is worked on."""

from __future__ import annotations

import time
from functools import partial

from tests.support.gitea import Repository, Server
from tests.support.home import Home, does, task, writes
from tests.support.live import live_project
from tests.support.wait import wait_for

LABEL = "caloron:task"


def comments(repository: Repository, number: int) -> list[str]:
    return [comment["body"] for comment in repository.comments(number)]


def later() -> None:
    """Wait: within one second of the forge's clock the order of two acts is unknown."""
    time.sleep(1.1)


def test_an_untrusted_author_cannot_change_a_task_by_reopening_her_labelled_issue(
    bare_home: Home, gitea: Server
) -> None:
    live = live_project(bare_home, gitea)
    home, repository = live.home, live.repository
    eve = repository.acting_as(gitea.person("eve"))
    number = eve.open_issue("Hers", "harmless")["number"]
    live.ada.label(number, LABEL)
    eve.edit_issue(number, state="closed")
    gate = home.gate("work")
    home.script(
        writes("a", run=gate.line),
        does("implement", files={"e.txt": "e\n"}),
    )
    running = home.start_sprint(task("a"))
    gate.wait_for_agent()
    eve.edit_issue(number, state="open", body="evil")
    wait_for(
        lambda: any("has no say here" in body for body in comments(repository, number)),
        "asked",
    )
    later()
    live.ada.comment(number, "caloron:approve")
    joined = f"This is task `issue-{number}`"
    wait_for(lambda: any(joined in body for body in comments(repository, number)), "joined")
    later()
    eve.edit_issue(number, body="worse")
    kept = "goes on with the text it had"
    wait_for(lambda: any(kept in body for body in comments(repository, number)), "kept")
    gate.open()
    answer = running.wait()
    assert answer.statuses == {"a": "Done", f"issue-{number}": "Done"}, answer
    prompts = home.prompts(task=f"issue-{number}")
    assert prompts
    assert all("evil" in prompt and "worse" not in prompt for prompt in prompts)


def test_an_issue_that_was_labelled_before_the_sprint_is_part_of_it(
    bare_home: Home, gitea: Server
) -> None:
    live = live_project(bare_home, gitea)
    home, repository = live.home, live.repository
    old = live.ada.open_issue("Old", "do the old one")["number"]
    live.ada.label(old, LABEL)
    plain = live.ada.open_issue("Plain", "no label")["number"]
    home.script(writes("a"), does("implement", files={"b.txt": "b\n"}))
    answer = home.sprint(task("a"))
    assert answer.statuses == {"a": "Done", f"issue-{old}": "Done"}, answer
    assert repository.issue(plain)["state"] == "open"
    trace = home.caloron("trace", f"issue-{old}", json=False).stdout
    assert f"issue #{old} has the label {LABEL}" in trace


def test_a_comment_of_a_writer_reaches_the_reviewer_and_others_do_not(
    bare_home: Home, gitea: Server
) -> None:
    live = live_project(bare_home, gitea)
    home, repository = live.home, live.repository
    eve = repository.acting_as(gitea.person("eve"))
    gate = home.gate("work")
    home.script(
        writes("a", run=gate.line),
        does("review", match="please say hello", output="CHANGES_NEEDED: as Ada said"),
        does("fix", files={"a.txt": "hello\n"}),
    )
    running = home.start_sprint(task("a"))
    gate.wait_for_agent()
    number = next(issue["number"] for issue in repository.issues())
    live.ada.comment(number, "please say hello")
    eve.comment(number, "evil")
    eve.comment(number, "worse")
    for kind in ("/read/", "/untrusted/"):
        wait_for(partial(_has, repository, number, kind), kind)
    gate.open()
    assert running.wait().code == 0
    bodies = comments(repository, number)
    assert [sum(kind in body for body in bodies) for kind in ("/read/", "/untrusted/")] == [1, 1]
    (prompt,) = [prompt for prompt in home.prompts() if "please say hello" in prompt]
    assert "ada:\nplease say hello" in prompt
    assert not any("evil" in prompt or "worse" in prompt for prompt in home.prompts())


def _has(repository: Repository, number: int, words: str) -> bool:
    return any(words in body for body in comments(repository, number))
