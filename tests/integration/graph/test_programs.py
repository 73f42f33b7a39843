"""Stages that are programs: their input, their answers and their end."""

from __future__ import annotations

import shutil
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from caloron.engine.graphs.sandbox import StageSandbox
from caloron.graph.catalogue import Catalogue
from caloron.graph.errors import StageFailed, StageMissing, StageTimedOut
from caloron.graph.json_text import Json
from caloron.graph.prepare import prepare
from caloron.graph.runners.subprocess import (
    ProcessResult,
    SandboxPolicy,
    SubprocessRunner,
    policy_of,
)
from caloron.graph.runtime.run import RunLimits, Settings, run
from caloron.graph.stage import FALLIBLE, NETWORK, PURE, Effect, StageSpec, define
from caloron.graph.types import ANY
from tests.support.noether import wrapped


class _Recording(StageSandbox):
    """Runs commands without confinement, and records them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, unsandboxed=True)
        self.asked: list[tuple[list[str], SandboxPolicy]] = []

    def run(self, argv: Any, policy: SandboxPolicy, stdin: bytes, **limits: Any) -> ProcessResult:
        self.asked.append((list(argv), policy))
        return super().run(argv, policy, stdin, **limits)


def _stage(code: str, language: str = "python", effects: tuple[Effect, ...] = (PURE,)) -> StageSpec:
    return define("program", ANY, ANY, code=code, language=language, effects=effects)


def _run(
    stage: StageSpec,
    value: Json,
    directory: Path,
    *,
    limits: RunLimits | None = None,
    **options: Any,
) -> Json:
    catalogue = Catalogue([stage])
    sandbox = options.pop("sandbox", None) or _Recording(directory / "calls")
    options.setdefault("interpreters", {"python": [sys.executable, "-S"]})
    programs = SubprocessRunner(directory / "scripts", sandbox, **options)
    prepared = prepare(wrapped({"op": "Stage", "id": stage.id}), catalogue)
    return run(prepared, value, programs, Settings(limits=limits or RunLimits())).output


@pytest.mark.parametrize(
    ("value", "received"),
    [("42", 42), ('{"a":1}', {"a": 1}), ("plain", "plain"), (None, {}), ([None], [None])],
)
def test_python_gets_its_input_as_from_the_wrapper_of_noether(value, received, tmp_path):
    assert _run(_stage("def execute(input):\n    return input\n"), value, tmp_path) == received


def test_an_import_from_the_future_may_stand_anywhere(tmp_path):
    code = "import json\nfrom __future__ import annotations\ndef execute(x: Nope):\n    return 1\n"
    assert _run(_stage(code), 0, tmp_path) == 1


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("bash", 'execute() { printf \'{"got":%s,"same":%s}\' "$1" "$INPUT"; }'),
        ("javascript", "function execute(x) { return { got: x, same: x }; }"),
        ("js", "const execute = (x) => ({ got: x, same: x });"),
    ],
)
def test_other_languages_get_plain_json(language, code, tmp_path):
    if language != "bash" and shutil.which("node") is None:
        pytest.skip("node is not installed")
    value = {"a": ["é", 1.5, None]}
    assert _run(_stage(code, language), value, tmp_path) == {"got": value, "same": value}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def execute(x):\n    print('hello')\n    return 1\n", "the answer is not JSON"),
        (
            "def execute(x):\n    import sys\n    sys.exit(255)\n",
            "exit 255 and no message",
        ),
        ("def execute(x):\n    raise KeyError('k')\n", r"'k' \(exit 1\)"),
        ("def execute(x):\n    return {1, 2}\n", r"not JSON serializable \(exit 1\)"),
        ("def execute(x):\n    import os\n    os.kill(os.getpid(), 9)\n", "signal 9"),
        ("def execute(x):\n    return float('nan')\n", "NaN is no JSON number"),
        ("def nothing(x):\n    return 1\n", "no function `execute`"),
        ("def execute(x:\n", "SyntaxError"),
    ],
)
def test_a_program_that_misbehaves_is_one_clear_failure(code, message, tmp_path):
    with pytest.raises(StageFailed, match=message) as failed:
        _run(_stage(code), 1, tmp_path)
    assert failed.value.path == "$.root"
    assert failed.value.exit_code == 3


@pytest.mark.parametrize(
    ("language", "code", "characters", "answer"),
    [
        ("bash", "execute() { printf '%s' \"$1\" | /bin/cat | wc -c; }", 500_000, 500_002),
        ("bash", "execute() { echo 1; }", 3_000_000, 1),
        ("bash", "execute() { echo careful >&2; echo 1; }", 1, 1),
    ],
    ids=["other programs", "input not read", "words on standard error"],
)
def test_a_program_may_use_its_streams_freely(language, code, characters, answer, tmp_path):
    assert _run(_stage(code, language), "x" * characters, tmp_path) == answer


@pytest.fixture
def forever() -> str:
    """A command that never ends by itself, and is unique on this machine."""
    return f"sleep 600.{uuid.uuid4().int % 10**12}"


def _is_gone(command: str) -> bool:
    wanted = command.replace(" ", "\0").encode()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if wanted in file.read_bytes():
                return False
    return True


@pytest.mark.parametrize("limit", [{"seconds": 0.3}, {"limits": RunLimits(stage_seconds=0.3)}])
def test_a_program_that_hangs_is_killed_with_its_descendants(tmp_path, forever, limit):
    code = f"execute() {{ {forever} & ({forever}); }}"
    with pytest.raises(StageTimedOut, match="not done after 0"):
        _run(_stage(code, "bash"), 1, tmp_path, **limit)
    assert _is_gone(forever)


def test_a_failed_sibling_ends_a_running_program(tmp_path, forever):
    code = f"execute() {{ {forever}; }}"
    hang = define("hang", ANY, ANY, code=code, language="bash")
    boom = define("boom", ANY, ANY, code="execute() { sleep 0.3; exit 7; }", language="bash")
    root = {
        "op": "Parallel",
        "branches": {"a": {"op": "Stage", "id": "hang"}, "b": {"op": "Stage", "id": "boom"}},
    }
    prepared = prepare(wrapped(root), Catalogue([hang, boom]))
    programs = SubprocessRunner(tmp_path, _Recording(tmp_path / "calls"))
    with pytest.raises(StageFailed, match=r"branches\.b: ended with exit 7"):
        run(prepared, {"a": 1, "b": 1}, programs)
    assert _is_gone(forever)


def test_the_policy_of_the_sandbox_follows_from_the_effects(tmp_path):
    effects = (NETWORK, FALLIBLE, Effect("FsRead", "/data"), Effect("FsWrite", "/out"))
    stage = _stage("def execute(x):\n    return x\n", effects=effects)
    sandbox = _Recording(tmp_path / "calls")
    _run(stage, 1, tmp_path, sandbox=sandbox)
    ((argv, policy),) = sandbox.asked
    script = argv[-1]
    assert Path(script).parent == tmp_path / "scripts"
    assert policy == SandboxPolicy(network=True, readable=(script, "/data"), writable=("/out",))
    assert not policy_of(_stage("x"), Path(script)).network


def test_an_unsupported_language_is_reported_as_missing(tmp_path):
    with pytest.raises(StageMissing, match="the stage program is not implemented here"):
        _run(_stage("fn execute() {}", "rust"), 1, tmp_path)


def test_a_missing_interpreter_is_named_in_the_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StageMissing, match="node is not installed: it runs javascript"):
        _run(_stage("const execute = (x) => x;", "js"), 1, tmp_path)
    monkeypatch.undo()
    gone = {"python": ["/nowhere/python"]}
    with pytest.raises(StageFailed, match=r"/nowhere/python.*No such file.* \(exit 127\)"):
        _run(_stage("def execute(x):\n    return 1\n"), 1, tmp_path, interpreters=gone)


def test_an_answer_of_exactly_the_limit_is_accepted(tmp_path):
    size = 10 * 1024 * 1024
    code = "def execute(x):\n    return 'x' * x\n"
    # Two quotes and the end of the line.
    assert len(_run(_stage(code), size - 3, tmp_path)) == size - 3
    with pytest.raises(StageFailed, match=f"over {size} bytes"):
        _run(_stage(code), size - 2, tmp_path)
