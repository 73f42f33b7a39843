"""Each file that people and scripts read, as the ledger would write it now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import yaml

from caloron.agents.frameworks import FRAMEWORKS
from caloron.domain.adopted import parse_history
from caloron.domain.imports import take_over
from caloron.engine.state.finding import Verdict
from caloron.ledger.earlier import VERSIONS
from caloron.ledger.figures import read_kept
from caloron.ledger.history import history_file, history_text, unknown_sprints
from caloron.ledger.learnings import file_text, learnings_projection, parsed, taken_over
from caloron.ledger.ledger import SQL, Ledger
from caloron.ledger.projected import Projected, digest
from caloron.ledger.projections import kv_path, kv_text, look_at
from caloron.ledger.projects import Project
from caloron.ledger.records import ended_records
from caloron.ledger.workfiles import DAG, SKILLS, WorkFiles, is_object
from caloron.ledger.workfiles import parsed as parsed_json
from caloron.stages.retro_page import last_page_file, page_file, page_text

#: The tasks of sprints whose plans were written, newest first.
_PLANNED = """
SELECT t.sprint, t.id FROM tasks t JOIN sprints s ON s.id = t.sprint
WHERE s.phase IN ('running', 'retro', 'ended') ORDER BY s.number DESC, t.position
"""


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """A file of ours: what should stand in it, and what somebody else's text there means."""

    file: Projected
    text: Callable[[], bytes]
    judge: Callable[[bytes], Verdict]
    #: What it was written from is not all in the ledger: as it was written last it is right.
    as_written: bool = False
    #: The sprint whose state file it is.
    sprint: str = ""


