"""The shell accepts valid requests and refuses others before any effect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from caloron.errors import PreconditionFailed, UsageError
from caloron.server.requests import BadRequest, Heartbeat, Logs, Spawn, Stop, read_body, read_query
from caloron.server.settings import shell_settings

GOOD = {"sprint_id": "s-1", "task_id": "t", "agent_id": "a", "repo": "org/shop"}


def _spawn(**more: Any) -> Spawn:
    return read_body(json.dumps(GOOD | more).encode(), Spawn)


def test_the_old_request_is_accepted_and_an_unknown_field_is_ignored() -> None:
    request = _spawn(invented_later=1)
    assert (request.agent_id, request.worktree_base) == ("a", ".caloron/worktrees")


@pytest.mark.parametrize("name", ["sprint_id", "task_id", "agent_id"])
@pytest.mark.parametrize("value", ["", "A", "a/b", "../x", "a b", "a\n", "x" * 65, "é", 1, None])
def test_an_id_of_another_form_is_refused(name: str, value: Any) -> None:
    with pytest.raises(BadRequest, match=name):
        _spawn(**{name: value})


@pytest.mark.parametrize("name", ["repo", "worktree_base"])
@pytest.mark.parametrize(
    "value", ["", "../x", "a/../../b", "-x", "a\0b", "a\nb", "$(id)", "a" * 2000]
)
def test_a_path_that_could_mean_something_else_is_refused(name: str, value: str) -> None:
    with pytest.raises(BadRequest, match=name):
        _spawn(**{name: value})


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"{}", b'"x"', b"\xff", b"[" * 100_000]
)
@pytest.mark.parametrize("kind", [Spawn, Heartbeat, Stop])
def test_an_invalid_request_is_refused(body: bytes, kind: Any) -> None:
    with pytest.raises(BadRequest):
        read_body(body, kind)


@pytest.mark.parametrize("more", [{"tokens_used": -1}, {"tokens_used": 1.5}, {"status": "x" * 201},
                                  {"tokens_used": 2**60}, {"status": 7}])  # fmt: skip
def test_an_implausible_heartbeat_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        read_body(json.dumps({"agent_id": "a", "sprint_id": "s"} | more).encode(), Heartbeat)


@pytest.mark.parametrize("more", [{"offset": "-1"}, {"limit": "0"}, {"limit": "99999999"},
                                  {"offset": "x"}, {"stream": "../../etc"}])  # fmt: skip
def test_the_number_of_log_lines_is_bounded(more: dict[str, str]) -> None:
    good = {"sprint_id": "s", "agent_id": "a", "offset": "7"}
    assert read_query(good, Logs).offset == 7
    with pytest.raises(BadRequest):
        read_query(good | more, Logs)


@pytest.mark.parametrize("port", ["x", "-1", "65536", "7710.0", " 1", "\uff11"])
def test_an_invalid_port_is_refused_and_not_replaced_by_the_default(port: str) -> None:
    with pytest.raises(UsageError, match="not a port"):
        shell_settings({"CALORON_SHELL_PORT": port, "CALORON_SHELL_TOKEN": "t"})


def test_without_a_token_there_is_no_shell(tmp_path: Path) -> None:
    with pytest.raises(PreconditionFailed, match="CALORON_SHELL_TOKEN"):
        shell_settings({})
    with pytest.raises(UsageError, match="header"):
        shell_settings({"CALORON_SHELL_TOKEN": "a\nb"})
    shell = shell_settings({"CALORON_SHELL_TOKEN": "t0k", "CALORON_SHELL_ROOT": str(tmp_path)})
    assert (shell.port, shell.root) == (7710, tmp_path.resolve())
    assert "t0k" not in repr(shell)
