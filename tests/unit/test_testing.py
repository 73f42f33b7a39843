"""The package `caloron.testing`: its forge is a whole `Forge`, and its driver follows the rules."""

from __future__ import annotations

import pytest

from caloron.domain.model.snapshots import marker
from caloron.errors import ForgeError, NotFound, StaleBase
from caloron.ports import Forge
from caloron.testing import FakeAgent, InMemoryForge, SprintDriver, planned


def test_the_forge_implements_the_port_and_reports_each_change_once() -> None:
    memory = InMemoryForge()
    # The type checker compares every method with the protocol.
    forge: Forge = memory
    first = forge.poll("")
    issue = forge.create_issue("A", f"do it\n{marker('issue/a')}", ())
    comment = forge.comment(issue.number, marker("note"))
    assert forge.find_issue("issue/a") == issue
    assert forge.find_comment(issue.number, "note") == comment
    assert forge.poll(first.cursor).snapshots == (issue, comment)
    assert forge.poll(forge.poll(first.cursor).cursor).snapshots == ()


def test_a_marker_of_another_account_finds_nothing() -> None:
    forge = InMemoryForge()
    forge.create_issue("A", marker("issue/a"), who="eve")
    assert forge.find_issue("issue/a") is None


def test_a_merge_is_refused_when_main_has_moved_and_when_the_pull_request_is_closed() -> None:
    forge = InMemoryForge()
    base, head = forge.branches["main"], forge.new_commit()
    forge.push(None, "work", head, "")
    number = forge.open_pull("Work", "Closes #1", "work").number
    forge.push_main()
    with pytest.raises(StaleBase):
        forge.merge(number, head, base, "Work")
    forge.close_pull(number)
    with pytest.raises(ForgeError, match="is closed"):
        forge.merge(number, head, forge.branches["main"], "Work")
    forge.branches.pop("work")
    with pytest.raises(NotFound):
        forge.open_pull("Again", "", "work")


def test_commands_of_an_untrusted_person_are_ignored() -> None:
    sprint = SprintDriver.start(planned("a"))
    sprint.forge.untrusted.add("eve")
    sprint.user("eve").comment(sprint.task("a").links.issue or 0, "caloron:cancel")
    sprint.settle()
    assert sprint.role("a") == "implement"


def test_a_script_for_one_task_overrides_the_script_for_all() -> None:
    agent = FakeAgent().on("review", answer="for all").on("review", "a", answer="for a")
    assert agent.respond("review", "b") == {"answer": "for all"}
    assert agent.respond("review", "a") == {"answer": "for a"}
    assert agent.respond("review", "a") == {}
