"""Deadlines, cancellation, and threads that share both."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

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


def _run(job: Callable[[], T], future: Future[T]) -> None:
    try:
        future.set_result(job())
    except BaseException as error:  # noqa: BLE001  # raised again by `result`
        future.set_exception(error)


def run_in_background(job: Callable[[], T]) -> Future[T]:
    """Run a job on a thread of its own; its caller abandons it if it takes too long.

    Python cannot end a thread, so an abandoned job goes on until it returns.
    """
    future: Future[T] = Future()
    threading.Thread(target=_run, args=(job, future), daemon=True).start()
    return future


def run_concurrently(
    jobs: Sequence[Callable[[], T]], free_threads: threading.Semaphore, scope: Scope
) -> list[Future[T]]:
    """Run jobs on as many threads as are free, and wait for all; a failure stops the scope.

    The calling thread works, too, so that a run without a free thread cannot deadlock.
    """
    results: list[Future[T]] = [Future() for _ in jobs]
    waiting = iter(list(zip(jobs, results, strict=True)))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                job = next(waiting, None)
            if job is None:
                return
            _run(*job)
            if job[1].exception() is not None:
                scope.stop()

    workers = [
        threading.Thread(target=work, daemon=True)
        for _ in jobs[1:]
        if free_threads.acquire(blocking=False)
    ]
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
        for _ in workers:
            free_threads.release()
    return results
