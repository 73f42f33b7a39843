"""The one small family of exceptions: what happened, to what, and what to do next."""


class CaloronError(Exception):
    """A failure that a user can act on; carries the ACLI error code and the exit code."""

    code = "GENERAL_ERROR"
    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(CaloronError):
    """Input that cannot be taken: an argument, a plan, a fixture, a configuration value."""

    code = "INVALID_ARGS"
    exit_code = 2


class NotFound(CaloronError):
    """A project, sprint, task, issue, pull request or file that is not there."""

    code = "NOT_FOUND"
    exit_code = 3


class InUse(CaloronError):
    """Another process works on this project."""

    code = "CONFLICT"
    exit_code = 5


class AlreadyExists(CaloronError):
    """What should be made is there already."""

    code = "CONFLICT"
    exit_code = 5


class PreconditionFailed(CaloronError):
    """Something outside must be put right first: a full disk, a newer database, a lost program."""

    code = "PRECONDITION_FAILED"
    exit_code = 8


class StoreError(PreconditionFailed):
    """The database or a file could not be read or written; nothing was half written."""


class ForgeError(CaloronError):
    """The forge refused or could not do what was asked."""

    code = "UPSTREAM_ERROR"
    exit_code = 7


class ForgeUnavailable(ForgeError):
    """The forge did not answer: whether it acted is unknown, so look before trying again."""


class ForgePaused(ForgeUnavailable):
    """The forge lets us do nothing before a time: a quota, a rate limit."""

    def __init__(self, message: str, until: float, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        #: In seconds since 1970.
        self.until = until


class NotYet(ForgeUnavailable):
    """It can be done once something else on the forge has ended: its CI, its own look at a push."""


class ApprovalMissing(ForgeError):
    """The forge merges it once people have said yes: an approval that is required is missing."""


class ChecksFailed(ForgeError):
    """The forge's own CI is red for the commit that was to be merged."""


class ModelError(CaloronError):
    """A model that was to be asked refused, did not answer, or gave what cannot be used."""

    code = "UPSTREAM_ERROR"
    exit_code = 7


class StaleHead(ForgeError):
    """The branch is not at the expected commit any more."""


class StaleBase(ForgeError):
    """The target branch moved since the result was verified."""


class MergeConflict(ForgeError):
    """Head and base cannot be merged without somebody's decision."""
