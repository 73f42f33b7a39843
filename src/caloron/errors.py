"""The exceptions of Caloron: each says what happened, to what, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class CaloronError(Exception):
    """A failure that a user can act on; carries the ACLI error code and the exit code."""

    code = "GENERAL_ERROR"
    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(CaloronError):
    """Invalid input: an argument, a plan, a fixture, a configuration value."""

    code = "INVALID_ARGS"
    exit_code = 2


class NotFound(CaloronError):
    """A project, sprint, task, issue, pull request or file does not exist."""

    code = "NOT_FOUND"
    exit_code = 3


class InUse(CaloronError):
    """Another process works on this project."""

    code = "CONFLICT"
    exit_code = 5


class AlreadyExists(CaloronError):
    """The project or file to create exists already."""

    code = "CONFLICT"
    exit_code = 5


class PreconditionFailed(CaloronError):
    """Something outside must be corrected first: a full disk, a newer database, a lost program."""

    code = "PRECONDITION_FAILED"
    exit_code = 8


class StoreError(PreconditionFailed):
    """The database or a file could not be read or written; nothing was half written."""


@contextmanager
def store_errors(problem: str, *, hint: str) -> Iterator[None]:
    """Turn an error of the system into a `StoreError`: the problem, its reason, and a hint."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{problem}: {error.strerror}", hint=hint) from error


class ForgeError(CaloronError):
    """The forge refused a request or could not carry it out."""

    code = "UPSTREAM_ERROR"
    exit_code = 7


class ForgeUnavailable(ForgeError):
    """The forge did not answer. It may have acted, so look before trying again."""


class ForgePaused(ForgeUnavailable):
    """The forge refuses all requests until a time: a quota, a rate limit."""

    def __init__(self, message: str, until: float, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        #: In seconds since 1970.
        self.until = until


class NotYet(ForgeUnavailable):
    """Possible once something else on the forge has ended: its CI, its check of a push."""


class ApprovalMissing(ForgeError):
    """A required approval is missing: the forge merges the change once people approve it."""


class ChecksFailed(ForgeError):
    """The forge's own CI is red for the commit to merge."""


class SetupCancelled(CaloronError):
    """The sprint is being stopped, so setup was cancelled."""


class ModelError(CaloronError):
    """A model refused, did not answer, or gave an answer that cannot be used."""

    code = "UPSTREAM_ERROR"
    exit_code = 7


class StaleHead(ForgeError):
    """The branch is not at the expected commit any more."""


class StaleBase(ForgeError):
    """The target branch moved since the result was verified."""


class MergeConflict(ForgeError):
    """Head and base cannot be merged automatically."""
