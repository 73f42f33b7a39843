"""Statuses of commits, which Gitea and GitHub have in one way."""

from __future__ import annotations

from caloron.forge import answers
from caloron.forge.connection import Params
from caloron.forge.http import Http
from caloron.forge.paths import segment


def set_status(http: Http, head: str, state: str, context: str, text: str) -> None:
    body = {"state": state, "context": context, "description": text}
    http.change("POST", f"statuses/{segment(head)}", body)


def statuses_of(http: Http, head: str, page: Params) -> list[answers.Status]:
    """All statuses of a commit, the last one of each context; they come in pages."""
    found: list[answers.Status] = []
    asked = dict(page)
    while True:
        answer = http.get(f"commits/{segment(head)}/status", asked)
        listed = answer.read(answers.CombinedStatus).statuses or []
        found += listed
        if not listed or not answer.next_page:
            return found
        asked = {**page, **answer.next_page}
