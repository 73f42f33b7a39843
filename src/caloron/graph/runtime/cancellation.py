"""Deadlines, cancellation, and threads that share both."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from caloron.graph.errors import Cancelled, RunTimedOut

T = TypeVar("T")

#: How soon a wait notices that it was stopped.
_POLL_S = 0.05


class Scope:
    """A part of a run that can be stopped as a whole, with everything inside it."""

    def __init__(
        self,
        parent: Scope | None = None,
        *,
        deadline: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parent = parent
        self._stopped = threading.Event()
        self.clock: Callable[[], float] = parent.clock if parent else clock
        self.deadline: float | None = parent.deadline if parent else deadline

    def child(self) -> Scope:
        return Scope(self)

    def stop(self) -> None:
        self._stopped.set()

    def stopped(self) -> bool:
        return self._stopped.is_set() or (self._parent is not None and self._parent.stopped())

    def expired(self) -> bool:
        return self.deadline is not None and self.clock() >= self.deadline

    def check(self, path: str) -> None:
        """Raise if nothing more may begin here."""
        if self.stopped():
            raise Cancelled("cancelled because a sibling failed", path=path)
        if self.expired():
            raise RunTimedOut("the time of the run is over", path=path)

    def wait(self, seconds: float, path: str) -> None:
        """Sleep, unless the scope is stopped before."""
        until = self.clock() + seconds
        while (left := until - self.clock()) > 0:
            self.check(path)
            self._stopped.wait(min(left, _POLL_S))
        self.check(path)


class ThreadBudget:
    """The threads that a run may start besides its own, shared by all its branches."""

    def __init__(self, number: int) -> None:
        self._free = number
        self._lock = threading.Lock()

    def take(self, wanted: int) -> int:
        with self._lock:
            taken = min(max(wanted, 0), self._free)
            self._free -= taken
            return taken

    def give_back(self, taken: int) -> None:
        with self._lock:
            self._free += taken


class JobResult(Generic[T]):
    """The result of a job on another thread: its value, or the exception that it raised."""

    def __init__(self, job: Callable[[], T]) -> None:
        self._value: list[T] = []
        self.error: BaseException | None = None
        try:
            self._value.append(job())
        except BaseException as error:  # noqa: BLE001  # raised again by `value`
            self.error = error

    @property
    def value(self) -> T:
        if self.error is not None:
            raise self.error
        return self._value[0]


class Background(Generic[T]):
    """A job on a thread of its own, which is abandoned if it takes too long.

    Python cannot end a thread, so an abandoned job goes on until it returns.
    """

    def __init__(self, job: Callable[[], T]) -> None:
        self._results: list[JobResult[T]] = []
        self._thread = threading.Thread(target=self._run, args=(job,), daemon=True)
        self._thread.start()

    def _run(self, job: Callable[[], T]) -> None:
        self._results.append(JobResult(job))

    def result(self, seconds: float) -> JobResult[T] | None:
        """Wait for the result; None if the job takes longer."""
        self._thread.join(seconds)
        return self._results[0] if self._results else None


def run_concurrently(
    jobs: Sequence[Callable[[], T]], threads: ThreadBudget, scope: Scope
) -> list[JobResult[T]]:
    """Run jobs on as many threads as are free, and wait for all; a failure stops the scope.

    The calling thread works, too, so that a run without a free thread cannot deadlock.
    """
    results: dict[int, JobResult[T]] = {}
    waiting = iter(range(len(jobs)))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                index = next(waiting, None)
            if index is None:
                return
            result = results[index] = JobResult(jobs[index])
            if result.error is not None:
                scope.stop()

    taken = threads.take(len(jobs) - 1)
    workers = [threading.Thread(target=work, daemon=True) for _ in range(taken)]
    try:
        for worker in workers:
            worker.start()
        work()
        for worker in workers:
            worker.join()
    except BaseException:
        # An interrupt of this thread ends the other jobs, too.
        scope.stop()
        raise
    finally:
        threads.give_back(taken)
    return [results[index] for index in range(len(jobs))]
