"""Stages that are programs: what they get, what they may answer, how they are stopped."""

from __future__ import annotations

import shutil
import socket
import sys
import uuid
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from caloron.graph.catalogue import Catalogue
from caloron.graph.errors import StageFailed, StageMissing, StageTimedOut
from caloron.graph.json_text import Json
from caloron.graph.prepare import prepare
from caloron.graph.runners.subprocess import SandboxPolicy, SubprocessRunner, policy_of, run_process
from caloron.graph.runtime.run import RunLimits, Settings, run
from caloron.graph.stage import FALLIBLE, NETWORK, PURE, Effect, StageSpec, define
from caloron.graph.types import ANY
from tests.support.noether import wrapped


class _Recording:
    """A sandbox that shuts nothing in and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[str], SandboxPolicy]] = []

    def command(self, argv: Any, policy: SandboxPolicy) -> Any:
        self.asked.append((list(argv), policy))
        return nullcontext(argv)


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
    sandbox = options.pop("sandbox", _Recording())
    options.setdefault("interpreters", {"python": [sys.executable, "-S"]})
    programs = SubprocessRunner(directory / "scripts", sandbox, **options)
    prepared = prepare(wrapped({"op": "Stage", "id": stage.id}), catalogue)
    return run(prepared, value, programs, Settings(limits=limits or RunLimits())).output


@pytest.mark.parametrize(
    ("given", "seen"),
    [("42", 42), ('{"a":1}', {"a": 1}), ("plain", "plain"), (None, {}), ([None], [None])],
)
def test_python_gets_its_input_as_the_wrapper_of_noether_hands_it_over(given, seen, tmp_path):
    assert _run(_stage("def execute(input):\n    return input\n"), given, tmp_path) == seen


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
    given = {"a": ["é", 1.5, None]}
    assert _run(_stage(code, language), given, tmp_path) == {"got": given, "same": given}


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def execute(x):\n    print('hello')\n    return 1\n", "the answer is not JSON"),
        ("def execute(x):\n    import sys\n    sys.exit(3)\n", "ended with exit 3 and no message"),
        ("def execute(x):\n    raise KeyError('k')\n", r"'k' \(exit 1\)"),
        ("def execute(x):\n    return {1, 2}\n", r"not JSON serializable \(exit 1\)"),
        ("def execute(x):\n    import os\n    os.kill(os.getpid(), 9)\n", "signal 9"),
        ("def execute(x):\n    return float('nan')\n", "NaN is no JSON number"),
        ("def nothing(x):\n    return 1\n", "no function `execute`"),
        ("def execute(x:\n", "SyntaxError"),
        ("def execute(x):\n    return 'x' * 11000000\n", "over 10485760 bytes"),
    ],
)
def test_a_program_that_misbehaves_is_one_clear_failure(code, said, tmp_path):
    with pytest.raises(StageFailed, match=said) as failed:
        _run(_stage(code), 1, tmp_path)
    assert failed.value.path == "$.root"
    assert failed.value.exit_code == 3


def test_a_shell_stage_can_call_programs_whatever_the_size_of_its_input(tmp_path):
    code = "execute() { printf '%s' \"$1\" | /bin/cat | wc -c; }"
    assert _run(_stage(code, "bash"), "x" * 500_000, tmp_path) == 500_002


def test_words_on_the_error_stream_alone_are_no_failure(tmp_path):
    code = "def execute(x):\n    import sys\n    sys.stderr.write('careful')\n    return 1\n"
    assert _run(_stage(code), 1, tmp_path) == 1


def test_a_program_that_does_not_read_its_input_is_served_all_the_same(tmp_path):
    big = "x" * 3_000_000
    assert _run(_stage("execute() { echo 1; }", "bash"), big, tmp_path) == 1


@pytest.fixture
def forever() -> str:
    """A command that never ends by itself and is like no other on this machine."""
    return f"sleep 600.{uuid.uuid4().int % 10**12}"


def _is_gone(command: str) -> bool:
    wanted = command.replace(" ", "\0").encode()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if wanted in file.read_bytes():
                return False
    return True


def test_a_program_that_hangs_is_killed_with_all_that_it_started(tmp_path, forever):
    code = f"execute() {{ {forever} & ({forever}); }}"
    with pytest.raises(StageTimedOut, match=r"not done after 0\.3 s"):
        _run(_stage(code, "bash"), 1, tmp_path, seconds=0.3)
    assert _is_gone(forever)


def test_the_time_of_the_run_also_holds_for_programs(tmp_path, forever):
    hang, limits = _stage(f"execute() {{ {forever}; }}", "bash"), RunLimits(stage_seconds=0.2)
    with pytest.raises(StageTimedOut):
        _run(hang, 1, tmp_path, limits=limits)
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
    programs = SubprocessRunner(tmp_path, _Recording())
    with pytest.raises(StageFailed, match=r"branches\.b: ended with exit 7"):
        run(prepared, {"a": 1, "b": 1}, programs)
    assert _is_gone(forever)


def test_the_sandbox_is_told_what_the_effects_allow(tmp_path):
    effects = (NETWORK, FALLIBLE, Effect("FsRead", "/data"), Effect("FsWrite", "/out"))
    stage = _stage("def execute(x):\n    return x\n", effects=effects)
    sandbox = _Recording()
    _run(stage, 1, tmp_path, sandbox=sandbox)
    ((argv, policy),) = sandbox.asked
    script = argv[-1]
    assert Path(script).parent == tmp_path / "scripts"
    assert policy == SandboxPolicy(network=True, readable=(script, "/data"), writable=("/out",))
    assert not policy_of(_stage("x"), Path(script)).network


class _Bubblewrap:
    """The system to read, a private /tmp to write, a network only for those that declare one."""

    def command(self, argv: Any, policy: SandboxPolicy) -> Any:
        # The interpreter too: the project itself may stand in /tmp.
        binds = [["--ro-bind", path, path] for path in (*policy.readable, sys.prefix)]
        shared = ["--share-net"] if policy.network else []
        command = [
            "bwrap", "--unshare-all", *shared, "--die-with-parent", "--clearenv",
            "--ro-bind", "/", "/", "--tmpfs", "/tmp", "--dev", "/dev", "--proc", "/proc",
            *[word for bind in binds for word in bind], *argv,
        ]  # fmt: skip
        return nullcontext(command)


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_a_program_lives_within_the_sandbox_that_is_given(tmp_path):
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    # In its own /tmp, wherever the tests keep their files.
    written = Path(f"/tmp/caloron-written-{port}")
    code = f"""
