"""Plans, names and structs for tests on sprints in memory (`caloron.testing`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from caloron.domain.model.sprint import Sprint, State
from caloron.domain.model.task import Task
from caloron.testing import SprintDriver, planned

#: The accounts of a `SprintDriver`, and its sprint.
CALORON, PERSON, SPRINT = "caloron", "ada", "shop-1"
DIAMOND = (planned("a"), planned("b", "a"), planned("c", "a"), planned("d", "b", "c"))
_Struct = TypeVar("_Struct", Sprint, Task)


def nested(kind: type[_Struct], **fields: Any) -> _Struct:
    """Make a struct of sub-structs: `links__issue=1` sets the field `issue` of its `links`."""
    struct = kind(**{name: value for name, value in fields.items() if "__" not in name})
    for name, value in fields.items():
        group, separator, field = name.partition("__")
        if separator:
            part = msgspec.structs.replace(getattr(struct, group), **{field: value})
            setattr(struct, group, part)
    return struct


def configure(state: State, **settings: Any) -> None:
    """Change settings of a sprint."""
    state.sprint.settings = msgspec.structs.replace(state.sprint.settings, **settings)


def act(driver: SprintDriver, account: str = PERSON) -> Any:
    """Return an account of the forge; the sprint settles after each of its acts."""
    return _Acting(driver, account)


class _Acting:
    def __init__(self, driver: SprintDriver, account: str) -> None:
        self._driver = driver
        self._account = driver.user(account)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def act_and_settle(*arguments: Any) -> Any:
            result = getattr(self._account, name)(*arguments)
            self._driver.settle()
            return result

        return act_and_settle


def finishes(driver: SprintDriver) -> bool:
    """Let the agents end all work; return True if every task is Done then."""
    driver.run()
    return set(driver.statuses().values()) == {"Done"}


def finish_twice(driver: SprintDriver, task: str, **end: Any) -> None:
    """End the work on a task twice in the same way, as when an agent or a verification fails."""
    for _ in range(2):
        driver.finish(task, **end)


def phase(driver: SprintDriver) -> str:
    """Return the phase of the sprint."""
    return driver.state.sprint.phase


def issue_of(driver: SprintDriver, task: str = "a") -> int:
    """Return the number of a task's issue, which must exist."""
    return _known(driver.task(task).links.issue)


def pull_of(driver: SprintDriver, task: str = "a") -> int:
    """Return the number of a task's pull request, which must exist."""
    return _known(driver.task(task).links.pull)


def escalation_of(driver: SprintDriver, task: str = "a") -> int:
    """Return the number of the issue that asks a person about a task."""
    return _known(driver.task(task).escalation.issue)


def _known(number: int | None) -> int:
    assert number is not None
    return number
