"""One tick: load, poll the inbox, evaluate, health, decide, and one commit."""

from __future__ import annotations

from caloron.stages.context import TickContext
from caloron.stages.dag import dag_evaluate, execute_actions
from caloron.stages.forge import github_poll_events
from caloron.stages.sprint import (
    Saved,
    build_tick_output,
    load_tick_state,
    project_all_to_execute,
    project_health_to_intervention,
    project_poll_to_eval,
    save_tick_state,
)
from caloron.stages.supervisor import check_agent_health, decide_intervention


def run_tick(context: TickContext, sprint_id: str) -> Saved:
    """Run the stages in order, each fed only with what the ones before it gave."""
    tick = load_tick_state(context, sprint_id)
    facts = github_poll_events(tick)
    evaluated = dag_evaluate(project_poll_to_eval(tick, facts))
    results = check_agent_health(tick)
    supervised, interventions = decide_intervention(
        project_health_to_intervention(tick, evaluated, results)
    )
    executed = execute_actions(project_all_to_execute(evaluated, supervised))
    result = build_tick_output(tick, evaluated, supervised, interventions, executed)
    return save_tick_state(context, tick, result)