def execute(given):
    import socket
    try:
        socket.create_connection(("127.0.0.1", {port}), 2).close()
        network = True
    except OSError:
        network = False
    with open("{written}", "w") as file:
        file.write("within")
    return {{"network": network, "given": given}}
"""
    with listening:
        for effects, network in (((PURE,), False), ((NETWORK,), True)):
            answer = _run(_stage(code, effects=effects), 1, tmp_path, sandbox=_Bubblewrap())
            assert answer == {"network": network, "given": 1}
    assert not written.exists()


def test_a_language_that_nobody_runs_is_said_to_be_missing(tmp_path):
    with pytest.raises(StageMissing, match="the stage program is not implemented here"):
        _run(_stage("fn execute() {}", "rust"), 1, tmp_path)


def test_an_interpreter_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StageMissing, match="node is not installed: it runs javascript"):
        _run(_stage("const execute = (x) => x;", "js"), 1, tmp_path)
    gone = {"python": ["/nowhere/python"]}
    with pytest.raises(StageFailed, match="/nowhere/python cannot be started"):
        _run(_stage("def execute(x):\n    return 1\n"), 1, tmp_path, interpreters=gone)


@pytest.mark.parametrize(("size", "too_long"), [(1000, False), (1001, True)])
def test_an_output_of_exactly_the_limit_is_not_too_long(size, too_long):
    command = [sys.executable, "-c", f"print('x' * {size}, end='')"]
    ended = run_process(command, b"", seconds=60, stopped=lambda: False, max_output=1000)
    assert (len(ended.stdout), ended.too_long) == (1000, too_long)
