"""The tick's decision: from the state and what was observed to the next state and what to do.

Pure: the same state, facts and time give the same result, in whatever order and how often the
facts are told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from caloron.domain import (
    baseline,
    commands,
    discarding,
    doubts,
    hindsight,
    landing,
    plan_issue,
    planning,
    progress,
    texts,
)
from caloron.domain.actions import AddLabel, ClosePull
from caloron.domain.facts import (
    EffectDone,
    EffectFailed,
    Fact,
    Halt,
    PlanApproved,
    PlanEdited,
    RunInterrupted,
    SprintDiscarded,
    WorkEnded,
)
from caloron.domain.joining import join
from caloron.domain.lane import advance_lane, advance_reviews, merge_failed
from caloron.domain.observations import Snapshot, merge_observations
from caloron.domain.reactions import bind, pull_closed, react
from caloron.domain.sprint import Role, Sprint, State, Task, branch_name, enter, pull_of
from caloron.domain.status import HOLDS_DEPENDENTS, SETTLED, Status
from caloron.domain.turn import Decision, Restless, RuleFailed, Turn, decide
from caloron.domain.verdicts import approved_head
from caloron.domain.workflow import open_pull, publish, work_ended

#: No sprint needs as many: each pass follows one more consequence, for all tasks at once.
_MAX_PASSES = 100


def evaluate(state: State, facts: Sequence[Fact], now: float) -> Decision:
    """Take in the facts and decide everything that can be decided now."""

    def rules(turn: Turn) -> None:
        turn.apply("", _take_in, facts)
        if turn.sprint.discarded:
            turn.apply("", progress.report)
            turn.apply("", discarding.advance)
            return
        if turn.sprint.phase in ("planning", "approval"):
            turn.apply("", planning.advance)
            turn.apply("", plan_issue.advance)
        if turn.sprint.phase in ("running", "retro", "ended") and turn.state.tasks:
            turn.apply("", _advance)
            turn.apply("", progress.report)
            turn.apply("", plan_issue.conclude)
            turn.apply("", _end_or_go_on)

    return decide(state, now, rules)


def _react_all(turn: Turn) -> None:
    for task in turn.state.tasks.values():
        turn.apply(task.id, react, task)


def _advance(turn: Turn) -> None:
    """Follow every consequence to its end, so that one call decides all that can be decided."""
    turn.apply("", join)
    # A rule may have failed for a task that has only just joined.
    turn.contain_failed()
    for _ in range(_MAX_PASSES):
        before = _copy(turn)
        for rule in RULES:
            turn.apply("", rule)
        if _copy(turn) == before:
            return
    _name_the_restless(turn)


def _copy(turn: Turn) -> tuple[int, int, Sprint, dict[str, Task]]:
    """Everything that a rule may change: a change without an action has consequences, too."""
    copy = msgspec.structs.replace
    tasks = {name: copy(task) for name, task in turn.state.tasks.items()}
    return len(turn.actions), len(turn.moves), copy(turn.sprint), tasks


def _name_the_restless(turn: Turn) -> None:
    """Find the rule that still changes something, and the first task that it changes, if any."""
    for rule in RULES:
        before = _copy(turn)
        turn.apply("", rule)
        if _copy(turn) != before:
            error = Restless(f"it does not come to rest in {_MAX_PASSES} passes")
            raise RuleFailed(_changed_since(turn, *before), rule.__name__, error)


def _changed_since(
    turn: Turn, acted: int, moved: int, _sprint: Sprint, tasks: dict[str, Task]
) -> str:
    changed = (name for name, task in turn.state.tasks.items() if task != tasks.get(name))
    done = (*turn.actions[acted:], *turn.moves[moved:])
    return next(changed, "") or next((one.task for one in done if hasattr(one, "task")), "")


def _take_in(turn: Turn, facts: Sequence[Fact]) -> None:
    """Snapshots and what people did, then ends of work, then refusals, in one fixed order."""
    ended = [f for f in facts if isinstance(f, WorkEnded)]
    interrupted = [f for f in facts if isinstance(f, RunInterrupted)]
    halts = [f for f in facts if isinstance(f, Halt)]
    done = [f for f in facts if isinstance(f, EffectDone)]
    failed = [f for f in facts if isinstance(f, EffectFailed)]
    seen = tuple(f for f in facts if isinstance(f, Snapshot))
    turn.state.objects = merge_observations(turn.state.objects, seen)
    for effect in sorted(done, key=lambda f: f.id):
        turn.apply(effect.task, _effect_done, effect)
    turn.apply("", bind)
    turn.apply("", _plan_judged, facts)
    if not turn.sprint.discarded:
        _react_all(turn)
    for end in sorted(ended, key=lambda f: (f.item, f.token)):
        turn.apply("", _account, end)
        turn.apply(end.task, _end_taken_in, end)
    for cut in sorted(interrupted, key=lambda f: (f.item, f.token)):
        turn.apply(cut.task, _run_interrupted, cut)
    for refusal in sorted(failed, key=lambda f: f.id):
        turn.apply(refusal.task, _effect_failed, refusal)
    for halt in halts:
        _halted(turn, halt)
    for unwanted in [f for f in facts if isinstance(f, SprintDiscarded)]:
        turn.apply("", discarding.discard, unwanted)


def _end_taken_in(turn: Turn, end: WorkEnded) -> None:
    if not end.task and end.role == "verify":
        baseline.ended(turn, end)
    elif end.role == "po":
        planning.po_ended(turn, end)
    elif end.role == "retro":
        hindsight.ended(turn, end)
    else:
        work_ended(turn, end)


def _halted(turn: Turn, halt: Halt) -> None:
    if turn.sprint.phase == "retro":
        hindsight.do_without(turn, halt.reason)
    else:
        turn.sprint.halted = halt.reason


def _plan_judged(turn: Turn, facts: Sequence[Fact]) -> None:
    """What a person said to a plan that waits: other tasks first, then yes."""
    if turn.sprint.phase != "approval":
        return
    if edits := [f for f in facts if isinstance(f, PlanEdited)]:
        planning.replace_plan(turn, max(edits, key=lambda f: f.at).tasks)
    if any(isinstance(f, PlanApproved) for f in facts):
        planning.run_plan(turn)


def _account(turn: Turn, run: WorkEnded | RunInterrupted) -> None:
    """Every run costs once, whether or not its result is still wanted."""
    task = turn.state.tasks.get(run.task)
    payer = task or turn.sprint
    if run.usage is None or payer.accounted.get(run.item, 0) >= run.token:
        return
    payer.accounted = payer.accounted | {run.item: run.token}
    turn.sprint.spent = turn.sprint.spent.plus(run.usage)
    if task:
        task.spent = task.spent.plus(run.usage)
    elif run.item.endswith("-retro"):
        turn.sprint.retro_spent = turn.sprint.retro_spent.plus(run.usage)


def _run_interrupted(turn: Turn, fact: RunInterrupted) -> None:
    _account(turn, fact)
    task = turn.state.tasks.get(fact.task)
    if task and task.work and task.work.item == fact.item and fact.session:
        task.session = fact.session


def _effect_done(turn: Turn, fact: EffectDone) -> None:
    task = turn.state.tasks.get(fact.task)
    if task is None:
        return
    if fact.kind == "merge":
        landing.merge_done(turn, task, fact)
    elif fact.kind == "revert":
        landing.revert_made(turn, task, fact)
    elif fact.kind == "reopen_issue":
        landing.issue_reopened(task)
        if task.status is Status.CANCELLED:
            task.closed_by_person = task.wanted_back = True
    elif fact.kind == "see_branch":
        commands.branch_was_seen(turn, task, fact.commit)
    elif fact.kind == "push":
        _pushed(turn, task, fact)


def _pushed(turn: Turn, task: Task, fact: EffectDone) -> None:
    if fact.key.startswith(f"push/{branch_name(task.id, turn.sprint.id)}/"):
        task.own_commit = fact.commit
    if fact.key.startswith(f"push/{task.branch}/") and task.pushed != task.head:
        task.pushed = fact.commit


def _effect_failed(turn: Turn, fact: EffectFailed) -> None:
    """A stale answer means look again; anything else that the forge refuses needs a person."""
    task = turn.state.tasks.get(fact.task)
    if task is None:
        return
    if fact.kind == "see_branch":
        commands.branch_was_seen(turn, task, "")
    if task.landed:
        landing.failed(turn, task, fact)
        return
    if fact.refusal == "elsewhere" and task.status not in SETTLED:
        # What is to become of it now, nobody but a person can know.
        held = task.work
        turn.stop_work(task, fact.message)
        turn.escalate(task, fact.message, held=held)
    elif not _still_wanted(turn, task, fact.key):
        _forget_merge(task, fact)
    elif (fact.refusal == "gone" and _branch_gone(turn, task)) or (
        fact.kind == "merge" and merge_failed(turn, task, fact)
    ):
        return
    elif fact.kind == "push" and fact.refusal == "stale_head":
        # A person moved the branch while our agent worked: theirs is the change now.
        pull = pull_of(turn.state, task)
        task.pushed = task.head = pull.head if pull else ""
    elif task.status is Status.ESCALATED:
        task.held_effects = tuple(sorted({*task.held_effects, fact.key}))
    elif fact.kind == "open_pull" and not task.head:
        # Its branch went away under it: there is nothing that a second try could open.
        again = turn.new_work(task, "implement")
        turn.escalate(task, f"the forge refused: {fact.message}", held=again)
    else:
        turn.stop_work(task, "the forge refused")
        said = fact.message if fact.refusal == "waiting" else f"the forge refused: {fact.message}"
        turn.escalate(task, said, held=None, effects=(fact.key,))


def _forget_merge(task: Task, fact: EffectFailed) -> None:
    """A person ended the pull request before our merge came: that is what counts."""
    if task.merging and fact.key.startswith(f"merge/{task.pull}/{task.merging}/"):
        task.merging = ""


def _branch_gone(turn: Turn, task: Task) -> bool:
    """A person deleted the branch; whether that decides what follows.

    It counts as closing its pull request, which most forges do by themselves a moment later.
    Without a pull request the change is pushed to a new branch at once.
    """
    if task.status is Status.ESCALATED or not task.head:
        return False
    pull = pull_of(turn.state, task)
    task.merging = ""
    if pull is None or pull.state != "open":
        publish(turn, task, task.head, again=True)
        return True
    key = f"close_pull/{turn.sprint.id}/{task.id}/{pull.number}-gone"
    turn.do(ClosePull(key=key, task=task.id, pull=pull.number))
    branch = task.branch
    pull_closed(turn, task, pull, f"the branch {branch} was deleted by a person")
    # Until it shows as closed, it is not one that was opened again.
    task.let_go = (*task.let_go, pull.number)
    return True


def _still_wanted(turn: Turn, task: Task, key: str) -> bool:
    """Whether the task cannot go on without this effect."""
    sprint, pull, head = turn.sprint.id, task.pull, task.head
    if task.status in (Status.DONE, Status.CANCELLED):
        return False
    if key == texts.issue_key(sprint, task.id):
        return task.issue is None
    if key == texts.pull_key(sprint, task.id, task.generation):
        started = task.status in (Status.IN_PROGRESS, Status.ESCALATED)
        return started and pull is None and task.work is None
    if key.startswith(f"push/{task.branch}/"):
        return key.endswith(f"/{head}") and task.pushed != head
    seen = pull_of(turn.state, task)
    if seen is not None and seen.state != "open":
        # A person ended the pull request: what follows from that is decided there.
        return False
    if key.startswith(f"merge/{pull}/{head}/"):
        return task.merging == head
    in_review = task.status in (Status.IN_REVIEW, Status.ESCALATED)
    return in_review and key.startswith(f"review/{pull}/{head}/")


def _hold_and_unblock(turn: Turn) -> None:
    """Dependents wait for Done, and are held while a dependency needs a person."""
    tasks = turn.state.tasks
    changed = True
    while changed:
        changed = False
        for task in tasks.values():
            before = task.status
            if before in (Status.PENDING, Status.READY, Status.BLOCKED):
                turn.apply(task.id, _place, task, [tasks[d] for d in task.plan.depends_on])
            changed = changed or task.status is not before


def _place(turn: Turn, task: Task, needs: list[Task]) -> None:
    holding = [n for n in needs if n.status in HOLDS_DEPENDENTS]
    if holding:
        reason = f"held by {', '.join(n.id for n in holding)}"
        if task.status is Status.READY:
            turn.move(task, Status.PENDING)
        turn.move(task, Status.BLOCKED, reason)
        return
    if task.status is Status.BLOCKED:
        turn.move(task, Status.PENDING, "no longer held")
    if task.status is Status.PENDING and all(n.status is Status.DONE for n in needs):
        turn.move(task, Status.READY, "dependencies are done" if needs else "")


def _start_ready(turn: Turn) -> None:
    """Start what is ready, the longest chain first, while slots are free.

    A change keeps its slot until it is approved: its review and its fixes must not wait for agents
    that begin others. Approved ones need no agent; there are at most as many of them as slots.
    A task whose issue is still being created keeps its place, and so its slot.
    """
    parallel = turn.sprint.parallel
    begun = [task for task in turn.state.tasks.values() if _moves_by_itself(turn, task)]
    unfinished = [task for task in begun if not approved_head(turn, task)]
    free = min(parallel - len(unfinished), 2 * parallel - len(begun))
    ready = [task for task in turn.state.tasks.values() if task.status is Status.READY]
    for task in sorted(ready, key=lambda t: -t.chain):
        if task.issue is None:
            free -= turn.has_effects(task)
        elif task.head:
            turn.move(task, Status.IN_PROGRESS, "goes on with what its branch has")
            if task.pull is None:
                open_pull(turn, task)
        elif free > 0:
            free -= 1
            turn.apply(task.id, _start, task)


def _moves_by_itself(turn: Turn, task: Task) -> bool:
    """Whether it was begun and comes to its end without a person and without the forge's CI.

    No rule leaves a task without work, effects and approval: a damaged state costs no slot.
    """
    if task.status not in (Status.IN_PROGRESS, Status.IN_REVIEW):
        return False
    if task.work or (task.waits and task.waits.head == task.head):
        return task.work is not None
    moves = turn.has_effects(task) or bool(approved_head(turn, task))
    return moves and not _waits_for_a_person(turn, task)


def _start(turn: Turn, task: Task) -> None:
    turn.move(task, Status.IN_PROGRESS)
    role: Role = "check" if task.plan.kind == "check" else "implement"
    turn.start(task, turn.new_work(task, role))
    if task.issue is not None:
        turn.do(
            AddLabel(
                key=f"label/{turn.sprint.id}/{task.id}/assigned",
                task=task.id,
                issue=task.issue,
                label="caloron:assigned",
            )
        )


def _waits_for_a_person(turn: Turn, task: Task) -> bool:
    """It is settled, or it could only be merged, and nothing is merged before a person acts."""
    held = task.status is Status.IN_REVIEW and not task.work and landing.is_stuck(turn.state)
    return task.status in SETTLED or held or doubts.waits_for_main(turn.sprint, task)


def _end_or_go_on(turn: Turn) -> None:
    """A sprint ends when no task can move without a person and nothing is left to tell."""
    phase = turn.sprint.phase
    settled = all(_waits_for_a_person(turn, t) for t in turn.state.tasks.values())
    left = [action for action in turn.actions if not hindsight.is_cancelled(action)]
    if settled and not left and not turn.state.open_effects:
        if phase != "ended":
            hindsight.begin_or_end(turn)
    elif phase in ("retro", "ended") and not settled:
        hindsight.go_back(turn)
    elif phase == "ended":
        # Somebody said something after the end: what follows from it is done before it ends again.
        enter(turn.sprint, "running")


#: One pass, in this order.
RULES: tuple[Callable[[Turn], None], ...] = (
    bind,
    _react_all,
    _hold_and_unblock,
    advance_reviews,
    advance_lane,
    _start_ready,
)
