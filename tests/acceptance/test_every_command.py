"""Every argument of every command gets invalid values; no traceback reaches a user."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from caloron.cli.app import EXIT_CODES, main
from caloron.cli.commands.meta import Leaf, leaves
from caloron.ledger.settings import FIELDS
from tests.support.home import Home, does, task, writes
from tests.support.json_schema import problems

MEGABYTE = "x" * (1 << 20)
#: Characters that must never reach a terminal, and bytes of argv that are no text.
VALUES = (
    "", " ", "\n", "ö€\U0001d54f\u202e", "\x1b[2J\x07", "\udcff\udc80", MEGABYTE, "é" * 5000,
    "-", "--", "-x", "--zork", "-1", "0", "1", "99999999999999999999", "1e999", "nan", "auto",
    "..", "../../outside.txt", "/", "./no/such/file", "~", "~nobody/x", ".", "a/b",
    "outside.txt", "demo", "demo-1",
    "a", "po", "[]", "{}", "null", "a b", "%s%n{0}", "$(touch gone)", "a\0b", "*",
)  # fmt: skip
#: They start agents, a planner or a sandbox, or wait for them: a few values are enough.
SLOW = {("sprint",), ("resume",), ("doctor",), ("state", "backup")}
FEW = ("", "\x1b[2J", "\udcff", MEGABYTE, "--zork", "-1", "..", "./no/such/file", "nan", "a\0b")
DOCUMENTED = set(EXIT_CODES) - {130}
#: The only ways to exit with 1: a person did not say yes, or conventions have warnings.
ERRORS_OF_CODE_1 = {"NOT_CONFIRMED", "GENERAL_ERROR"}
GOOD = {
    "number": "1",
    "name": "demo",
    "key": "parallel",
    "value": "3",
    "goal": "go",
    "shell": "bash",
}
LEAVES = list(leaves())


def _name(leaf: Leaf) -> str:
    return " ".join(leaf.words)


def _can_run_dry(leaf: Leaf) -> bool:
    return any("--dry-run" in parameter.opts for parameter in leaf.command.params)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with a sprint in it, to be copied: a command must not only be refused at the door."""
    home = Home(tmp_path_factory.mktemp("every"))
    home.init().script(writes("a"))
    assert home.sprint(task("a")).code == 0
    home.script(does("implement", "b", exit_code=1))
    assert home.sprint(task("b")).code == 10
    yield home.path
    home.close()


@pytest.fixture
def folder(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of that home, with a user's file beside it that no command may touch."""
    ours = tmp_path / "deep" / "er"
    ours.mkdir(parents=True)
    shutil.copytree(filled, ours / "home", ignore=shutil.ignore_patterns("wake"))
    (tmp_path / "outside.txt").write_text("mine")
    (ours / "outside.txt").write_text("mine")
    monkeypatch.setenv("CALORON_HOME", str(ours / "home"))
    monkeypatch.setenv("HOME", str(ours))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.delenv("CALORON_STUB_FIXTURE", raising=False)
    monkeypatch.chdir(ours)
    with Path(os.devnull).open(encoding="utf-8") as empty_input:
        monkeypatch.setattr("sys.stdin", empty_input)
        yield ours


@pytest.fixture
def check(folder: Path, capfd: pytest.CaptureFixture[str]) -> Any:
    """Runs one command line in one form, and asserts everything that holds for every answer."""

    def run(leaf: Leaf, form: str, *rest: str) -> int:
        line = [*leaf.words, "--output", form, *rest]
        capfd.readouterr()
        code = main(line)
        out, err = capfd.readouterr()
        shown = [word if len(word) < 200 else f"{word[:20]}… {len(word)}" for word in line]
        about = f"{shown}: exit {code}\n{out[:500]}\n{err[:500]}"
        assert code in DOCUMENTED, about
        assert "Traceback" not in out + err, about
        assert not (folder / "home" / "logs").exists(), about
        assert len(out) < 1 << 22, about
        assert len(err) < 1 << 16, about
        if form == "json":
            _is_envelope(out, code, about)
        else:
            assert not set("\x1b\x07\x00") & set(out + err), about
            assert (code in (0, 9)) or "error: " in err, about
            assert not out.startswith("error: "), about
        return code

    return run


def _is_envelope(out: str, code: int, about: str) -> None:
    envelope = json.loads(out)
    assert envelope["ok"] is (code in (0, 9)), about
    assert problems(envelope) == [], about
    if not envelope["ok"]:
        assert code != 1 or envelope["error"]["code"] in ERRORS_OF_CODE_1, about
        assert "defect" not in envelope["error"]["message"], about


def _lines(leaf: Leaf) -> Iterator[list[str]]:
    """Yield lines with one bad value each, at each position; all other required values are good."""
    values = FEW if leaf.words in SLOW else VALUES
    arguments = [p for p in leaf.command.params if isinstance(p, click.Argument)]
    good = [GOOD.get(str(p.name), "a") for p in arguments if p.required]
    # Another test covers the checks of a doctor that is asked well; they take seconds.
    if leaf.words != ("doctor",):
        yield []
    yield ["a"] * (len(arguments) + 1)
    for position in range(len(arguments)):
        for value in values:
            others = [GOOD.get(str(p.name), "a") for p in arguments]
            yield [*others[:position], value, *others[position + 1 :]]
            yield ["--", *others[:position], value, *others[position + 1 :]]
    for option in leaf.command.params:
        if not isinstance(option, click.Option) or option.name == "output":
            continue
        name = max(option.opts, key=len)
        if option.is_flag:
            yield [f"{name}=yes", *good]
            continue
        for value in values:
            if name != "--out" or "outside" not in value:
                yield [f"{name}={value}", *good]
    yield [MEGABYTE, "-o"]


@pytest.mark.parametrize("leaf", LEAVES, ids=_name)
def test_no_command_line_brings_a_traceback_or_an_undocumented_exit(
    leaf: Leaf, check: Any, folder: Path
) -> None:
    for number, line in enumerate(_lines(leaf)):
        check(leaf, "json", *line)
        if number % 3 == 0:
            check(leaf, "text", *line)
    assert (folder / "outside.txt").read_text() == "mine"
    assert (folder.parents[1] / "outside.txt").read_text() == "mine"
    assert not (folder / "gone").exists()


def test_every_setting_takes_or_refuses_every_value(check: Any, folder: Path) -> None:
    by_words = {leaf.words: leaf for leaf in LEAVES}
    set_command, get_command = by_words["config", "set"], by_words["config", "get"]
    file = folder / "home" / "projects" / "demo" / "config.yml"
    good = file.read_bytes()
    first_of_kind = {field.type: name for name, field in reversed(FIELDS.items())}
    for key in (*FIELDS, "no_such_key"):
        # One setting of each type gets every value; the others of that type get only a few.
        for value in VALUES if key in {*first_of_kind.values(), "no_such_key"} else FEW[:4]:
            if check(set_command, "json", "--", key, value) == 0:
                assert check(get_command, "text", key) == 0
                file.write_bytes(good)
            assert file.read_bytes() == good


@pytest.mark.parametrize("leaf", [leaf for leaf in LEAVES if _can_run_dry(leaf)], ids=_name)
def test_a_dry_run_changes_nothing(leaf: Leaf, check: Any, folder: Path) -> None:
    before = _tree(folder)
    arguments = [p for p in leaf.command.params if isinstance(p, click.Argument) and p.required]
    for name in ("demo", "neu"):
        good = [(GOOD | {"name": name}).get(str(p.name), "a") for p in arguments]
        for form in ("json", "text", "table"):
            code = check(leaf, form, "--dry-run", *good)
            assert code in (9, 2, 3, 5, 8), leaf.words
    assert _tree(folder) == before


def _tree(folder: Path) -> dict[str, bytes]:
    """Every file with its content; what a reader of SQLite leaves beside it is no change."""
    beside = ("-shm", "-wal")
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and not file.name.endswith(beside)
    }


