"""The table of rules: what it says, and that the pages made from it are up to date."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from caloron.domain.model.status import Step
from caloron.domain.rules import workflow
from caloron.domain.rules.results import RESULTS, ResultRule

_SCRIPT = Path(__file__).parents[3] / "scripts" / "workflow.py"


def test_the_pages_about_the_workflow_are_made_from_the_table() -> None:
    spec = importlib.util.spec_from_file_location("workflow_page", _SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    assert not page.stale(), "run: python scripts/workflow.py"


@pytest.mark.parametrize("step", Step)
def test_every_step_can_be_reached_and_left(step: Step) -> None:
    rules: list[workflow.Rule | workflow.QueueRule | ResultRule]
    rules = [*workflow.PEOPLE, *workflow.DEPENDENCIES, *workflow.REVIEW, *RESULTS]
    rules += workflow.QUEUES
    # The answer of the forge to a merge is a fact.
    reported_by_forge = {Step.MERGED_UNVERIFIED}
    assert step in reported_by_forge or any(step in rule.then for rule in rules)
    if step is not Step.DONE:
        assert any(step in rule.steps and rule.then - {step} for rule in rules)
