"""Lets a person change a plan in their own editor: as YAML, checked before it is taken."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from typing import Any

import click
import msgspec
import yaml

from caloron.agents.frameworks import FRAMEWORKS
from caloron.cli.output import is_terminal, printable, wants_json
from caloron.domain.plan import PlannedTask, PlanProblem, parse_plan
from caloron.engine.session import MAX_PLAN_BYTES
from caloron.engine.workshop import runner
from caloron.errors import CaloronError, PreconditionFailed, UsageError
from caloron.ledger.projects import Project
from caloron.store.files import write_atomic

_EDITORS = ("sensible-editor", "nano", "vim", "vi")
_HEADER = """\
# The plan of sprint {sprint}, which waits for your yes.
#
# Change, add, remove or reorder tasks, then save and leave. An unchanged or
# empty file changes nothing. Each task has an id (a-z, 0-9, _ and -), a title
# and an agent_prompt; it may have depends_on, acceptance, files,
# kind (change or check) and framework ({frameworks}).

"""
_WIDTH = 78


class PlanEditor:
    """Edits the plan of one sprint; what was typed is kept until it is recorded."""

    def __init__(self, project: Project, sprint: str) -> None:
        self._project = project
        self._sprint = sprint
        self.file = project.path / "edits" / f"{sprint}.yml"

    def edit(self, plan: tuple[PlannedTask, ...]) -> tuple[PlannedTask, ...] | None:
        """The plan as the person wants it; None: as it was."""
        before = self._text(plan)
        if self._kept(plan):
            _say(f"This is what you wrote last time: {self.file}")
        else:
            write_atomic(self.file, before.encode())
        while True:
            self._open(before)
            try:
                found = self._read()
            except FileNotFoundError:
                found = None
            except PlanProblem as problem:
                if not self._again(problem):
                    return None
                continue
            if found is None or found == plan:
                self.forget()
                _say("The plan is as it was.")
                return None
            return found

    def forget(self) -> None:
        """The file has served."""
        self.file.unlink(missing_ok=True)

    def _kept(self, plan: tuple[PlannedTask, ...]) -> bool:
        """Whether there is an edit that was not taken yet."""
        try:
            return self._read() not in (None, plan)
        except FileNotFoundError:
            return False
        except PlanProblem:
            return True

    def _text(self, plan: tuple[PlannedTask, ...]) -> str:
        header = _HEADER.format(sprint=self._sprint, frameworks=", ".join(FRAMEWORKS))
        return header + yaml.dump(
            [_shown(task) for task in plan],
            Dumper=_Dumper,
            sort_keys=False,
            allow_unicode=True,
            # Short lists on one line, as people write them.
            default_flow_style=None,
            width=_WIDTH,
        )

    def _read(self) -> tuple[PlannedTask, ...] | None:
        """The tasks in the file; None if nothing stands in it."""
        data = self.file.read_bytes()
        if len(data) > MAX_PLAN_BYTES:
            raise PlanProblem([f"it has {len(data)} bytes; at most {MAX_PLAN_BYTES} are allowed"])
        try:
            # Every field is text or a list of text: `no`, `1` and dates must stay what they are.
            raw = yaml.load(data.decode("utf-8"), Loader=yaml.BaseLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = f"line {mark.line + 1}: " if mark else ""
            raise PlanProblem([f"{line}{error.problem or error.context}"]) from error
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            raise PlanProblem([f"it is not YAML text: {error}"]) from error
        if raw in (None, "", []):
            return None
        if isinstance(raw, dict) and isinstance(raw.get("tasks"), list):
            raw = raw["tasks"]
        plan = parse_plan(raw, frameworks=FRAMEWORKS)
        self._refuse_agents_that_are_not_here(plan)
        return plan

    def _refuse_agents_that_are_not_here(self, plan: tuple[PlannedTask, ...]) -> None:
        for name in sorted({task.framework for task in plan if task.framework}):
            try:
                runner(self._project, name).check()
            except CaloronError as error:
                raise PlanProblem([f"framework {name}: {error}"]) from error

    def _open(self, before: str) -> None:
        """Let the person edit; a failed editor takes nothing with it."""
        argv = (*_editor(), str(self.file))
        # Ctrl-C is for the editor now; a handler of Python's is not passed on to it.
        old = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            code = subprocess.run(
                argv, stdout=None if is_terminal() else sys.stderr, check=False
            ).returncode
            why = f"ended with exit code {code}" if code else ""
        except OSError as error:
            why = f"cannot be started: {error.strerror}"
        finally:
            signal.signal(signal.SIGINT, old)
        if not why:
            return
        kept = ""
        if self.file.exists() and self.file.read_bytes() != before.encode():
            kept = f"; what you wrote is kept in {self.file}"
        else:
            self.forget()
        raise PreconditionFailed(
            f"the editor {shlex.join(argv[:-1])} {why}; the plan is as it was{kept}",
            hint="choose another with VISUAL or EDITOR",
        )

    def _again(self, problem: PlanProblem) -> bool:
        """Show what is wrong; whether the person wants to put it right."""
        if wants_json() or not is_terminal() or not sys.stdin.isatty():
            raise UsageError(
                "the edited plan cannot be run: " + "; ".join(problem.errors),
                hint=f"it is kept in {self.file}; edit it again to correct it",
            )
        _say("This plan cannot be run:")
        for error in problem.errors:
            _say(f"  {error}")
        if click.confirm("Edit it again?", default=True):
            return True
        _say(f"The plan is as it was; what you wrote is kept in {self.file}")
        return False


def _say(line: str) -> None:
    click.echo(printable(line), err=wants_json() or not is_terminal())


def _editor() -> tuple[str, ...]:
    for variable in ("VISUAL", "EDITOR"):
        try:
            words = shlex.split(os.environ.get(variable, ""))
        except ValueError as error:
            raise PreconditionFailed(
                f"{variable} cannot be read as a command: {error}", hint="correct it"
            ) from error
        if words:
            return tuple(words)
    for name in _EDITORS:
        if shutil.which(name):
            return (name,)
    raise PreconditionFailed("no editor was found", hint="name one with VISUAL or EDITOR")


def _shown(task: PlannedTask) -> dict[str, Any]:
    """A task with what people change first, and its longest text at the end."""
    fields = msgspec.to_builtins(task)
    prompt = fields.pop("agent_prompt")
    always = ("id", "title", "depends_on", "acceptance", "kind")
    shown = {name: value for name, value in fields.items() if value or name in always}
    return shown | {"agent_prompt": prompt}


class _Dumper(yaml.SafeDumper):
    """YAML in which a text of several lines looks like one."""


def _text_node(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text_node)