def test_every_command_that_changes_something_has_a_dry_run() -> None:
    changing = {
        "init", "config set", "project switch", "project delete", "conventions init", "sprint",
        "resume", "stop", "issue comment", "issue close", "issue reopen", "pr review", "pr merge",
        "pr close", "clean", "skill", "apply", "discard", "graph run", "graph show", "stage run",
        "stage add", "state verify", "state backup", "state restore",
        "cycle begin", "cycle act", "cycle end", "cycle recover", "cycle stop",
    }  # fmt: skip
    assert changing <= {_name(leaf) for leaf in LEAVES if _can_run_dry(leaf)}


def test_every_command_answers_in_all_three_forms() -> None:
    for leaf in LEAVES:
        (form,) = [p for p in leaf.command.params if p.name == "output"]
        assert isinstance(form.type, click.Choice), leaf.words
        assert list(form.type.choices) == ["text", "json", "table"], leaf.words


def test_a_broken_home_is_reported_without_an_internal_error(folder: Path, check: Any) -> None:
    project, no_text = folder / "home" / "projects" / "demo", b"\xff\xfe\x00demo\xe9\n"
    texts = [folder / "home" / "active", folder / "home" / "kv" / "demo-1.json"]
    texts += [project / "ledger.id", project / "engine.lock"]
    texts += sorted((project / "workspace").rglob("*.json"))
    # One file of each name.
    texts += {path.name: path for path in project.glob("runs/*/*/*/*/*.json")}.values()
    damages = dict.fromkeys(texts, no_text) | {
        project / "config.yml": b"\xff\xfe: [",
        project / "ledger.sqlite": b"this is no database, but long enough to look like one" * 20,
        project / "forge.sqlite": b"this is no database, but long enough to look like one" * 20,
        project / "sprints.json": b"{",
    }
    quick = [leaf for leaf in LEAVES if leaf.words not in SLOW]
    for path, content in damages.items():
        good = path.read_bytes() if path.exists() else b""
        for beside in path.parent.glob(f"{path.name}-*"):
            beside.unlink()
        path.write_bytes(content)
        for leaf in quick:
            arguments = [p for p in leaf.command.params if isinstance(p, click.Argument)]
            line = [GOOD.get(str(p.name), "a") for p in arguments if p.required]
            dry = ["--dry-run"] if any("--dry-run" in p.opts for p in leaf.command.params) else []
            check(leaf, "json", *dry, *line)
        path.write_bytes(good)
