"""Does the work of the queue: claims it, starts a shim for it, and collects what it came to.

A worker owns no result: the shim holds the lease and writes the outcome, so an agent lives on
when this process dies, and the next engine waits for it and collects in the same way.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from caloron.agents import launch
from caloron.agents.workspaces import (
    hand_over,
    remove_unfinished,
    remove_workspace,
    salvage,
    seal,
    unresolved,
)
from caloron.domain.facts import WorkEnded
from caloron.domain.sprint import AGENT_ROLES, Role, Work
from caloron.engine.assignments import Assigner, Assignment
from caloron.engine.bell import Bell
from caloron.engine.runs import RunDirs, read_spec
from caloron.errors import CaloronError, StoreError
from caloron.git.mirror import Mirror
from caloron.ledger.ledger import start_of
from caloron.ledger.projects import Project
from caloron.ledger.work import Claimed, WorkQueue, result_of
from caloron.ports import Sandbox
from caloron.store import queue as store_queue

_ANSWER_TAIL = 16_384
_PLAN_LIMIT = 1 << 20
_BUNDLE_CAP = 512 << 20
_CHANGES: tuple[Role, ...] = ("implement", "fix", "resolve")
#: An attempt that is interrupted again and again waits before it is started once more.
_QUICK_RESTARTS = 3
_LONGEST_PAUSE_S = 30.0


class MergeNotMade(CaloronError):
    """A resolve round whose result would be in conflict again, for ever."""


class Workers:
    """One thread per piece of work in flight; each waits for its shim without using time."""

    def __init__(
        self,
        project: Project,
        queue: WorkQueue,
        assigner: Assigner,
        mirror: Mirror,
        sandbox: Sandbox,
        bell: Bell,
        *,
        parallel: int,
    ) -> None:
        self._project = project
        self._queue = queue
        self._assigner = assigner
        self._mirror = mirror
        self._sandbox = sandbox
        self._bell = bell
        self._parallel = parallel
        self.runs = RunDirs(project.runs)
        self._active: dict[tuple[str, int], threading.Thread] = {}
        self._preparing: set[tuple[str, int]] = set()
        self._lost: dict[str, int] = {}
        self._lock = threading.Lock()
        self._stopping = False

    def dispatch(self) -> None:
        """Start what the queue offers, within the limits."""
        if self._stopping:
            return
        for roles in (AGENT_ROLES, ("verify",)):
            while self._queue.has_pending():
                claimed = self._queue.claim(roles, self._parallel)
                if claimed is None:
                    break
                self._begin(claimed.item, claimed.token, claimed)

    def adopt(self) -> None:
        """Take up what an earlier engine left: wait for its live shims, collect its results."""
        held = {(lease.item, lease.token) for lease in self._queue.in_flight()}
        for item, token in self.runs.with_workspace(self._queue.sprint):
            if (item, token) not in held:
                # An engine that died right after taking a lease back did not stop its agent.
                launch.stop(self.runs.of(item, token))
                self._save_and_remove(item, token)
        for item, token in sorted(held):
            self._begin(item, token, None)

    def reconcile(self, *, grace: bool) -> None:
        """Stop agents whose lease is gone; take back leases that were not renewed."""
        leases = {(lease.item, lease.token): lease for lease in self._queue.in_flight()}
        with self._lock:
            active, preparing = set(self._active), set(self._preparing)
        for item, token in active - leases.keys():
            self._stop_later(item, token)
        for (item, token), lease in leases.items():
            if (item, token) in preparing:
                self._renew(item, token)
            elif grace or lease.result is not None or lease.expires_at >= lease.now_ms:
                continue
            elif self._queue.interrupt(item, token, "its lease was not renewed"):
                self._stop_later(item, token)

    def stop(self) -> None:
        """End all agents; their work is saved and their attempts count as interrupted."""
        self._stopping = True
        for lease in self._queue.in_flight():
            if lease.result is None:
                self._queue.interrupt(lease.item, lease.token, "the sprint was stopped")
                self._stop_later(lease.item, lease.token)
        while True:
            with self._lock:
                threads = list(self._active.values())
            if not threads:
                return
            for thread in threads:
                thread.join()

    def wait(self) -> None:
        """Let running work come to its end without starting more."""
        self._stopping = True
        with self._lock:
            threads = list(self._active.values())
        for thread in threads:
            thread.join()

    def _begin(self, item: str, token: int, claimed: Claimed | None) -> None:
        key = (item, token)
        thread = threading.Thread(
            target=self._attend, args=(item, token, claimed), name=f"work {item}", daemon=True
        )
        with self._lock:
            self._active[key] = thread
            if claimed:
                self._preparing.add(key)
        thread.start()

    def _stop_later(self, item: str, token: int) -> None:
        run_dir = self.runs.of(item, token)
        threading.Thread(target=launch.stop, args=(run_dir,), daemon=True).start()

    def _renew(self, item: str, token: int) -> None:
        """Preparing a large workspace takes its time; until a shim is there, the lease is ours."""
        try:
            with self._queue.ledger.db.transaction("renew") as connection:
                store_queue.renew(connection, item, token, self._queue.lease_ms, active=False)
        except store_queue.LeaseLost:
            return

    def _attend(self, item: str, token: int, claimed: Claimed | None) -> None:
        try:
            started = self._launch(claimed) if claimed else True
            if started:
                launch.wait_until_gone(self.runs.of(item, token))
                self._collect(item, token)
        except (StoreError, OSError) as error:
            self._bell.fault(error)
        except CaloronError as error:
            self._fault(item, token, error)
        except BaseException as error:  # noqa: BLE001 - handed to the loop, which stops with it
            self._bell.fault(error)
        finally:
            with self._lock:
                self._active.pop((item, token), None)
                self._preparing.discard((item, token))
            self._bell.ring()

    def _launch(self, claimed: Claimed) -> bool:
        """Prepare and start the shim; False if the work came to its end without one."""
        work = claimed.start.work
        run_dir = self.runs.of(claimed.item, claimed.token)
        self._pause_after_losses(claimed.item)
        remove_workspace(run_dir / "workspace")
        state = self._queue.ledger.state(self._queue.sprint)
        task = state.tasks.get(claimed.start.task)
        given = self._assigner.assign(state, task, work, run_dir)
        if not isinstance(given, Assignment):
            fact = WorkEnded(
                item=work.item,
                task=claimed.start.task,
                role=work.role,
                token=claimed.token,
                base=given.base,
                head=work.head,
                conflicts=given.conflicts,
            )
            self._queue.settle(fact, claimed.token)
            return False
        process = launch.start(run_dir, self._spec(claimed, given, run_dir))
        with self._lock:
            self._preparing.discard((claimed.item, claimed.token))
        process.wait()
        return True

    def _spec(self, claimed: Claimed, given: Assignment, run_dir: Path) -> dict[str, Any]:
        stdin = ""
        if given.stdin:
            file = run_dir / "prompt.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(given.stdin, "utf-8")
            stdin = str(file)
        return {
            "ledger": str(self._project.ledger),
            "item": claimed.item,
            "token": claimed.token,
            "lease_ms": self._queue.lease_ms,
            # A busy agent must not look silent only because its shim tells so too rarely.
            "beat_s": self._project.config.stall_threshold_m * 60 / 4,
            "argv": list(given.argv),
            "env": given.env,
            "cwd": str(given.cwd),
            "stdin": stdin,
            "output_cap": self._project.config.output_cap_mb << 20,
            "limit_s": given.limit_s,
            "wake": str(self._project.wake),
            "base": given.base,
            "merges": given.merges,
            "conflicts": list(given.conflicts),
        }

    def _pause_after_losses(self, item: str) -> None:
        losses = self._lost.get(item, 0) - _QUICK_RESTARTS
        if losses > 0:
            time.sleep(min(2.0**losses, _LONGEST_PAUSE_S))

    def _collect(self, item: str, token: int) -> None:
        """Take in what an attempt left, whoever started it."""
        run_dir = self.runs.of(item, token)
        launch.reap(run_dir)
        lease = self._queue.lease(item)
        if lease is None or lease.token != token:
            self._save_and_remove(item, token)
            return
        result = result_of(lease)
        if result is None:
            self._lost[item] = self._lost.get(item, 0) + 1
            self._save_and_remove(item, token)
            self._queue.interrupt(item, token, "the attempt was interrupted")
            return
        self._lost.pop(item, None)
        start = start_of(lease.payload)
        fact = self._outcome(start.task, start.work, token, result, run_dir)
        if self._queue.settle(fact, token):
            remove_workspace(run_dir / "workspace")
        else:
            self._save_and_remove(item, token)

    def _outcome(
        self, task: str, work: Work, token: int, result: dict[str, Any], run_dir: Path
    ) -> WorkEnded:
        spec = read_spec(run_dir)
        conflicts: tuple[str, ...] = ()
        head = work.head or str(spec.get("base", ""))
        if work.role in _CHANGES:
            head, conflicts = self._take_commits(task, work, token, spec, run_dir)
        return WorkEnded(
            item=work.item,
            task=task,
            role=work.role,
            token=token,
            exit_code=int(result.get("exit_code", 0)),
            timed_out=bool(result.get("timed_out", False)),
            last_line=str(result.get("last_line", "")),
            answer=self._answer(work.role, run_dir),
            head=head,
            base=str(spec.get("base", "")),
            conflicts=conflicts,
            log=str(run_dir / "output.log") if work.role == "verify" else "",
        )

    def _answer(self, role: Role, run_dir: Path) -> str:
        if role == "po":
            return launch.read_all(run_dir, _PLAN_LIMIT)
        return launch.read_output(run_dir, _ANSWER_TAIL) if role in ("review", "check") else ""

    def _take_commits(
        self, task: str, work: Work, token: int, spec: dict[str, Any], run_dir: Path
    ) -> tuple[str, tuple[str, ...]]:
        """Commit what the agent left, and bring its commits into our own repository."""
        workspace = run_dir / "workspace"
        left = unresolved(workspace, tuple(spec.get("conflicts", ())))
        if left:
            return work.head, left
        title = self._queue.ledger.state(self._queue.sprint).tasks[task].plan.title
        what = title if work.role == "implement" else f"{title} ({work.role})"
        message = f"{what}\n\nTask: {task}\nAgent: caloron-agent-{task}\n"
        seal(workspace, self._sandbox, message, self._assigner.identity)
        head = hand_over(
            workspace,
            self._sandbox,
            self._mirror,
            base=spec["base"],
            ref=f"refs/caloron/work/{work.item}/{token}",
            bundle=run_dir / "work.bundle",
            cap_bytes=_BUNDLE_CAP,
        )
        merged = spec.get("merges", "")
        if merged and not self._mirror.is_ancestor(merged, head):
            raise MergeNotMade(f"the {work.role} round of {task} did not merge main in")
        return head, ()

    def _save_and_remove(self, item: str, token: int) -> None:
        """Never lose an agent's work: what is in the workspace goes to a salvage ref first."""
        run_dir = self.runs.of(item, token)
        workspace, base = run_dir / "workspace", read_spec(run_dir).get("base", "")
        remove_unfinished(workspace)
        if not workspace.exists():
            return
        handed_over = self._mirror.has(f"refs/caloron/work/{item}/{token}")
        if base and item.rsplit("-", 1)[-1] in _CHANGES and not handed_over:
            ref = f"refs/salvage/{item}/{token}"
            try:
                commit = salvage(workspace, self._sandbox, self._mirror, ref, base)
            except CaloronError as error:
                self._queue.note(
                    "salvage_failed", item, {"kept": str(workspace), "why": str(error)}
                )
                return
            if commit:
                self._queue.note("work_salvaged", item, {"ref": ref, "commit": commit})
        remove_workspace(workspace)

    def _fault(self, item: str, token: int, error: CaloronError) -> None:
        """Something of ours failed around the agent: the task is told, and tries once more."""
        lease = self._queue.lease(item)
        if lease is None or lease.token != token:
            return
        start = start_of(lease.payload)
        fact = WorkEnded(
            item=item,
            task=start.task,
            role=start.work.role,
            token=token,
            fault=str(error),
        )
        self._queue.settle(fact, token)
