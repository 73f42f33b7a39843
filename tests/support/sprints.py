"""Plans, names and structs for tests on sprints in memory (`caloron.testing`)."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from caloron.domain.model.sprint import Sprint
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
