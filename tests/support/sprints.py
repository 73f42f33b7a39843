"""Plans, names and structs for tests on sprints in memory (`caloron.testing`)."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from caloron.domain.model.sprint import Sprint
from caloron.domain.model.task import Task
from caloron.testing import planned

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
