"""Only the effect executor changes a forge: else a crash point would be missing."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

from tests.support.home import SOURCE

MUTATIONS = {
    "create_issue",
    "comment",
    "label",
    "unlabel",
    "edit_comment",
    "edit_issue",
    "close_issue",
    "reopen_issue",
    "push",
    "open_pull",
    "edit_pull",
    "close_pull",
    "review",
    "merge",
    "mark_merged",
}
CHANGES, EXECUTOR = "engine/forge/operations.py", "engine/forge/executor.py"
#: Acts of people, the first commit of an empty repository, the forge itself, code for tests.
EXCEPTED = (
    "cli/commands/project/init.py",
    "cli/commands/forge.py",
    "forge/",
    "testing/",
)
#: Stages for graphs that users write: such a graph is no sprint and has no journal of effects, so
#: each of these searches for its own object before it writes. No tick may name them.
OF_GRAPHS = (
    "github_add_label",
    "github_create_issue",
    "github_merge_pr",
    "github_post_comment",
)


def mutations_in(source: str) -> list[tuple[int, str]]:
    """Calls of a changing method on something that is named a forge, with their lines."""
    return [
        (node.lineno, node.func.attr)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in MUTATIONS
        and "forge" in ast.unparse(node.func.value).lower()
    ]


def _modules() -> dict[str, Path]:
    root = SOURCE / "caloron"
    return {str(file.relative_to(root)): file for file in sorted(root.rglob("*.py"))}


def test_no_module_but_the_effect_executor_changes_a_forge() -> None:
    mutations = {
        name: mutations_in(file.read_text("utf-8"))
        for name, file in _modules().items()
        if name != CHANGES and not name.startswith(EXCEPTED) and name != "stages/forge.py"
    }

    assert {name: calls for name, calls in mutations.items() if calls} == {}


def named_in(node: Any) -> set[str]:
    """The stages that a graph names, at any depth."""
    if isinstance(node, list):
        return set().union(*map(named_in, node))
    if not isinstance(node, dict):
        return set()
    own = {node["id"]} if node.get("op") == "Stage" else set()
    return own | named_in(list(node.values()))


def _tick_graphs() -> dict[str, Any]:
    shipped = (SOURCE / "caloron" / "stages" / "compositions").glob("*tick*.json")
    return {file.name: json.loads(file.read_bytes()) for file in shipped}


def test_exactly_four_stages_change_a_forge_and_no_tick_names_them() -> None:
    changing = [
        name
        for name, file in _modules().items()
        if name.startswith("stages/") and mutations_in(file.read_text("utf-8"))
    ]
    assert changing == ["stages/forge.py"]
    functions = [
        node
        for node in ast.parse(_modules()["stages/forge.py"].read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef) and mutations_in(ast.unparse(node))
    ]
    assert sorted(function.name for function in functions) == sorted(OF_GRAPHS)
    assert len(_tick_graphs()) == 3
    for name, graph in _tick_graphs().items():
        assert named_in(graph), name
        assert not named_in(graph) & set(OF_GRAPHS), name


def test_the_executor_makes_all_changes_and_marks_their_crash_points() -> None:
    tree = ast.parse(_modules()[CHANGES].read_text("utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    changing = [f.name for f in functions if mutations_in(ast.unparse(f))]
    text = _modules()[EXECUTOR].read_text("utf-8")

    assert changing == [
        "do",
        "_merge",
        "_find_merge",
        "_report_progress",
        "_describe",
        "_do_to_issue",
    ]
    assert all(f'crashpoint("effect.{step}", of)' in text for step in ("intend", "do", "record"))


def test_a_mutation_would_be_noticed() -> None:
    assert mutations_in("def f(self):\n    self._forge.comment(1, 'x')\n") == [(2, "comment")]
    assert mutations_in("session.forge.merge(1, h, b, m)") == [(1, "merge")]
    assert mutations_in("mirror.merge(base, head, 'm')") == []
