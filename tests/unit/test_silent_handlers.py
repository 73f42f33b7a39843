"""No handler hides a failure silently: it logs, raises, uses the error, or gives a reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import caloron

_SOURCES = Path(caloron.__file__).parent
#: Errors that can mean a real failure; `FileNotFoundError` and `ValueError` mostly mean "no".
_BROAD = {
    "BaseException", "CaloronError", "Error", "Exception", "ForgeError", "ForgeUnavailable",
    "GitError", "GraphError", "HTTPError", "OSError", "OperationalError",
    "StaleBase", "StaleTick", "StoreError", "URLError",
}  # fmt: skip


def _kinds(node: ast.expr | None) -> set[str]:
    if node is None:
        return {"BaseException"}
    kinds = node.elts if isinstance(node, ast.Tuple) else [node]
    return {ast.unparse(kind).rpartition(".")[2] for kind in kinds}


def _handles_error(handler: ast.ExceptHandler) -> bool:
    for node in (node for part in handler.body for node in ast.walk(part)):
        if isinstance(node, ast.Raise):
            return True
        if isinstance(node, ast.Name) and node.id in ("log", "project_log", handler.name):
            return True
    return False


def silent_handlers(source: str) -> Iterator[int]:
    """Yield the lines of broad handlers that neither use their error nor give a reason."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler):
            silent = bool(_kinds(node.type) & _BROAD) and not _handles_error(node)
            first, last = node.lineno, node.end_lineno or node.lineno
        elif isinstance(node, ast.With):
            calls = [item.context_expr for item in node.items]
            silent = any(
                isinstance(call, ast.Call)
                and ast.unparse(call.func).rpartition(".")[2] == "suppress"
                and set().union(*map(_kinds, call.args)) & _BROAD
                for call in calls
            )
            # The reason is above the block or in it.
            first, last = node.lineno - 1, node.body[0].lineno
        else:
            continue
        # A real comment is required, not only a linter directive.
        if silent and not any(
            "# " in line and not line.partition("# ")[2].startswith("noqa")
            for line in lines[first - 1 : last]
        ):
            yield node.lineno


@pytest.mark.parametrize(
    ("source", "silent"),
    [
        ("try:\n    x()\nexcept OSError:\n    pass\n", True),
        ("try:\n    x()\nexcept (ValueError, sqlite3.Error) as error:\n    y = 1\n", True),
        ("with suppress(CaloronError):\n    x()\n", True),
        ("try:\n    x()\nexcept:  # noqa: E722\n    pass\n", True),
        ("try:\n    x()\nexcept OSError as error:\n    log.info('no', error=error)\n", False),
        ("try:\n    x()\nexcept OSError:\n    # It is gone.\n    pass\n", False),
        ("try:\n    x()\nexcept OSError:\n    raise\n", False),
        ("try:\n    x()\nexcept FileNotFoundError:\n    pass\n", False),
        ("# It may be gone.\nwith suppress(OSError):\n    x()\n", False),
    ],
)
def test_a_silent_handler_is_recognised(source: str, silent: bool) -> None:
    assert bool(list(silent_handlers(source))) is silent


def test_every_broad_handler_logs_or_gives_its_reason() -> None:
    silent = [
        f"{file.relative_to(_SOURCES)}:{line}"
        for file in sorted(_SOURCES.rglob("*.py"))
        for line in silent_handlers(file.read_text("utf-8"))
    ]
    assert not silent, "log the error (caloron.store.log), or say in a comment why it is expected"
