"""The directory of each attempt: spec, lock, output, workspace."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from caloron.domain.model.merge import Link
from caloron.store import log


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What must be known again when an attempt has ended; part of its `spec.json`."""

    #: The commit that the work starts from.
    base: str = ""
    #: The commit that a resolve round has to merge in, and the files in conflict with it.
    merges: str = ""
    conflicts: tuple[str, ...] = ()
    #: Empty: no agent, but the project's own test.
    framework: str = ""
    budget_usd: float | None = None
    #: The comments of people in the prompt.
    comments: tuple[str, ...] = ()
    #: Folders that setup made: not the agent's work.
    products: tuple[str, ...] = ()
    #: The shell line that verifies.
    how: str = ""
    #: The tree that is verified, and of a batch each head with the tree after its merge.
    tree: str = ""
    chain: tuple[tuple[str, str], ...] = ()

    @property
    def links(self) -> tuple[Link, ...]:
        return tuple(Link(head, tree) for head, tree in self.chain)


class RunDirs:
    """`runs/<sprint>/<task>/<n>-<role>/<token>`: one directory per claim."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def of(self, item: str, token: int) -> Path:
        return self.root / item / str(token)

    def with_workspace(self, sprint: str) -> list[tuple[str, int]]:
        """Return the attempts of a sprint that have a workspace, also a half made one."""
        names = ("workspace", ".workspace.new")
        runs = {p.parent for name in names for p in (self.root / sprint).glob(f"*/*/*/{name}")}
        return [(str(run.parent.relative_to(self.root)), int(run.name)) for run in sorted(runs)]

    def newest(self, item: str) -> Path | None:
        """Return the directory of the last attempt of an item."""
        folder = self.root / item
        attempts = [d for d in folder.iterdir() if d.name.isdigit()] if folder.is_dir() else []
        return max(attempts, key=lambda attempt: int(attempt.name), default=None)


def read_record(run_dir: Path) -> AttemptRecord:
    """Read the record of an attempt; an empty one if no process was started."""
    try:
        # Not by msgspec alone: names that are no UTF-8 are lone surrogates, which it refuses.
        return msgspec.convert(json.loads((run_dir / "spec.json").read_bytes()), AttemptRecord)
    except FileNotFoundError:
        return AttemptRecord()
    except (ValueError, msgspec.ValidationError) as error:
        log.warning("cannot read the record of an attempt", error=error, path=run_dir)
        return AttemptRecord()
