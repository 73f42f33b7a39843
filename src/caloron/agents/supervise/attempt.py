"""The life of one attempt in its shim: lease, output, limits and result.

Standard library only, and little of it: one such process runs beside every agent.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from caloron.agents.supervise.child import GatedChild
from caloron.agents.supervise.processes import read_process
from caloron.agents.supervise.supervise import Limits, Supervision
from caloron.agents.supervise.transcript import Transcript, last_line, tail
from caloron.agents.supervise.watch import Watch
from caloron.answers import closing_words, failure_line
from caloron.errors import StoreError
from caloron.store.crash import crashpoint, this_process_is
from caloron.store.database import Database, load_statements
from caloron.store.files import write_atomic
from caloron.store.lock import boot_id
from caloron.store.queue import LeaseLost, begin_attempt, renew, write_result
from caloron.store.redact import Redactor
from caloron.store.wake import Wake

DONE, LOST, STOPPED = 0, 3, 4
#: A sandbox that is killed after so many interruptions of the same work has failed.
MOST_INTERRUPTIONS = 10

_SQL = load_statements(Path(__file__).parent / "sql" / "shim.sql")
_CHUNK = 1 << 16
_TERM_GRACE_S = 2.0


def clock() -> float:
    """Return seconds that also pass while the machine sleeps, as they do for a lease."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class AttemptSupervisor:
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
        self._child = GatedChild(spec, secrets.get("env", {}))
        watch = Watch(**spec["watch"]) if spec.get("watch") else None
        limits = Limits(spec["limit_s"], watch=watch, grace_s=_TERM_GRACE_S)
        self._supervision = Supervision(self._child, limits)
        redactor = Redactor(secrets.get("redact", ()))
        self._output = Transcript(run_dir / "output.log", spec["output_cap"], redactor)
        self._errors = Transcript(run_dir / "stderr.log", spec["output_cap"], redactor)
        #: The reason why we end the agent before it is done: LOST or STOPPED.
        self._ending = DONE
        #: The lease is renewed, and the agent's activity reported, at least so often.
        self._beat_s = min(self._lease_s / 3, spec.get("beat_s", self._lease_s))
        self._renewed_at = clock()
        self._renew_at: float = time.monotonic() + self._beat_s

    def run(self) -> int:
        self._listen_for_signals()
        self._write_identity()
        self._ledger = self._open_ledger()
        lease = self._ledger.row(_SQL["lease"], {"item": self._item})
        if lease is None or lease["token"] != self._token:
            return LOST
        self._spawn(lease["attempt"] + 1)
        crashpoint("shim.spawn")
        if self._commit("shim.begin", begin_attempt, self._lease_ms):
            self._supervision.wait(self._renew_if_due)
        else:
            self._ending = LOST
        sandbox_was_killed = not self._ending and self._child.sandbox_was_killed()
        self._supervision.drain()
        crashpoint("shim.exit")
        self._child.end_everybody()
        self._supervision.finish()
        if self._ending:
            return self._ending
        if sandbox_was_killed and self._may_be_repeated():
            # Not the agent's end: without a result, the attempt counts as interrupted.
            return LOST
        if not self._commit("shim.result", write_result, self._result()):
            return LOST
        crashpoint("shim.result")
        if self._spec["wake"]:
            Wake(Path(self._spec["wake"])).poke()
        return DONE

    def _may_be_repeated(self) -> bool:
        """True if others killed the sandbox; if that happens every time, it is a failure."""
        ours = self._supervision.over or self._supervision.timed_out
        return not ours and self._spec.get("interruptions", 0) < MOST_INTERRUPTIONS

    def _listen_for_signals(self) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: None)

        def stop() -> None:
            os.read(reader, _CHUNK)
            # An agent that has finished, or is being ended for a limit, gets its result.
            if not self._supervision.stopping and self._supervision.exit_code is None:
                self._stop(STOPPED)

        self._supervision.listen(reader, stop)

    def _write_identity(self) -> None:
        me = read_process(os.getpid())
        assert me is not None
        agent = self._child.process
        identity = {
            "pid": me.pid,
            "start_time": me.started,
            "boot_id": boot_id(),
            "agent_pid": agent.pid if agent else 0,
            "agent_start_time": agent.started if agent else 0,
        }
        # Not durable: after a reboot none of these processes exists.
        text = json.dumps(identity).encode()
        write_atomic(self._run_dir / "shim.json", text, durable=False)

    def _open_ledger(self) -> Database:
        path = Path(self._spec["ledger"])
        if not path.exists():
            raise StoreError(f"the ledger {path} is not there")
        ledger = Database(path)
        # Short waits, so that output and signals are handled in between.
        ledger.rows(f"PRAGMA busy_timeout = {min(self._lease_ms // 3, 2000)}")
        return ledger

    def _spawn(self, attempt: int) -> None:
        """Start the agent behind a gate that opens only once its id is written down."""
        output, errors = self._child.fork(attempt, self._lock, self._run_dir / "proxy.log")
        self._supervision.take_output(output, self._output)
        self._supervision.take_output(errors, self._errors)
        self._write_identity()
        self._child.open_gate()
        self._supervision.begin(tuple(self._spec["argv"]))

    def _stop(self, reason: int) -> None:
        self._ending = reason
        self._supervision.stop()

    def _renew_if_due(self, now: float) -> float:
        """Renew the lease if it is time; return the time of the next renewal."""
        if now < self._renew_at:
            return self._renew_at
        active = self._child.worked() or self._supervision.has_output
        try:
            done = self._try_to_write("shim.renew", partial(renew, active=active), self._lease_ms)
        except LeaseLost:
            self._renew_at = float("inf")
            self._stop(LOST)
            return self._renew_at
        self._renew_at = time.monotonic() + (self._beat_s if done else self._lease_s / 10)
        if done:
            self._supervision.has_output = False
        return self._renew_at

    def _result(self) -> dict[str, Any]:
        problem = self._output.problem or self._errors.problem
        # An agent ends with its feedback block, a verification with the tests that failed.
        summary = closing_words if self._spec.get("framework") else failure_line
        last = summary(tail(self._run_dir / "output.log"))
        return {
            "exit_code": self._supervision.exit_code,
            "timed_out": self._supervision.timed_out,
            "bytes": self._output.total + self._errors.total,
            "last_line": problem or last or last_line(self._run_dir / "stderr.log"),
            "over": self._supervision.over,
        }

    def _commit(self, name: str, write: Callable[..., object], value: object) -> bool:
        """Write to the ledger, retry while that fails; False once the lease is lost."""
        try:
            while not self._try_to_write(name, write, value):
                time.sleep(self._lease_s / 10)
        except LeaseLost:
            return False
        return True

    def _try_to_write(self, name: str, write: Callable[..., object], value: object) -> bool:
        """Write to the ledger; False if it did not work, and `LeaseLost` once it is too late."""
        began = clock()
        try:
            with self._ledger.transaction(name) as connection:
                write(connection, self._item, self._token, value)
        except StoreError as error:
            sys.stderr.write(f"{error}\n")
            sys.stderr.flush()
            if clock() - self._renewed_at > self._lease_s:
                raise LeaseLost from error
            return False
        self._renewed_at = began
        return True


def main(arguments: list[str]) -> int:
    run_dir, lock = Path(arguments[0]), int(arguments[1])
    os.set_inheritable(lock, False)
    spec = json.loads((run_dir / "spec.json").read_bytes())
    # Secrets are never written down: they come through a pipe.
    secrets_json = sys.stdin.buffer.read()
    if not secrets_json:
        # The process that started us died before it wrote them.
        return LOST
    secrets = json.loads(secrets_json)
    this_process_is(f"shim/{spec['item']}")
    crashpoint("shim.lock")
    return AttemptSupervisor(run_dir, spec, secrets, lock).run()