class Expectations:
    """All files of one project that the ledger has written."""

    def __init__(self, project: Project, ledger: Ledger) -> None:
        config = project.config
        self._project, self._ledger = project, ledger
        self._workspace = project.workspace
        self._files = WorkFiles(
            ledger,
            project.workspace,
            framework=config.framework,
            frameworks=FRAMEWORKS,
            model=config.model,
            stall_m=config.stall_threshold_m,
            tell=lambda _line: None,
        )
        rows = ledger.db.rows("SELECT id, phase FROM sprints ORDER BY number DESC")
        #: Newest first, with the phase of each.
        self.sprints: dict[str, str] = {row["id"]: row["phase"] for row in rows}

    @property
    def unfinished(self) -> list[str]:
        return [sprint for sprint, phase in self.sprints.items() if phase != "ended"]

    def all(self) -> Iterator[Expected]:
        """Every file that was written once, or that somebody else put into the place of one."""
        for sprint in reversed(self.sprints):
            yield self._state_file(sprint)
        yield self._history()
        yield self._learnings()
        yield from self._plan()
        yield self._versions()
        yield self._skills()
        yield from self._pages()

    def remembered(self, name: str) -> list[str]:
        """The digests of the last texts of a file, the newest last; none: it was never written."""
        return self._ledger.get(f"projection/{name}").split()

    def since(self, sprint: str) -> float:
        """The moment that stands in a sprint's file; 0: it was written before that was kept."""
        return float(self._ledger.get(f"since/{sprint}") or 0.0)

    def _state_file(self, sprint: str) -> Expected:
        file = Projected(name=sprint, path=kv_path(sprint))

        def text() -> bytes:
            state = self._ledger.state(sprint)
            return kv_text(state, self.since(sprint) or state.sprint.created_at)

        def judge(_found: bytes) -> Verdict:
            seen = look_at(self._ledger, sprint)
            if seen.kind == "corrupt" or seen.content is None:
                return ("corrupt" if seen.kind == "corrupt" else "foreign"), "not of this sprint"
            state = self._ledger.state(sprint)
            outcome = take_over(state, seen.content, state.sprint.created_at)[1]
            done = [f"{t}: {what}" for t, what in outcome.items() if "→" in what or " set " in what]
            done = [line for line in done if "cannot be done" not in line]
            if not done:
                return "foreign", "an edit that changes nothing"
            return "theirs", f"an edit that `caloron resume {sprint}` takes over: {'; '.join(done)}"

        return Expected(file=file, text=text, judge=judge, sprint=sprint)

    def _history(self) -> Expected:
        def judge(found: bytes) -> Verdict:
            try:
                unknown = unknown_sprints(self._ledger, parse_history(found))
            except ValueError as error:
                return "corrupt", str(error)
            if not unknown:
                return "foreign", "it tells of no sprint that is not known"
            return "theirs", f"{len(unknown)} sprints that the next sprint takes over"

        file = history_file(self._project)
        return Expected(file=file, text=lambda: history_text(self._ledger), judge=judge)

    def _learnings(self) -> Expected:
        def text() -> bytes:
            with self._ledger.db.snapshot() as connection:
                return file_text(ended_records(connection, believe=False), read_kept(connection))

        def judge(found: bytes) -> Verdict:
            try:
                told = parsed(found)
            except ValueError as error:
                return "corrupt", str(error)
            with self._ledger.db.snapshot() as connection:
                kept, records = read_kept(connection), ended_records(connection, believe=False)
            if taken_over(kept, records, told) == kept:
                return "foreign", "it says nothing that is not known"
            return "theirs", "what it says is taken over by the next sprint"

        # What the planner was told is in the ledger at once, and in the file when its sprint ends.
        waits = bool(self.unfinished)
        file = learnings_projection(self._workspace)
        return Expected(file=file, text=text, judge=judge, as_written=waits)

    def _plan(self) -> Iterator[Expected]:
        """The plan that was written last, and each agent: of the newest sprint that has it."""
        begun: dict[str, list[str]] = {}
        for row in self._ledger.db.rows(_PLANNED):
            for name in (DAG, f"agents/{row['id']}.agent"):
                sprints = begun.setdefault(name, [])
                if sprints[-1:] != [row["sprint"]]:
                    sprints.append(row["sprint"])
        for name, sprints in begun.items():
            judge = _judge_plan if name == DAG else _judge_agent
            text = self._text_of_plan(name, sprints)
            yield Expected(file=self._files.file(name), text=text, judge=judge, as_written=True)

    def _text_of_plan(self, name: str, sprints: list[str]) -> Callable[[], bytes]:
        """The text that was written last, whichever sprint's; else what would be written now."""

        def text() -> bytes:
            last, newest = self.remembered(name)[-1:], b""
            for sprint in sprints:
                texts = self._files.plan_texts(self._ledger.state(sprint))
                found = next(text for file, text in texts if file.name == name)
                if [digest(found)] == last:
                    return found
                newest = newest or found
            return newest

        return text

    def _versions(self) -> Expected:
        def judge(found: bytes) -> Verdict:
            if parsed_json(found, is_object) is None:
                return "corrupt", "it is not an object"
            if self._files.takes_over_versions(found):
                return "theirs", "what it says of agents is taken over by the next sprint"
            return "foreign", "it says nothing that is not known"

        file = self._files.file(VERSIONS)
        return Expected(file=file, text=self._files.versions_text, judge=judge)

    def _skills(self) -> Expected:
        def judge(found: bytes) -> Verdict:
            if parsed_json(found, is_object) is None:
                return "corrupt", "it is not an object"
            return "theirs", "it is the store of skills from now on"

        file = self._files.file(SKILLS)
        return Expected(file=file, text=self._files.skills_text, judge=judge, as_written=True)

    def _pages(self) -> Iterator[Expected]:
        rows = self._ledger.db.rows(SQL["ended_sprints"])
        ended = [row["id"] for row in rows]
        for sprint in ended:
            text = _page_of(self._ledger, sprint)
            file = page_file(self._workspace, sprint)
            yield Expected(file=file, text=text, judge=_judge_page, as_written=True)
        if ended:
            last = last_page_file(self._workspace)
            text = _page_of(self._ledger, self._last_page(ended))
            yield Expected(file=last, text=text, judge=_judge_page, as_written=True)

    def _last_page(self, ended: list[str]) -> str:
        """The sprint that the newest page tells of: an older one may have been resumed since."""
        wanted = self.remembered("retro_report.md")[-1:]
        for sprint in reversed(ended):
            if self.remembered(f"retro/sprint-{sprint}.md")[-1:] == wanted:
                return sprint
        return ended[-1]


def _page_of(ledger: Ledger, sprint: str) -> Callable[[], bytes]:
    return lambda: page_text(ledger, sprint)


def _judge_plan(found: bytes) -> Verdict:
    sound = parsed_json(found, lambda content: isinstance(content, dict | list)) is not None
    return ("foreign", "somebody else's plan") if sound else ("corrupt", "it is no JSON")


def _judge_agent(found: bytes) -> Verdict:
    try:
        content: Any = yaml.safe_load(found)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError):
        return "corrupt", "it is no YAML"
    if not isinstance(content, dict):
        return "corrupt", "it is no manifest"
    return "theirs", "somebody else's agent, which stays"


def _judge_page(_found: bytes) -> Verdict:
    return "foreign", "somebody else's text"
