"""One attempt of an agent, as its shim sees it through: lease, output, limits and result.

Standard library only, and little of it: one such process runs beside every agent.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from caloron.agents.child import Child
from caloron.agents.processes import Process, boot_id, look
from caloron.agents.transcript import Transcript, last_line, tail
from caloron.agents.watch import Watch
from caloron.answers import closing_words
from caloron.errors import StoreError
from caloron.failures import failure_line
from caloron.store.crash import crashpoint, this_process_is
from caloron.store.database import Database
from caloron.store.files import write_atomic
from caloron.store.queue import LeaseLost, begin_attempt, renew, write_result
from caloron.store.redact import RedactingStream, Redactor
from caloron.store.statements import load_statements

DONE, LOST, STOPPED = 0, 3, 4
#: A sandbox that is killed after as many interruptions of the same work has failed.
MOST_INTERRUPTIONS = 10

_SQL = load_statements(Path(__file__).parent / "sql" / "shim.sql")
_CHUNK = 1 << 16
_TERM_GRACE_S = 2.0
_KILL_AGAIN_S = 0.2
_DRAIN_S = 0.3


def clock() -> float:
    """Seconds that also pass while the machine sleeps, as they do for a lease."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Shim:
    """One attempt: from a checked lease to a fenced result."""

    def __init__(
        self, run_dir: Path, spec: dict[str, Any], secrets: dict[str, Any], lock: int
    ) -> None:
        self._run_dir = run_dir
        self._spec = spec
        self._lock = lock
        self._item: str = spec["item"]
        self._token: int = spec["token"]
        self._lease_ms: int = spec["lease_ms"]
        self._lease_s = self._lease_ms / 1000
        self._child = Child(spec, secrets.get("env", {}))
        self._redactor = Redactor(secrets.get("redact", ()))
        self._watch = Watch(**spec["watch"]) if spec.get("watch") else None
        self._output = Transcript(run_dir / "output.log", spec["output_cap"])
        self._errors = Transcript(run_dir / "stderr.log", spec["output_cap"])
        self._selector = selectors.DefaultSelector()
        self._pipes: dict[int, Callable[[], None]] = {}
        self._exit_code: int | None = None
        #: Why the agent is being ended: an exit code of ours, or DONE when it is over a limit.
        self._ending: int | None = None
        self._timed_out = False
        self._sandbox_killed = False
        #: The limit that the agent was over, in one line.
        self._over = ""
        self._limit_at = self._kill_at = float("inf")
        #: How often the lease is renewed and the agent's activity told; never too late for either.
        self._beat_s = min(self._lease_s / 3, spec.get("beat_s", self._lease_s))
        self._renewed_at = clock()
        self._renew_at = time.monotonic() + self._beat_s
        self._heard = False

    def run(self) -> int:
        self._listen_for_signals()
        self._say_who_we_are()
        self._ledger = self._open_ledger()
        lease = self._ledger.row(_SQL["lease"], {"item": self._item})
        if lease is None or lease["token"] != self._token:
            return LOST
        self._spawn(lease["attempt"] + 1)
        crashpoint("shim.spawn")
        if self._commit("shim.begin", self._begin):
            self._attend()
        else:
            self._ending = LOST
        self._drain()
        crashpoint("shim.exit")
        self._child.end_everybody()
        self._finish_output()
        if self._ending:
            return self._ending
        if self._was_interrupted():
            # Not the agent's end: without a result, the attempt counts as interrupted.
            return LOST
        if not self._commit("shim.result", self._write_result):
            return LOST
        crashpoint("shim.result")
        self._wake_engine()
        return DONE

    def _was_interrupted(self) -> bool:
        """Whether others killed the sandbox; if that happens every time, it is a failure."""
        ours = self._over or self._timed_out
        before: int = self._spec.get("interruptions", 0)
        return self._sandbox_killed and not ours and before < MOST_INTERRUPTIONS

    def _listen_for_signals(self) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: None)

        def told_to_stop() -> None:
            os.read(reader, _CHUNK)
            # What an agent has finished is worth its result.
            if self._ending is None and self._exit_code is None:
                self._stop(STOPPED)

        self._selector.register(reader, selectors.EVENT_READ, told_to_stop)

    def _say_who_we_are(self) -> None:
        me = look(os.getpid())
        assert me is not None
        agent = self._child.process
        identity = {
            "pid": me.pid,
            "start_time": me.started,
            "boot_id": boot_id(),
            "agent_pid": agent.pid if agent else 0,
            "agent_start_time": agent.started if agent else 0,
        }
        # No process of this boot is looked for in the next one.
        text = json.dumps(identity).encode()
        write_atomic(self._run_dir / "shim.json", text, durable=False)

    def _open_ledger(self) -> Database:
        path = Path(self._spec["ledger"])
        if not path.exists():
            raise StoreError(f"the ledger {path} is not there")
        ledger = Database(path)
        # Short waits, so that output and signals are attended to in between.
        ledger.rows(f"PRAGMA busy_timeout = {min(self._lease_ms // 3, 2000)}")
        return ledger

    def _spawn(self, attempt: int) -> None:
        """Start the agent behind a gate that opens only once its id is written down."""
        log = str(self._run_dir / "proxy.log")
        output, errors = self._child.start(attempt, self._lock, log)
        agent = self._child.process
        assert agent is not None
        self._keep(output, self._output)
        self._keep(errors, self._errors)
        self._await(agent)
        self._say_who_we_are()
        self._child.open_gate()
        if self._watch:
            self._watch.follow(agent.pid, self._spec["argv"])
            alarm = self._watch.ended_by_kernel
            self._selector.register(self._watch.alarm, selectors.EVENT_READ, alarm)
        self._limit_at = time.monotonic() + self._spec["limit_s"]

    def _await(self, agent: Process) -> None:
        ended = os.pidfd_open(agent.pid)

        def collect() -> None:
            self._selector.unregister(ended)
            code = os.waitstatus_to_exitcode(os.waitpid(agent.pid, 0)[1])
            self._exit_code = code if code >= 0 else 128 - code
            if self._watch and self._ending is None:
                self._over = self._watch.ended_by_kernel()
            self._sandbox_killed = self._child.sandbox_was_killed(code)

        self._selector.register(ended, selectors.EVENT_READ, collect)

    def _keep(self, handle: int, transcript: Transcript) -> None:
        """Write down what comes from a stream, without the secrets in it."""
        stream = RedactingStream(self._redactor)
        os.set_blocking(handle, False)

        def read() -> None:
            try:
                data = os.read(handle, _CHUNK)
            except BlockingIOError:
                return
            if data:
                transcript.add(stream.feed(data))
                self._heard = True
            else:
                self._selector.unregister(handle)
                os.close(handle)
                self._pipes.pop(handle)()

        self._selector.register(handle, selectors.EVENT_READ, read)
        self._pipes[handle] = lambda: transcript.add(stream.finish())

    def _attend(self) -> None:
        """Until the agent has ended: take its output, renew the lease, keep its limits."""
        while self._exit_code is None:
            now = time.monotonic()
            if now >= self._renew_at:
                self._renew()
            if self._ending is None:
                self._keep_limits(now)
            if now >= self._kill_at:
                self._child.kill()
                self._kill_at = now + _KILL_AGAIN_S
            due = min(self._renew_at, self._limit_at, self._kill_at, self._look_at())
            for key, _ in self._selector.select(max(due - time.monotonic(), 0)):
                key.data()

    def _look_at(self) -> float:
        watched = self._watch and self._ending is None
        return self._watch.due_at if self._watch and watched else float("inf")

    def _keep_limits(self, now: float) -> None:
        if now >= self._limit_at:
            self._timed_out = True
            self._stop(DONE)
        elif now >= self._look_at() and self._watch:
            self._over = self._watch.look(self._child.family())
            if self._over:
                # It gets no time to go on over its limit.
                self._stop(DONE)
                self._kill_at = now

    def _drain(self) -> None:
        """Take what the agent printed last, but do not wait for a child that keeps the pipe."""
        until = time.monotonic() + _DRAIN_S
        while self._pipes and (left := until - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                key.data()

    def _finish_output(self) -> None:
        self._drain()
        for rest in self._pipes.values():
            rest()
        self._output.finish()
        self._errors.finish()

    def _stop(self, reason: int) -> None:
        self._ending = reason
        self._limit_at = float("inf")
        if reason == LOST:
            self._renew_at = float("inf")
        if self._child.process is not None:
            self._child.terminate()
        self._kill_at = time.monotonic() + _TERM_GRACE_S

    def _begin(self, connection: sqlite3.Connection) -> None:
        begin_attempt(connection, self._item, self._token, self._lease_ms)

    def _renew(self) -> None:
        active = self._child.worked() or self._heard
        began = clock()
        try:
            with self._ledger.transaction("shim.renew") as connection:
                renew(connection, self._item, self._token, self._lease_ms, active=active)
        except LeaseLost:
            self._stop(LOST)
        except StoreError as error:
            self._complain(error)
            if clock() - self._renewed_at > self._lease_s:
                self._stop(LOST)
            else:
                self._renew_at = time.monotonic() + self._lease_s / 10
        else:
            self._renewed_at = began
            self._renew_at = time.monotonic() + self._beat_s
            self._heard = False

    def _write_result(self, connection: sqlite3.Connection) -> None:
        problem = self._output.problem or self._errors.problem
        output = self._run_dir / "output.log"
        # An agent ends with its feedback block, a verification with the tests that failed.
        words = closing_words if self._spec.get("framework") else failure_line
        last = words(tail(output))
        last = last or last_line(self._run_dir / "stderr.log")
        result = {
            "exit_code": self._exit_code,
            "timed_out": self._timed_out,
            "bytes": self._output.total + self._errors.total,
            "last_line": problem or last,
            "over": self._over,
        }
        write_result(connection, self._item, self._token, result)

    def _commit(self, name: str, write: Callable[[sqlite3.Connection], None]) -> bool:
        """Write to the ledger, again if it cannot be written now; False once the lease is lost."""
        while True:
            began = clock()
            try:
                with self._ledger.transaction(name) as connection:
                    write(connection)
            except LeaseLost:
                return False
            except StoreError as error:
                self._complain(error)
                if clock() - self._renewed_at > self._lease_s:
                    return False
                time.sleep(self._lease_s / 10)
            else:
                self._renewed_at = began
                return True

    def _wake_engine(self) -> None:
        if not self._spec["wake"]:
            return
        try:
            handle = os.open(self._spec["wake"], os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            # No reader, or no pipe: the engine looks at the ledger when it starts.
            return
        try:
            os.write(handle, b".")
        except (BlockingIOError, BrokenPipeError):
            return
        finally:
            os.close(handle)

    def _complain(self, error: StoreError) -> None:
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()


def main(arguments: list[str]) -> int:
    run_dir, lock = Path(arguments[0]), int(arguments[1])
    os.set_inheritable(lock, False)
    spec = json.loads((run_dir / "spec.json").read_bytes())
    # What must never be written down comes by a pipe.
    whispered = sys.stdin.buffer.read()
    if not whispered:
        # Whoever started us died before it could tell.
        return LOST
    secrets = json.loads(whispered)
    this_process_is(f"shim/{spec['item']}")
    crashpoint("shim.lock")
    return Shim(run_dir, spec, secrets, lock).run()
