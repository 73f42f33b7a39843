"""Unexpected errors as failures that a user can act on: damage, the machine, defects of ours."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import click

from caloron import __version__
from caloron.cli import output
from caloron.cli.app import Failed
from caloron.errors import CaloronError, PreconditionFailed
from caloron.ledger.locate import found_last, home
from caloron.store import log

_MACHINE = {
    errno.ENOSPC: "Disk full",
    errno.EDQUOT: "Disk quota used up",
    errno.EROFS: "Read-only file system",
    errno.EMFILE: "Too many open files",
    errno.ENFILE: "Too many open files",
}


def failure_behind(error: Exception) -> CaloronError:
    """The failure that explains an error; an error that nothing explains is a defect of ours."""
    if isinstance(error, OSError):
        return _of_machine(error) or _defect(error)
    return _of_graph(error) or _damage_behind(error) or _defect(error)


def _of_machine(error: OSError) -> CaloronError | None:
    if error.errno in (errno.EACCES, errno.EPERM):
        hint = "make it readable and writable for you, or choose another folder with CALORON_HOME"
        return Failed("PERMISSION_DENIED", str(error), hint=hint)
    if what := _MACHINE.get(error.errno or 0):
        hint = "fix that and try again; everything recorded is safe"
        return PreconditionFailed(f"{what}: {error}", hint=hint)
    return None


def _of_graph(error: Exception) -> CaloronError | None:
    """The failure of a graph; the graph library does not know the errors of commands."""
    if "caloron.graph.errors" not in sys.modules:
        return None
    from caloron.cli.commands.graph.common import as_failure
    from caloron.graph.errors import GraphError

    return as_failure(error) if isinstance(error, GraphError) else None


def _damage_behind(error: Exception) -> CaloronError | None:
    """The failure of the project's ledger that explains an unexpected error.

    A damaged page appears as an error of SQLite, or as content that no decoder accepts.
    """
    if not found_last:
        return None
    import sqlite3

    from caloron.store.database import refuse_damaged, store_error

    ledger = found_last[-1].ledger
    try:
        refuse_damaged(ledger)
    except CaloronError as damage:
        log.error("the ledger cannot be read", error=error, command=output.current_command())
        return damage
    # Other databases raise errors of ours. An error with a hint comes from the machine.
    if isinstance(error, sqlite3.Error) and (refused := store_error(ledger, error)).hint:
        return refused
    return None


def _defect(error: Exception) -> CaloronError:
    """A defect: short on the terminal, with the whole traceback in a file."""
    import traceback

    from caloron.store.redact import Redactor, secrets_in

    _learn_named_secrets()
    redact = Redactor(secrets_in(os.environ)).text
    arguments = " ".join(map(repr, sys.argv))
    lines = "".join(traceback.format_exception(error))
    details = redact(f"caloron {__version__}\n{arguments}\n\n{lines}")
    log.error("internal error", error=error, command=output.current_command())
    hint = "everything recorded is safe; `caloron resume` continues a sprint"
    try:
        hint = f"details: {_write_log(details)}; {hint}"
    except OSError:
        # There is no file for the details, so print them.
        click.echo(details, err=True)
    message = redact(f"Internal error, please report it: {type(error).__name__}: {error}")
    return CaloronError(message, hint=hint)


def _learn_named_secrets() -> None:
    """Redact the values of variables that settings name: the names alone do not reveal them."""
    try:
        from caloron.engine.runs.sandbox_policy import TOKEN_VARIABLES
        from caloron.ledger.locate import project_names, project_path
        from caloron.ledger.settings import read_settings
        from caloron.store.redact import learn

        for project in project_names():
            try:
                settings = read_settings(project_path(project) / "config.yml")
            except CaloronError as error:
                log.debug("the settings of a project cannot be read", error=error)
                continue
            passed = settings.get("pass_env")
            names = [settings.get(key) for key in TOKEN_VARIABLES]
            for name in (*names, *(passed if isinstance(passed, list) else (passed,))):
                if isinstance(name, str) and (value := os.environ.get(name, "").strip()):
                    learn(name, value)
    except Exception as error:  # noqa: BLE001 - the defect itself must be reported in any case
        log.warning("cannot read the names of secrets from settings", error=error)


def _write_log(details: str) -> Path:
    from datetime import UTC, datetime

    directory = home() / "logs"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = directory / f"defect-{datetime.now(UTC):%Y%m%dT%H%M%S%f}.log"
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(handle, "w", encoding="utf-8", errors="backslashreplace") as opened:  # noqa: PTH123
        opened.write(details)
    return file
