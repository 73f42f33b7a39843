"""One agent's home, for programs: everything that its folder can do, on one connection."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from caloron.agentstate.dashboard import dashboard
from caloron.agentstate.diary import Diary
from caloron.agentstate.errands import Errands
from caloron.agentstate.file import open_file
from caloron.agentstate.retro import write_weekly
from caloron.agentstate.scaffold import Action, scaffold
from caloron.store.files import write_atomic


class AgentHome:
    """The folder of an agent, opened; `errands` is its queue, `diary` its diary."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self.db = open_file(where / "state.sqlite")
        self.errands = Errands(self.db)
        self.diary = Diary(self.db)
        self.made: tuple[Action, ...] = ()

    @classmethod
    def scaffolded(cls, where: Path, host: str, agent: str) -> AgentHome:
        """The folder, laid down first where it is not there; `made` says what that did."""
        made = tuple(scaffold(where, host, agent))
        home = cls(where)
        home.made = made
        return home

    def regenerate_dashboard(self) -> Path:
        path = self.where / "dashboard.md"
        write_atomic(path, dashboard(self.db).encode())
        return path

    def write_retro(self, week: str | None = None) -> Path:
        return write_weekly(self.where, week)[0]

    def close(self) -> None:
        self.db.close()

    def __enter__(self) -> AgentHome:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
