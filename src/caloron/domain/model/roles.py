"""The roles of work, and the ids of its pieces. Standard library only, so that `why` starts fast.

A new role is one entry of `ROLES` and a prompt (`engine/runs/prepare.py`), and a rule that starts
its work. What follows from its end is the table in `domain/rules/results.py`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from caloron.domain.model.status import Step

#: `po` is the planner: ids of work, folders of runs, JSON output and `CALORON_ROLE` have had that
#: name since the first Caloron. People read and write `planner`.
Role = Literal["po", "implement", "review", "fix", "resolve", "check", "retro", "verify"]


def shown_role(role: str) -> str:
    """The name of a role for people."""
    return "planner" if role == "po" else role


def stored_role(name: str) -> str:
    """The role that a person names."""
    return "po" if name == "planner" else name


REVIEWER = "reviewer-1"
PLANNER = "planner-1"
ANALYST = "retro-1"

_TAKING_OVER = "the finished change is being checked and taken over"


class RoleSpec(NamedTuple):
    """The properties of a role."""

    #: What `why` shows while the work runs, and while its result is being taken in.
    running: str
    ended: str
    #: The step of a task while the work is queued or runs; a verification has several.
    step: Step | None = None
    #: The agent that works for all tasks; empty: the task's own agent, or none.
    shared_agent: str = ""
    #: An agent does the work; a verification needs none.
    needs_agent: bool = True
    #: The work leaves commits, and its roles share one conversation.
    writes_code: bool = False
    #: The answer of the agent is a verdict.
    gives_verdict: bool = False
    #: The work belongs to the sprint and to no task.
    of_sprint: bool = False
    #: Finish before starting: work that brings a started change to main goes first.
    priority: int = 1000
    #: `why` names the review round.
    shows_round: bool = False


ROLES: dict[Role, RoleSpec] = {
    "po": RoleSpec(
        "the planner is working", "the plan is being read", shared_agent=PLANNER, of_sprint=True
    ),
    "implement": RoleSpec(
        "an agent is writing the change", _TAKING_OVER, Step.IMPLEMENTING, writes_code=True
    ),
    "review": RoleSpec(
        "a reviewer is reading it",
        "the answer of the reviewer is being read",
        Step.REVIEWING,
        shared_agent=REVIEWER,
        gives_verdict=True,
        priority=3000,
        shows_round=True,
    ),
    "fix": RoleSpec(
        "an agent is fixing it",
        _TAKING_OVER,
        Step.FIXING,
        writes_code=True,
        priority=2000,
        shows_round=True,
    ),
    "resolve": RoleSpec(
        "an agent is resolving a conflict with main",
        _TAKING_OVER,
        Step.RESOLVING,
        writes_code=True,
        priority=2000,
    ),
    "check": RoleSpec(
        "an agent is checking",
        "the answer of the check is being read",
        Step.CHECKING,
        gives_verdict=True,
    ),
    "retro": RoleSpec(
        "a model is writing the retro",
        "the answer of the model is being read",
        shared_agent=ANALYST,
        of_sprint=True,
    ),
    "verify": RoleSpec(
        "its merged result is being verified",
        "the result of its verification is being read",
        needs_agent=False,
        priority=3000,
    ),
}

#: Roles whose work is done by an agent.
AGENT_ROLES: tuple[Role, ...] = tuple(role for role, spec in ROLES.items() if spec.needs_agent)
#: Work of agents that belongs to the sprint and to no task.
SPRINT_ROLES: tuple[Role, ...] = tuple(role for role, spec in ROLES.items() if spec.of_sprint)
#: The supervisor restarts agents of tasks that are silent for too long, and no others.
UNSUPERVISED_ROLES: frozenset[str] = frozenset(
    role for role, spec in ROLES.items() if spec.of_sprint or not spec.needs_agent
)
#: Roles that leave commits; they share one conversation.
CODE_ROLES: tuple[Role, ...] = tuple(role for role, spec in ROLES.items() if spec.writes_code)
#: Agents that work for all tasks, by their role.
SHARED_AGENTS: dict[Role, str] = {
    role: spec.shared_agent for role, spec in ROLES.items() if spec.shared_agent
}


class WorkId(NamedTuple):
    """The id of one piece of work: `<sprint>/<task>/<number>-<role>`.

    Work of the sprint itself has a name of its own in the place of the task.
    """

    sprint: str
    task: str
    number: int
    role: Role

    def __str__(self) -> str:
        return f"{self.sprint}/{self.task}/{self.name}"

    @property
    def name(self) -> str:
        """The id within its task."""
        return f"{self.number}-{self.role}"

    @property
    def spec(self) -> RoleSpec:
        return ROLES[self.role]

    @property
    def planned_task(self) -> str:
        """The task of the plan; empty for work of the sprint itself."""
        of_main = self.task == BASELINE and self.role == "verify"
        return "" if self.spec.of_sprint or of_main else self.task

    @property
    def agent(self) -> str:
        """The agent that does the work; empty: no agent does it."""
        return (self.spec.shared_agent or self.task) if self.spec.needs_agent else ""

    @classmethod
    def parse(cls, item: str) -> WorkId:
        """Read an id; `ValueError` if it is not one."""
        sprint, task, name = item.split("/")
        number, _, role = name.partition("-")
        if role not in ROLES:
            raise ValueError(f"unknown role in work id {item!r}")
        return cls(sprint, task, int(number), role)


#: In ids of verifications of main alone, this stands in the place of the task.
BASELINE = "baseline"


def is_work_id(item: str) -> bool:
    """True if an id of the queue or the event log names work of a sprint."""
    try:
        WorkId.parse(item)
    except ValueError:
        return False
    return True
