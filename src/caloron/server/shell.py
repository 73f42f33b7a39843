"""What the shell does: starts agents, hears from them, tells about them, stops them."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from caloron.agents.processes import end_family
from caloron.errors import CaloronError
from caloron.git.mirror import Mirror
from caloron.graph.errors import StageFailed
from caloron.graph.stdlib.kv import KeyValues
from caloron.server.places import repository_in, worktrees_in
from caloron.server.registry import Agent, Registry
from caloron.server.requests import Heartbeat, Logs, Spawn, Stop
from caloron.server.settings import ShellSettings
from caloron.server.spawning import (
    harness_environment,
    mirror_of,
    prepare_workspace,
    reusable,
    start_harness,
)
from caloron.store import log

_STREAMS = {"output": "output.log", "harness": "harness.log"}
_OLD_FIELDS = ("agent_id", "sprint_id", "pid", "alive", "last_heartbeat")
_STARTED_AT_ONCE = 16
_LOOK_S = 0.05

Answer = dict[str, Any]


class Shell:
    """The shell without its HTTP: one method for each thing that can be asked."""

    def __init__(
        self,
        home: Path,
        settings: ShellSettings,
        *,
        unsandboxed: bool = False,
        tell: Callable[[str], object] = sys.stderr.write,
    ) -> None:
        self._folder = home / "shell"
        self._settings = settings
        self._unsandboxed = unsandboxed
        self.tell = tell
        self._registry = Registry(self._folder)
        self._values = KeyValues(home / "graph")
        self._places = threading.BoundedSemaphore(_STARTED_AT_ONCE)
        self._locks: defaultdict[tuple[str, str], threading.Lock] = defaultdict(threading.Lock)
        self._guard = threading.Lock()
        #: Where agents reach us; known once we listen.
        self.url = ""
        self._registry.forget_unfinished()
        self._registry.settle()

    def close(self) -> None:
        """Let go of the files; agents live on."""
        self._registry.close()

    def heartbeat(self, said: Heartbeat) -> Answer:
        at = self._registry.heard(said)
        key = f"caloron:{said.sprint_id}:agent:{said.agent_id}:last_heartbeat"
        try:
            self._values.set({"key": key, "value": at})
        except StageFailed as error:
            log.warning("cannot write a heartbeat for graphs", error=error, agent=said.agent_id)
            # For graphs that look there; what counts is in the registry.
            self.tell(f"{error}\n")
        return {"ok": True}

    def spawn(self, wanted: Spawn) -> Answer:
        """Start an agent; one that lives already is not started again."""
        if not self._places.acquire(blocking=False):
            return _no("too many agents are being started; ask again")
        try:
            with self._alone(wanted.sprint_id, wanted.agent_id):
                return self._spawn(wanted)
        except CaloronError as error:
            log.warning("an agent was not started", error=error, agent=wanted.agent_id)
            return _no(str(error))
        except OSError as error:
            log.warning("an agent was not started", error=error, agent=wanted.agent_id)
            return _no(f"the machine refused: {error}")
        finally:
            self._places.release()

    def _spawn(self, wanted: Spawn) -> Answer:
        known = self._registry.get(wanted.sprint_id, wanted.agent_id)
        if known is not None and known.process() is not None:
            if known.task == wanted.task_id:
                return {"ok": True, "pid": known.pid}
            return _no(f"agent {known.agent} is at work on task {known.task} (pid {known.pid})")
        root, taken = self._settings.root, list(self._registry.workspaces())
        repository = repository_in(root, wanted.repo, taken)
        base = worktrees_in(root, wanted.worktree_base, taken)
        workspace = base / f"{wanted.agent_id}-{wanted.sprint_id}"
        again = reusable(workspace, known)
        agent = self._registry.reserve(wanted.sprint_id, wanted.agent_id, wanted.task_id)
        try:
            mirror = mirror_of(self._folder, repository)
            begun = (
                known.base if again and known else self._prepare(agent, mirror, workspace, wanted)
            )
            env = harness_environment(
                wanted,
                agent,
                workspace,
                url=self.url,
                token=self._settings.token,
                mirror=mirror,
                base=begun,
            )
            pid = self._start(agent, env)
        except BaseException:
            self._registry.ended(agent, None)
            raise
        return {"ok": True, "pid": pid}

    def _prepare(self, agent: Agent, mirror: Mirror, workspace: Path, wanted: Spawn) -> str:
        """Make a workspace; one that stands there without its first commit was cut short."""
        self._registry.place(agent, workspace, "")
        begun = prepare_workspace(mirror, workspace, wanted)
        self._registry.place(agent, workspace, begun)
        return begun

    def _start(self, agent: Agent, env: dict[str, str]) -> int:
        run_dir = Path(agent.run_dir)
        started = start_harness(run_dir, env, unsandboxed=self._unsandboxed)
        self._registry.started(agent, started.process)
        started.open_gate()
        self.tell(f"agent {agent.agent} of {agent.sprint} runs as {started.process.pid}\n")

        def wait() -> None:
            code = started.child.wait()
            self._registry.ended(agent, code if code >= 0 else 128 - code)

        threading.Thread(target=wait, name=f"wait-{agent.agent}", daemon=True).start()
        return started.process.pid

    def status(self, *, details: bool = False) -> Answer:
        rows = self._registry.status()
        if details:
            return {"agents": rows}
        return {"agents": [{name: row[name] for name in _OLD_FIELDS} for row in rows]}

    def stop(self, wanted: Stop) -> Answer:
        """Ask an agent to save its work and end; after the grace, end it and all below it."""
        with self._alone(wanted.sprint_id, wanted.agent_id):
            known = self._registry.get(wanted.sprint_id, wanted.agent_id)
            if known is None:
                return _no(f"no agent {wanted.agent_id} of sprint {wanted.sprint_id} was started")
            process = known.process()
            if process is None:
                self._registry.settle()
                return {"ok": True, "pid": known.pid, "stopped": False}
            _end(known, wanted.grace_s)
            self._registry.settle()
            return {"ok": True, "pid": known.pid, "stopped": True}

    def logs(self, wanted: Logs) -> Answer:
        """A piece of what an agent said, from a byte on; `next_offset` is where the next begins."""
        known = self._registry.get(wanted.sprint_id, wanted.agent_id)
        if known is None:
            return _no(f"no agent {wanted.agent_id} of sprint {wanted.sprint_id} was started")
        alive = known.process() is not None
        try:
            with (Path(known.run_dir) / _STREAMS[wanted.stream]).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(min(wanted.offset, size))
                data = file.read(wanted.limit)
        except FileNotFoundError:
            size, data = 0, b""
        at = min(wanted.offset, size)
        return {
            "ok": True,
            "text": data.decode("utf-8", "replace"),
            "offset": at,
            "next_offset": at + len(data),
            "size": size,
            "alive": alive,
        }

    @contextmanager
    def _alone(self, sprint: str, agent: str) -> Iterator[None]:
        """One request at a time about one agent; others wait for nobody."""
        with self._guard:
            lock = self._locks[(sprint, agent)]
        with lock:
            yield


def _end(known: Agent, grace_s: float) -> None:
    process = known.process()
    if process is None:
        return
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        # Looked at again: only now is it certain that the handle is for this very process.
        if known.process() is None:
            return
        gone = select.poll()
        gone.register(handle, select.POLLIN)
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        if not gone.poll(grace_s * 1000):
            end_family(process.pid)
    except ProcessLookupError:
        return
    finally:
        os.close(handle)
    deadline = time.monotonic() + 5
    while known.process() is not None and time.monotonic() < deadline:
        time.sleep(_LOOK_S)


def _no(why: str) -> Answer:
    return {"ok": False, "error": why}
