"""How long something may go on, and whether anybody still waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from caloron.graph.errors import Cancelled, ExecutionError, RunTimedOut

T = TypeVar("T")

#: How soon a wait notices that it was stopped.
_LOOK_EVERY = 0.05


class Scope:
    """A part of a run that can be stopped as a whole, with everything within it."""

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

    def within(self) -> Scope:
        return Scope(self)

    def stop(self) -> None:
        self._stopped.set()

    def stopped(self) -> bool:
        return self._stopped.is_set() or (self._parent is not None and self._parent.stopped())

    def expired(self) -> bool:
        return self.deadline is not None and self.clock() >= self.deadline

    def check(self, path: str) -> None:
        """Raises if nothing more may begin here."""
        if self.stopped():
            raise Cancelled("given up because a sibling failed", path=path)
        if self.expired():
            raise RunTimedOut("the time of the run is over", path=path)

    def wait(self, seconds: float, path: str) -> None:
        """Sleeps, unless it is stopped before."""
        until = self.clock() + seconds
        while (left := until - self.clock()) > 0:
            self.check(path)
            self._stopped.wait(min(left, _LOOK_EVERY))
        self.check(path)


class Slots:
    """The threads that a run may have besides its own, shared by all its branches."""

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


class Settled(Generic[T]):
    """How a job on another thread ended: with a value, or with what it raised."""

    def __init__(self, job: Callable[[], T]) -> None:
        self._value: list[T] = []
        self.error: BaseException | None = None
        try:
            self._value.append(job())
        except BaseException as error:  # noqa: BLE001  # told to whoever asks for the value
            self.error = error

    @property
    def value(self) -> T:
        if self.error is not None:
            raise self.error
        return self._value[0]


def together(
    jobs: Sequence[Callable[[], T]], slots: Slots, scope: Scope, *, stop_on_failure: bool
) -> list[Settled[T]]:
    """Does all jobs at once, as far as there are threads, and waits for every one.

    The calling thread works too, so that a run without a free slot still goes on.
    """
    ended: dict[int, Settled[T]] = {}
    waiting = iter(range(len(jobs)))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                index = next(waiting, None)
            if index is None:
                return
            settled = ended[index] = Settled(jobs[index])
            expected = settled.error is None or isinstance(settled.error, ExecutionError)
            if not expected or (stop_on_failure and settled.error is not None):
                scope.stop()

    taken = slots.take(len(jobs) - 1)
    threads = [threading.Thread(target=work, daemon=True) for _ in range(taken)]
    try:
        for thread in threads:
            thread.start()
        work()
        for thread in threads:
            thread.join()
    except BaseException:
        # Whoever interrupts this does not want the others to go on.
        scope.stop()
        raise
    finally:
        slots.give_back(taken)
    return [ended[index] for index in range(len(jobs))]
