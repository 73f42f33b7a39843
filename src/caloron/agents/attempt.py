"""One attempt of an agent, as its shim sees it through: lease, output, time limit and result.

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
from typing import Any, NoReturn

from caloron.agents.processes import Process, boot_id, end_family, family, living, look, send
from caloron.agents.transcript import Transcript, last_line
from caloron.errors import StoreError
from caloron.store.crash import crashpoint, this_process_is
from caloron.store.database import Database
from caloron.store.files import write_atomic
from caloron.store.queue import LeaseLost, begin_attempt, renew, write_result
from caloron.store.statements import load_statements

DONE, LOST, STOPPED = 0, 3, 4

_SQL = load_statements(Path(__file__).parent / "sql" / "shim.sql")
_CHUNK = 1 << 16
_TERM_GRACE_S = 2.0
_KILL_AGAIN_S = 0.2
_DRAIN_S = 0.3
_ROUNDS_OF_KILLING = 10
_PR_SET_CHILD_SUBREAPER = 36


def clock() -> float:
    """Seconds that also pass while the machine sleeps, as they do for a lease."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _adopt_orphans() -> None:
    """Be the parent of everybody below whose own parent ends; otherwise nobody finds them."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _descendants() -> dict[int, Process]:
    me = os.getpid()
    return {pid: process for pid, process in family(me).items() if pid != me}


class Shim:
    """One attempt: from a checked lease to a fenced result."""

    def __init__(self, run_dir: Path, spec: dict[str, Any], lock: int) -> None:
        self._run_dir = run_dir
        self._spec = spec
        self._lock = lock
        self._item: str = spec["item"]
        self._token: int = spec["token"]
        self._lease_ms: int = spec["lease_ms"]
        self._lease_s = self._lease_ms / 1000
        self._output = Transcript(run_dir / "output.log", spec["output_cap"])
        self._errors = Transcript(run_dir / "stderr.log", spec["output_cap"])
        self._selector = selectors.DefaultSelector()
        self._agent: Process | None = None
        self._exit_code: int | None = None
        #: Why the agent is being ended: an exit code of ours, or DONE when its time is up.
        self._ending: int | None = None
        self._timed_out = False
        self._limit_at = self._kill_at = float("inf")
        #: How often the lease is renewed and the agent's activity told; never too late for either.
        self._beat_s = min(self._lease_s / 3, spec.get("beat_s", self._lease_s))
        self._renewed_at = clock()
        self._renew_at = time.monotonic() + self._beat_s
        self._heard = False
        self._kin: dict[int, Process] = {}

    def run(self) -> int:
        self._listen_for_signals()
        self._say_who_we_are()
        self._ledger = self._open_ledger()
        lease = self._ledger.row(_SQL["lease"], {"item": self._item})
        if lease is None or lease["token"] != self._token:
            return LOST
        agent = self._spawn(lease["attempt"] + 1)
        crashpoint("shim.spawn")
        if self._commit("shim.begin", self._begin):
            self._attend()
        else:
            self._ending = LOST
        self._drain()
        crashpoint("shim.exit")
        self._end_everybody(agent)
        self._drain()
        self._output.finish()
        self._errors.finish()
        if self._ending:
            return self._ending
        if not self._commit("shim.result", self._write_result):
            return LOST
        crashpoint("shim.result")
        self._wake_engine()
        return DONE

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
        agent = self._agent
        identity = {
            "pid": me.pid,
            "start_time": me.started,
            "boot_id": boot_id(),
            "agent_pid": agent.pid if agent else 0,
            "agent_start_time": agent.started if agent else 0,
        }
        write_atomic(self._run_dir / "shim.json", json.dumps(identity).encode())

    def _open_ledger(self) -> Database:
        path = Path(self._spec["ledger"])
        if not path.exists():
            raise StoreError(f"the ledger {path} is not there")
        ledger = Database(path)
        # Short waits, so that output and signals are attended to in between.
        ledger.rows(f"PRAGMA busy_timeout = {min(self._lease_ms // 3, 2000)}")
        return ledger

    def _spawn(self, attempt: int) -> Process:
        """Start the agent behind a gate that opens only once its id is written down."""
        stdin = os.open(self._spec["stdin"] or os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        gate, opener = os.pipe()
        output, output_end = os.pipe()
        errors, errors_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(opener)
            os.close(self._lock)
            self._become_agent(gate, (stdin, output_end, errors_end), attempt)
        for handle in (stdin, gate, output_end, errors_end):
            os.close(handle)
        _adopt_orphans()
        self._agent = agent = look(pid)
        assert agent is not None
        self._watch(agent, output, errors)
        self._say_who_we_are()
        os.write(opener, b"!")
        os.close(opener)
        self._limit_at = time.monotonic() + self._spec["limit_s"]
        return agent

    def _become_agent(self, gate: int, streams: tuple[int, int, int], attempt: int) -> NoReturn:
        argv = self._spec["argv"]
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            if os.read(gate, 1) != b"!":
                os._exit(127)
            for target, source in enumerate(streams):
                os.dup2(source, target)
            os.chdir(self._spec["cwd"])
            os.execvpe(argv[0], argv, {**self._spec["env"], "CALORON_ATTEMPT": str(attempt)})
        except OSError as error:
            os.write(2, f"cannot start {argv[0]}: {error.strerror}\n".encode())
        finally:
            os._exit(127)

    def _watch(self, agent: Process, output: int, errors: int) -> None:
        for handle, transcript in ((output, self._output), (errors, self._errors)):
            os.set_blocking(handle, False)
            self._selector.register(handle, selectors.EVENT_READ, self._reader(handle, transcript))
        ended = os.pidfd_open(agent.pid)

        def collect() -> None:
            self._selector.unregister(ended)
            code = os.waitstatus_to_exitcode(os.waitpid(agent.pid, 0)[1])
            self._exit_code = code if code >= 0 else 128 - code

        self._selector.register(ended, selectors.EVENT_READ, collect)
        self._pipes = {output, errors}

    def _reader(self, handle: int, transcript: Transcript) -> Callable[[], None]:
        def read() -> None:
            try:
                data = os.read(handle, _CHUNK)
            except BlockingIOError:
                return
            if data:
                transcript.add(data)
                self._heard = True
            else:
                self._selector.unregister(handle)
                os.close(handle)
                self._pipes.discard(handle)

        return read

    def _attend(self) -> None:
        """Until the agent has ended: take its output, renew the lease, keep its time."""
        while self._exit_code is None:
            now = time.monotonic()
            if now >= self._renew_at:
                self._renew()
            if now >= self._limit_at and self._ending is None:
                self._timed_out = True
                self._stop(DONE)
            if now >= self._kill_at:
                self._signal_family(signal.SIGKILL)
                self._kill_at = now + _KILL_AGAIN_S
            due = min(self._renew_at, self._limit_at, self._kill_at)
            for key, _ in self._selector.select(max(due - time.monotonic(), 0)):
                key.data()

    def _drain(self) -> None:
        """Take what the agent printed last, but do not wait for a child that keeps the pipe."""
        until = time.monotonic() + _DRAIN_S
        while self._pipes and (left := until - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                key.data()

    def _stop(self, reason: int) -> None:
        self._ending = reason
        self._limit_at = float("inf")
        if reason == LOST:
            self._renew_at = float("inf")
        self._signal_family(signal.SIGTERM)
        self._kill_at = time.monotonic() + _TERM_GRACE_S

    def _signal_family(self, number: int) -> None:
        if self._agent is not None:
            self._remember(_descendants())
            for process in self._kin.values():
                send(process, number)

    def _end_everybody(self, agent: Process) -> None:
        """Nobody of the agent's is left when its result is told: also who hid in a session."""
        for _ in range(_ROUNDS_OF_KILLING):
            self._remember(_descendants())
            if not self._kin or not end_family(agent.pid, self._kin.values()):
                return

    def _remember(self, kin: dict[int, Process]) -> None:
        """Whoever was once seen in the family is ended with it, also if it left since."""
        self._kin = {process.pid: process for process in living(self._kin.values())} | kin

    def _begin(self, connection: sqlite3.Connection) -> None:
        begin_attempt(connection, self._item, self._token, self._lease_ms)

    def _renew(self) -> None:
        now = _descendants()
        worked = any(p.ticks > (self._kin[p.pid].ticks if p.pid in self._kin else 0)
                     for p in now.values())  # fmt: skip
        began = clock()
        try:
            with self._ledger.transaction("shim.renew") as connection:
                renew(
                    connection,
                    self._item,
                    self._token,
                    self._lease_ms,
                    active=worked or self._heard,
                )
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
            self._remember(now)

    def _write_result(self, connection: sqlite3.Connection) -> None:
        problem = self._output.problem or self._errors.problem
        last = last_line(self._run_dir / "output.log") or last_line(self._run_dir / "stderr.log")
        result = {
            "exit_code": self._exit_code,
            "timed_out": self._timed_out,
            "bytes": self._output.total + self._errors.total,
            "last_line": problem or last,
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
    this_process_is(f"shim/{spec['item']}")
    crashpoint("shim.lock")
    return Shim(run_dir, spec, lock).run()
