"""Where each attempt keeps its files: spec, lock, output, workspace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from caloron.store import log


class RunDirs:
    """`runs/<sprint>/<task>/<n>-<role>/<token>`: one directory per claim."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def of(self, item: str, token: int) -> Path:
        return self.root / item / str(token)

    def with_workspace(self, sprint: str) -> list[tuple[str, int]]:
        """Attempts of a sprint, by item and token, whose workspace is there, be it half made."""
        runs = self.root / sprint
        found = {
            p.parent for name in ("workspace", ".workspace.new") for p in runs.glob(f"*/*/*/{name}")
        }
        return [(str(run.parent.relative_to(self.root)), int(run.name)) for run in sorted(found)]

    def all(self, item: str) -> list[Path]:
        """The attempts of an item, oldest first."""
        place = self.root / item
        if not place.is_dir():
            return []
        found = [d for d in place.iterdir() if d.name.isdigit()]
        return sorted(found, key=lambda d: int(d.name))

    def newest(self, item: str) -> Path | None:
        found = self.all(item)
        return found[-1] if found else None


def read_spec(run_dir: Path) -> dict[str, Any]:
    """What the attempt was started with; empty if it was not started."""
    try:
        found = json.loads((run_dir / "spec.json").read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        log.warning("cannot read what an attempt was started with", error=error, path=run_dir)
        return {}
    return found if isinstance(found, dict) else {}
