"""Checks for `caloron doctor` whether a sprint could run on the forge of a project."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing

from caloron.agents.doctor import Finding
from caloron.engine.forge.access import (
    forge_clock,
    notes_on,
    refuse_unfit,
    repository_info,
    review_mode,
)
from caloron.engine.forge.connect import open_forge
from caloron.engine.forge.webhooks import webhooks_of
from caloron.errors import CaloronError
from caloron.ledger.projects import Project
from caloron.ports import Forge
from caloron.store.lock import holder

#: Beyond this the times of two machines cannot be compared.
_CLOCK_S = 60.0


def examine_forge(project: Project) -> Iterator[Finding]:
    """Check the forge, our rights there, its way of reviews, its clock and its webhooks."""
    try:
        forge = open_forge(project)
    except CaloronError as error:
        yield _bad("forge", error)
        return
    with closing(forge):
        yield from _examine(project, forge)
    if project.config.webhook:
        yield _webhook(project)


def _examine(project: Project, forge: Forge) -> Iterator[Finding]:
    try:
        about = repository_info(project.config, forge) if project.is_remote else forge.about()
    except CaloronError as error:
        yield _bad("forge", error)
        return
    who = f", as {forge.author}" if project.is_remote else ""
    yield Finding(check="forge", ok=True, detail=f"{about.kind} answers: {about.url}{who}")
    if not project.is_remote:
        return
    try:
        refuse_unfit(project.config, forge, about)
        rights = "; ".join(["may push and merge", *notes_on(forge, about)])
        yield Finding(check="forge rights", ok=True, detail=f"{forge.author} {rights}")
    except CaloronError as error:
        yield _bad("forge rights", error)
    yield Finding(check="reviews", ok=True, detail=review_mode(about, forge))
    yield _clock(forge)


def _clock(forge: Forge) -> Finding:
    before = time.time()
    there = forge_clock(forge)
    apart = 0.0 if there is None else there - (before + time.time()) / 2
    ok = abs(apart) < _CLOCK_S
    # The forge answers with whole seconds.
    same = "the same time as here" if abs(apart) < 2 else f"{apart:+.0f} s from here"
    return Finding(
        check="forge clock", ok=ok, needed=False,
        detail="the forge does not tell its time" if there is None else same,
        remedy="" if ok else "set the clock of this machine, or that of the forge",
    )  # fmt: skip


def _webhook(project: Project) -> Finding:
    address = project.config.webhook
    try:
        webhooks_of(project.config, lambda: None)
    except CaloronError as error:
        return _bad("webhook", error)
    host, _, port = address.rpartition(":")
    listening = holder(project.engine_lock) is not None
    signed = "signed" if project.config.webhook_secret_env else "NOT signed: no webhook_secret_env"
    if not listening and not _is_free(host.strip("[]"), int(port)):
        return Finding(
            check="webhook", ok=False, needed=False, detail=f"{address} is taken",
            remedy="choose another port: caloron config set webhook 127.0.0.1:PORT",
        )  # fmt: skip
    return Finding(
        check="webhook", ok=True, needed=False,
        detail=f"the URL to enter on the forge is http://{address}/ ({signed});"
        " heard while a sprint runs",
    )  # fmt: skip


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with closing(socket.socket(family)) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except OSError:
            # Another process has the port: that is the answer.
            return False
    return True


def _bad(check: str, error: CaloronError) -> Finding:
    return Finding(check=check, ok=False, detail=str(error), remedy=error.hint)
