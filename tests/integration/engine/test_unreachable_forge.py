"""A forge that does not answer is waited for, and is nobody's failure."""

from __future__ import annotations

import pytest

from caloron.domain.actions import StartWork
from caloron.domain.sprint import Role, Work
from caloron.errors import ForgeUnavailable
from caloron.git.command import GitError
from caloron.ports import Remote
from tests.integration.engine.conftest import ITEM, Engine

#: Nobody listens there.
AWAY = Remote("http://127.0.0.1:9/owner/name.git")


@pytest.mark.parametrize("role", ["implement", "verify"])
def test_work_that_needs_a_forge_that_is_away_is_given_back_and_not_failed(
    engine: Engine, role: Role
) -> None:
    workers = engine.workers()
    engine.mirror.remote = AWAY
    engine.plan(StartWork(task="a", work=Work(item=ITEM, role=role)))
    workers.dispatch()
    workers.wait()
    assert workers.idle
    assert engine.facts() == ()
    assert engine.bell.faults == []
    assert engine.queue.in_flight() == []
    # It waits in the queue, and not only for a moment's claim.
    assert engine.queue.has_pending()
    assert engine.queue.claim((role,), 4) is None
    (told,) = engine.events("work_item_reopened")
    assert "did not answer git fetch" in told["reason"]


def test_what_git_says_about_the_network_is_told_apart_from_what_it_says_about_us(
    engine: Engine,
) -> None:
    engine.mirror.remote = AWAY
    with pytest.raises(ForgeUnavailable, match="did not answer git fetch"):
        engine.mirror.fetch_main()
    engine.mirror.remote = Remote(str(engine.home / "not-there.git"))
    with pytest.raises(GitError):
        engine.mirror.fetch_main()
