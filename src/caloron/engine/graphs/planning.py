"""Plans a sprint with a composition: the same plan, validated the same way, as one from a file.

The run is durable under a name that follows from what is planned. Nothing is recorded for the
sprint before its plan is valid; a process that was killed while planning lost nothing, because the
same command goes on at the first stage that has not answered.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from caloron.agents.clis.registry import FRAMEWORKS
from caloron.domain.compat.plan_forms import Plan, parse_plan_output
from caloron.domain.model.plan import PlanProblem
from caloron.engine.graphs.runtime import GraphRuntime, RunOptions
from caloron.engine.runs.runtime import known_secrets
from caloron.engine.traces import new_run_id
from caloron.errors import UsageError
from caloron.graph.json_text import canonical, sha256
from caloron.graph.prepare import Prepared, prepare
from caloron.graph.runtime.run import RunLimits
from caloron.ledger.projects import Project
from caloron.store.redact import Redactor

#: These choose the model: another model makes it another run.
_ASKED = ("CALORON_LLM_PROVIDER", "CALORON_LLM_MODEL", "CALORON_LLM_BASE_URL")


class Planning(msgspec.Struct, frozen=True, kw_only=True):
    """A composition that is about to plan a sprint, checked and with its input."""

    #: As the user named it.
    name: str
    at: GraphRuntime
    prepared: Prepared
    value: Any
    run_id: str
    seconds: float

    def run(self, *, durable: bool) -> Plan:
        """Return the valid plan of the graph; `GraphError` or `UsageError` if it gives none."""
        options = RunOptions(
            run_id=self.run_id if durable else new_run_id(),
            durable=durable,
            # Failed calls are repeated; answered calls are not.
            retry_failed=durable,
            limits=RunLimits(run_seconds=self.seconds),
        )
        output = self.at.run(self.prepared, self.value, options).output
        try:
            return parse_plan_output(output, frameworks=FRAMEWORKS)
        except PlanProblem as problem:
            if durable:
                # Kept, it would be the answer to every later try.
                self.at.forget(self.run_id)
            raise UsageError(
                f"the plan of the graph {self.name} cannot be run: " + "; ".join(problem.errors),
                hint="correct the graph, or run it again; nothing was started",
            ) from problem


def planning(
    at: GraphRuntime,
    name: str,
    text: bytes,
    project: Project,
    goal: str,
    *,
    number: int,
    agents: int,
    more: dict[str, Any],
) -> Planning:
    """Check a composition and put its input together; nothing is run yet."""
    prepared = prepare(text, at.catalogue)
    value = {
        "goal": goal,
        "constraints": "",
        # The names that the stages of a kick-off use.
        "brief": goal,
        "host": "local",
        "repo": project.name,
        "num_agents": agents,
    } | more
    # It is journaled, and models read it.
    value = _without_secrets(value, Redactor(known_secrets(project.config)))
    asked = [os.environ.get(variable, "") for variable in _ASKED]
    key = canonical([project.name, number, prepared.composition_id, value, asked])
    return Planning(
        name=name,
        at=at,
        prepared=prepared,
        value=value,
        run_id=f"plan-{project.name[:24]}-{number}-{sha256(key)[:16]}",
        seconds=project.config.planner_timeout_s,
    )


def _without_secrets(value: dict[str, Any], redactor: Redactor) -> dict[str, Any]:
    clean: dict[str, Any] = msgspec.json.decode(redactor.data(msgspec.json.encode(value)))
    return clean
