"""What a look at the state of a project finds: what should stand where, and what does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not as the ledger has it."""

    #: `projection`, `record`, `ledger`, `forge`, `git`, `home`.
    kind: str
    target: str
    expected: str
    found: str
    #: What a repair does; empty: nothing can be done about it here.
    repair: str = ""
    #: It is nobody's mistake and goes away by itself, or is a person's word: only told.
    passing: bool = False


#: Puts one finding right; gives a line for people.
Mend = Callable[[], str]


class Looked(msgspec.Struct, kw_only=True):
    """What a look found: what is wrong, what is only told, and how much was looked at."""

    #: Each with the act that puts it right, if there is one.
    wrong: list[tuple[Finding, Mend | None]] = msgspec.field(default_factory=list)
    told: list[Finding] = msgspec.field(default_factory=list)
    checked: int = 0

    def add(self, finding: Finding, mend: Mend | None = None) -> None:
        if finding.passing:
            self.told.append(finding)
        else:
            self.wrong.append((finding, mend))


#: How somebody else's text stands to a file of ours.
Verdict = tuple[Literal["corrupt", "foreign", "theirs"], str]
