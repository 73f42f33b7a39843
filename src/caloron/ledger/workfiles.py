"""The files in the project's workspace that scripts know: the plan, the agents, the skills.

`dag.json` and `agents/*.agent` tell of the sprint that runs, `agent_versions.json` of everybody who
worked here, `skill_store.json` of what agents can be good at.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from caloron.domain.adopted import parse_foreign
from caloron.domain.identities import manifest_of, next_version, versions_of
from caloron.domain.plan import PlannedTask
from caloron.domain.skills import default_skills
from caloron.domain.sprint import State
from caloron.ledger.earlier import VERSIONS
from caloron.ledger.figures import figures_of
from caloron.ledger.ledger import SQL, Ledger, remember_projection
from caloron.ledger.projected import Projected, digest, look, set_aside, write
from caloron.store import queue

DAG, SKILLS = "dag.json", "skill_store.json"
#: Agents are named after tasks, so there are ever more of them.
_REMEMBERED_AGENTS = 1000
#: The reviewer and the planner work in every sprint.
_REMEMBERED_VERSIONS = 100
_OPTIONAL = ("required_skills", "acceptance", "files")


class WorkFiles:
    """The files of one project's workspace, written by whoever holds the project."""

    def __init__(
        self,
        ledger: Ledger,
        workspace: Path,
        *,
        framework: str,
        frameworks: tuple[str, ...] = (),
        model: str = "",
        stall_m: float = 20.0,
        tell: Callable[[str], None],
    ) -> None:
        self._ledger = ledger
        self._workspace = workspace
        self._framework, self._model = framework, model
        self._frameworks = frameworks
        self._stall_m = stall_m
        self._tell = tell

    def file(self, name: str) -> Projected:
        return Projected(name=name, path=self._workspace / name)

    def take_in(self) -> None:
        """Deal with what somebody else wrote, and make what is missing."""
        self._take_in_skills()
        self._take_in_versions()

    def write_plan(self, state: State) -> None:
        """The tasks of the sprint that runs, as the list that it was planned as."""
        self._make_room(DAG, is_plan)
        dag, *agents = self.plan_texts(state)
        # Somebody else's agent of that name stays as it is.
        ours = [text for text in agents if look(self._ledger, text[0]).whose != "foreign"]
        write(self._ledger, dag, *ours)

    def plan_texts(self, state: State) -> list[tuple[Projected, bytes]]:
        """What the files of a sprint's plan hold: the plan, then each of its agents."""
        plans = [task.plan for task in state.tasks.values()]
        framework = state.sprint.framework or self._framework
        texts = [(self.file(DAG), _json([_planned(plan, framework) for plan in plans]))]
        for plan in plans:
            chosen = plan.framework or framework
            manifest = manifest_of(plan, framework=chosen, model=self._model)
            texts.append((self.file(f"agents/{plan.id}.agent"), _yaml(manifest)))
        return texts

    def skills_text(self) -> bytes:
        """The store of skills as it is to begin with."""
        return _json(default_skills(self._frameworks))

    def versions_text(self) -> bytes:
        return _json(self._versions())

    def takes_over_versions(self, text: bytes) -> bool:
        """Whether somebody else's text says anything that is not known."""
        found = parsed(text, is_object)
        return found is not None and found != self._versions()

    def _make_room(self, name: str, is_sound: Callable[[Any], bool]) -> None:
        """Keep what stands in the place of a file of ours beside it."""
        file = self.file(name)
        seen = look(self._ledger, file)
        if seen.whose != "foreign":
            return
        sound = parsed(seen.text, is_sound) is not None
        kept = set_aside(self._ledger, file.path, "foreign" if sound else "corrupt")
        what = "was changed by somebody else" if sound else "is corrupt"
        self._tell(f"{file.path} {what}; it is kept as {kept}, and written anew")

    def _take_in_skills(self) -> None:
        file = self.file(SKILLS)
        seen = look(self._ledger, file)
        if seen.whose == "foreign" and parsed(seen.text, is_object) is not None:
            # The store of a person, or of an older Caloron, is the store.
            return
        self._make_room(SKILLS, is_object)
        write(self._ledger, (file, self.skills_text()))

    def _take_in_versions(self) -> None:
        file = self.file(VERSIONS)
        seen = look(self._ledger, file)
        if seen.whose == "nobody":
            self._write_versions()
        if seen.whose != "foreign":
            return
        found = parsed(seen.text, is_object)
        if found is None:
            self._make_room(VERSIONS, is_object)
            self._write_versions()
            return
        ours = self._versions()
        changed = {agent: entry for agent, entry in found.items() if ours.get(agent) != entry}
        unchanged = self._theirs().keys() & (found.keys() - changed.keys())
        with self._ledger.db.transaction("adoption") as connection:
            for agent in self._theirs().keys() - unchanged:
                key = {"file": VERSIONS, "key": agent, "whose": "theirs"}
                connection.execute(SQL["forget_entry"], key)
            for position, (agent, entry) in enumerate(changed.items()):
                key = {"file": VERSIONS, "key": agent}
                connection.execute(SQL["forget_entry"], key | {"whose": "ours"})
                row = {"whose": "theirs", "position": position, "version": 0}
                connection.execute(SQL["put_entry"], key | row | {"text": json.dumps(entry)})
            # Taken over once: the file is as good as ours until it is written anew.
            remember_projection(connection, VERSIONS, digest(seen.text))
            payload = {"file": str(file.path), "agents": len(changed)}
            queue.append_event(connection, "state_imported", payload)
        self._tell(f"taken over from {file.path}: {len(changed)} agents")

    def write_versions(self, sprint: str) -> None:
        """Add those who worked in a sprint that has ended."""
        self._take_in_versions()
        with self._ledger.db.snapshot() as connection:
            figures = figures_of(connection, sprint)
        theirs, before = self._theirs(), self._ours()
        number = figures.state.sprint.number
        with self._ledger.db.transaction("versions") as connection:
            found = versions_of(figures.state, figures.runs, self._stall_m)
            for agent, entry in found.items():
                known = theirs.get(agent)
                earlier = [e for e in before.get(agent, []) if e["sprint_id"] != sprint]
                entry["version"] = next_version(
                    [*(known if isinstance(known, list) else ()), *earlier]
                )
                # A sprint that is resumed after its end keeps its place in the order of sprints.
                entries = sorted((*earlier, entry), key=lambda e: str(e["created_at"]))
                row = {"file": VERSIONS, "key": agent, "whose": "ours", "version": 0}
                row |= {"position": number, "text": json.dumps(entries[-_REMEMBERED_VERSIONS:])}
                connection.execute(SQL["put_entry"], row)
        self._write_versions()

    def _write_versions(self) -> None:
        write(self._ledger, (self.file(VERSIONS), self.versions_text()))

    def _versions(self) -> dict[str, Any]:
        """Each agent with its versions: what others wrote about it, then what we know."""
        found = self._theirs()
        for agent, entries in self._ours().items():
            before = found.get(agent, [])
            if isinstance(before, list):
                found[agent] = [*before, *entries]
        return found

    def _theirs(self) -> dict[str, Any]:
        return self._entries("theirs", -1)

    def _ours(self) -> dict[str, list[Any]]:
        """The versions of each agent, one for each sprint; 0.4 kept only the last one."""
        found = self._entries("ours", _REMEMBERED_AGENTS)
        return {a: entry if isinstance(entry, list) else [entry] for a, entry in found.items()}

    def _entries(self, whose: str, limit: int) -> dict[str, Any]:
        wanted = {"file": VERSIONS, "whose": whose, "limit": limit}
        rows = self._ledger.db.rows(SQL["newest_entries"], wanted)
        return {row["key"]: json.loads(row["text"]) for row in reversed(rows)}


def _planned(plan: PlannedTask, framework: str) -> dict[str, Any]:
    task = {
        "id": plan.id,
        "title": plan.title,
        "depends_on": list(plan.depends_on),
        "agent_prompt": plan.agent_prompt,
        "framework": plan.framework or framework,
    }
    if plan.kind != "change":
        task["kind"] = plan.kind
    return task | {name: list(value) for name in _OPTIONAL if (value := getattr(plan, name))}


def parsed(text: bytes, is_sound: Callable[[Any], bool]) -> Any:
    """What somebody else wrote; None if it is not what stands in such a file."""
    try:
        found = parse_foreign(text)
    except ValueError:
        return None
    return found if is_sound(found) else None


def is_object(found: Any) -> bool:
    return isinstance(found, dict)


def is_plan(found: Any) -> bool:
    return isinstance(found, dict | list)


def _json(content: Any) -> bytes:
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "replace")


def _yaml(content: Any) -> bytes:
    # The one in C is ten times as fast, and there is one file for each task.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(content, Dumper=dumper, sort_keys=False, allow_unicode=True, width=10_000)
    return text.encode("utf-8", "replace")
