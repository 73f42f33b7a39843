"""`caloron graph`: checking, running and showing graphs."""

from __future__ import annotations

import gc
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from jsonschema import Draft202012Validator

from caloron.cli.app import main
from caloron.engine import traces as run_traces
from caloron.graph.catalogue import Catalogue
from caloron.graph.errors import GraphError
from caloron.graph.parser import parse_graph
from caloron.graph.runners.examples import run_examples
from caloron.graph.runners.functions import FunctionRunner, RunnerChain
from caloron.graph.stage import Example, define
from caloron.graph.stdlib import StandardLibrary, standard_stages
from caloron.graph.storage.journal import SqliteJournal
from caloron.graph.types import ANY
from scripts.graph_schema import graph_schema
from tests.support.noether import VECTORS, wrapped

_UPPER = {"op": "Stage", "id": "text_upper"}
_LENGTH = {"op": "Stage", "id": "text_length"}
_BOTH = {"op": "Sequential", "stages": [_UPPER, _LENGTH]}
_WRITE_FILE = next(stage.id for stage in standard_stages() if stage.name == "write_file")


def _file(tmp_path: Path, root: Any, name: str = "g.json") -> str:
    path = tmp_path / name
    path.write_text(root if isinstance(root, str) else wrapped(root))
    return str(path)


def _stage(run: Any, tmp_path: Path, code: str, **more: Any) -> None:
    spec = {"name": "mine", "input": "Any", "output": "Any", "implementation": code, **more}
    (tmp_path / "mine.json").write_text(json.dumps(spec))
    assert run("stage", "add", str(tmp_path / "mine.json"), "--no-test")[0] == 0


def test_a_run_answers_and_leaves_a_trace(run, tmp_path):
    code, answer = run("graph", "run", _file(tmp_path, _BOTH), "--input", '"four"')
    assert (code, answer["data"]["output"], answer["data"]["calls"]) == (0, 4, 2)
    named = run.data("graph", "trace", answer["data"]["run_id"])
    assert [call["stage"] for call in named["stages"]] == ["text_upper", "text_length"]
    assert named["stages"][1]["path"] == "$.root.stages[1]"
    assert run.data("graph", "trace", answer["data"]["composition_id"]) == named
    (listed,) = run.data("graph", "trace")["runs"]
    assert listed["run_id"] == answer["data"]["run_id"]
    assert run("graph", "trace", "nobody")[0] == 3


def test_the_text_output_is_only_the_answer(tmp_path, capsys):
    assert main(["graph", "run", _file(tmp_path, _UPPER), "--input", '"a\\u001b[2J"']) == 0
    assert json.loads(capsys.readouterr().out) == "A\x1b[2J"


def test_answers_of_pure_stages_are_cached_between_runs(run, tmp_path):
    line = ("graph", "run", _file(tmp_path, _BOTH), "--input", '"x"')
    assert run.data(*line)["cache"] == {"hits": 0, "misses": 2}
    assert run.data(*line)["cache"] == {"hits": 2, "misses": 0}
    assert run.data(*line, "--no-cache")["cache"] == {"hits": 0, "misses": 0}


def test_values_of_kv_stages_persist_between_runs(run, tmp_path):
    put = {"op": "Stage", "id": "kv_set", "config": {"key": "k", "value": [1]}}
    get = {"op": "Stage", "id": "kv_get", "config": {"key": "k"}}
    assert run("graph", "run", _file(tmp_path, put), "--input", "{}")[0] == 0
    answer = run("graph", "run", _file(tmp_path, get), "--input", "{}")[1]
    assert answer["data"]["output"] == [1]


@pytest.mark.parametrize("how", ["json", "file", "stdin"])
def test_the_input_is_an_argument_a_file_or_standard_input(how, run, tmp_path, monkeypatch):
    (tmp_path / "input.json").write_text('"abc"')
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'"abc"')))
    value = {"json": '"abc"', "file": "input.json", "stdin": "-"}[how]
    line = ("graph", "run", _file(tmp_path, _UPPER), "--input", value)
    assert run.data(*line)["output"] == "ABC"


_DEEP = '{"op":"Sequential","stages":[' * 1000 + "]}" * 1000


def test_a_missing_input_file_is_reported(run, tmp_path):
    line = ("graph", "run", _file(tmp_path, _UPPER), "--input")
    for name in ("nowhere.json", "./nowhere"):
        run.refused(2, f"there is no file {name!r}", *line, name)


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        (wrapped({"op": "Loop"}), "$.root"),
        (wrapped({"op": "Stage"}), "id"),
        (wrapped({"op": "Stage", "id": 7}), "$.root.id"),
        (wrapped({"op": "Retry", "stage": _UPPER, "max_attempts": "3"}), "$.root.max_attempts"),
        ('{"description":"d","version":"1","root":' + _DEEP + "}", "deep"),
        ('{"description":"d","version":"1","root":{"op":"Const","value":NaN}}', "NaN"),
        ('{"description":"d","version":"1","root":{"op":"Const","op":"Const","value":1}}', "op"),
        ('{"description":"d","version":"1","root":{"op":"Const","value":' + "9" * 40 + "}}", "64"),
        ("not json", "not JSON"),
        ("", "not JSON"),
        ("[]", "$"),
    ],
)  # fmt: skip
def test_malformed_json_is_one_clear_error_with_its_position(text, reply, run, tmp_path):
    for command in ("run", "check", "plan", "id", "show", "test"):
        run.refused(2, reply, "graph", command, _file(tmp_path, text))


def test_check_reports_each_error_with_its_path_and_both_types(run, tmp_path):
    wrong = {"op": "Sequential", "stages": [_LENGTH, _UPPER, _LENGTH, _UPPER]}
    code, answer = run("graph", "check", _file(tmp_path, wrong))
    assert code == 2
    errors = answer["data"]["errors"]
    assert [(e["path"], e["expected"], e["found"]) for e in errors] == [
        ("$.root.stages[1]", "Text", "Number"),
        ("$.root.stages[3]", "Text", "Number"),
    ]
    missing = {"op": "Parallel", "branches": {"a": {"op": "Stage", "id": "no"}, "b": _UPPER,
                                              "c": {"op": "Stage", "id": "neither"}}}  # fmt: skip
    code, answer = run("graph", "check", _file(tmp_path, missing))
    assert code == 3
    places = [error["path"] for error in answer["data"]["errors"]]
    assert places == ["$.root.branches.a", "$.root.branches.c"]


def test_check_infers_the_types_of_an_input_without_a_run(run, tmp_path):
    assert run("graph", "check", _file(tmp_path, _BOTH), "--input", '"x"')[0] == 0
    code, answer = run("graph", "check", _file(tmp_path, _BOTH), "--input", "7")
    assert (code, answer["data"]["errors"][0]["path"]) == (2, "$.root.stages[0]")
    assert run.data("graph", "trace")["runs"] == []


def test_a_forbidden_effect_a_small_budget_or_a_missing_model_fails_the_run(run, tmp_path):
    get = _file(tmp_path, {"op": "Stage", "id": "http_get", "config": {"url": "http://x"}})
    assert run("graph", "run", get, "--allow-effects", "pure")[0] == 2
    ask = _file(tmp_path, {"op": "Stage", "id": "llm_complete", "config": {"prompt": "x"}})
    assert run("graph", "run", ask, "--budget-cents", "4")[0] == 2
    # Without a model no example is the answer.
    run.refused(12, "", "graph", "run", ask, "--input", "{}")


@pytest.mark.parametrize(
    ("code", "reply"),
    [
        ("def execute(x):\n    print('noise')\n    return 1\n", "not JSON"),
        ("def execute(x):\n    import sys\n    sys.exit(3)\n", "exit 3"),
        ("def execute(x):\n    raise ValueError('not today')\n", "not today"),
        ("def execute(x):\n    import time\n    time.sleep(60)\n", "not done after"),
        ("def execute(x):\n    return [1]\n", "expected Text"),
    ],
)
def test_a_failed_stage_is_reported_with_its_node(code, reply, run, tmp_path):
    _stage(run, tmp_path, code, output="Text")
    graph = _file(tmp_path, {"op": "Parallel", "branches": {"a": {"op": "Stage", "id": "mine"}}})
    line = ("graph", "run", graph, "--input", "{}", "--stage-timeout", "2")
    assert run.refused(12, reply, *line)["message"].startswith("$.root.branches.a")
    (listed,) = run.data("graph", "trace")["runs"]
    assert listed["status"] == "Failed"


def test_a_dry_run_names_the_stages_and_runs_none(run, tmp_path):
    graph = _file(tmp_path, _BOTH)
    code, answer = run("graph", "run", graph, "--dry-run")
    assert code == 9
    targets = [action["target"] for action in answer["planned_actions"]]
    assert targets == ["text_upper", "text_length"]
    assert run.data("graph", "trace")["runs"] == []


def test_a_plan_lists_order_and_cost(run, tmp_path):
    fan = {"op": "Fanout", "source": _UPPER, "targets": [_LENGTH, _LENGTH]}
    data = run.data("graph", "plan", _file(tmp_path, fan))
    assert [step["after"] for step in data["steps"]] == [[], [0], [0]]
    assert data["groups"] == [[1, 2]]


_EVERY_OP = {
    "op": "Let",
    "bindings": {
        "a": {"op": "Branch", "predicate": {"op": "Const", "value": True},
              "if_true": {"op": "Retry", "stage": _UPPER, "max_attempts": 2, "delay_ms": 5},
              "if_false": {"op": "Stage", "id": "gone"}},
        "b <&>": {"op": "Parallel", "branches": {"x": _UPPER, "y": _LENGTH}},
    },
    "body": {"op": "Merge", "sources": [_UPPER, {"op": "RemoteStage", "url": "http://h/",
             "input": {"kind": "Text"}, "output": {"kind": "Text"}}],
             "target": {"op": "Fanout", "source": _UPPER, "targets": [_UPPER, _LENGTH]}},
}  # fmt: skip


def test_show_draws_every_node_as_text_and_as_a_picture(run, tmp_path):
    picture = tmp_path / "g.svg"
    answer = run.data("graph", "show", _file(tmp_path, _EVERY_OP), "--svg", str(picture))
    drawn = answer["drawing"]
    assert "│  │  └─ text_upper  Text → Text" in drawn
    assert "gone  no stage is called 'gone'" in drawn
    assert len(drawn.splitlines()) == 17
    svg = ElementTree.parse(picture).getroot()  # written a moment ago
    boxes = [r for r in svg.iter("{http://www.w3.org/2000/svg}rect") if r.get("x")]
    assert len(boxes) == 16
    width, height = float(svg.get("width", 0)), float(svg.get("height", 0))
    for box in boxes:
        x, y, w, h = (float(box.get(name, 0)) for name in ("x", "y", "width", "height"))
        assert 0 <= x <= x + w <= width
        assert 0 <= y <= y + h <= height


def test_a_picture_does_not_overwrite_another_file(run, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    line = ("graph", "show", _file(tmp_path, _UPPER), "--svg", "mine.txt")
    assert run(*line)[0] == 5
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert run(*line, "--force")[0] == 0
    assert run(*line)[0] == 0


def test_examples_of_a_graph_are_run_and_can_fail(run, tmp_path):
    graph = json.loads(wrapped(_BOTH))
    graph["_examples"] = [{"input": "four", "output": 4}]
    code, answer = run("graph", "test", _file(tmp_path, json.dumps(graph)))
    assert (code, answer["data"]["passed"]) == (0, 1)
    graph["_examples"] = [{"input": "four", "output": 5}, {"input": 4, "output": 4}]
    code, answer = run("graph", "test", _file(tmp_path, json.dumps(graph)))
    assert (code, len(answer["data"]["tests"][0]["reasons"])) == (12, 2)


@pytest.mark.parametrize("profile", ["strict", "noether"])
@pytest.mark.parametrize("constant", [True, False])
def test_examples_do_not_run_effects_of_a_stage_passed_as_data(run, tmp_path, profile, constant):
    written = tmp_path / "written"
    name = _WRITE_FILE if profile == "noether" else "write_file"
    value: dict[str, Any] = {"items": [{"path": str(written), "content": "x"}]}
    node: dict[str, Any] = {"op": "Stage", "id": "map"}
    if constant:
        node["config"] = {"stage_id": name}
    else:
        value["stage_id"] = name
    graph = json.loads(wrapped(node))
    answer = [{"bytes_written": 1, "path": str(written)}]
    graph["_examples"] = [{"input": value, "output": answer}]
    line = ("graph", "test", _file(tmp_path, json.dumps(graph)), "--profile", profile)
    tested = run.data(*line)["tests"][0]
    assert not written.exists(), "an example wrote a file"
    assert tested["state"] != "passed"
    if profile == "strict":
        assert tested["state"] == "skipped"
        assert "fs-write" in tested["reasons"][0]
        if constant:
            assert "fallible" in run.data("graph", "check", line[2])["effects"]


@pytest.mark.parametrize("name", ["write_file", "kv_set"])
def test_examples_do_not_run_a_stage_with_effects(run, tmp_path, name):
    written = tmp_path / "written"
    value = {"path": str(written), "content": "x", "key": "k", "value": 1}
    graph = json.loads(wrapped({"op": "Stage", "id": name}))
    graph["_examples"] = [{"input": value, "output": "ok"}]
    tested = run("graph", "test", _file(tmp_path, json.dumps(graph)))[1]["data"]["tests"][0]
    assert tested["state"] == "skipped"
    assert not written.exists()
    assert run.data("stage", "run", "kv_get", "--input", '{"key": "k"}')["output"] is None


def test_examples_of_a_stage_do_not_run_effects(tmp_path):
    def careless(value: Any, call: Any) -> Any:
        return call.stage("write_file", {"path": str(tmp_path / "written"), "content": "x"})

    example = Example(1, {"bytes_written": 1, "path": str(tmp_path / "written")})
    stage = msgspec.structs.replace(define("careless", ANY, ANY), examples=(example,))
    functions = FunctionRunner()
    functions.add(stage, careless)
    catalogue = Catalogue([*standard_stages(), stage])
    tried = run_examples(stage, catalogue, RunnerChain(functions, StandardLibrary()))
    assert not (tmp_path / "written").exists()
    assert tried.state == "failed"
    assert "write_file may not run here" in tried.reasons[0]


def test_a_run_that_succeeded_after_a_retry_is_listed_as_ok(run, tmp_path):
    code = """def execute(value):
    import os
    if os.path.exists(value):
        return "done"
    open(value, "w").close()
    raise RuntimeError("not yet")
"""
    _stage(run, tmp_path, code, effects=["Fallible"])
    node = {"op": "Retry", "stage": {"op": "Stage", "id": "mine"}, "max_attempts": 2}
    node["delay_ms"] = None
    line = ("graph", "run", _file(tmp_path, node), "--unsandboxed", "--run-id", "rt1")
    exit_code, answer = run(*line, "--input", json.dumps(str(tmp_path / "flag")))
    assert (exit_code, answer["data"]["output"], answer["data"]["status"]) == (0, "done", "Ok")
    (listed,) = run.data("graph", "trace")["runs"]
    assert listed["status"] == "Ok"
    calls = run.data("graph", "trace", "rt1")["stages"]
    assert [call["status"] for call in calls] == ["Failed", "Ok"]


def test_a_graph_a_drawing_and_map_resolve_a_stage_alike(run, tmp_path):
    _stage(run, tmp_path, "def execute(value):\n    return value + 1\n", effects=["Pure"])
    _stage(run, tmp_path, "def execute(value):\n    return value + 2\n", effects=["Fallible"])
    (mine,) = run.data("stage", "list", "--source", "user")["stages"]
    for reference in ("mine", mine["id"], mine["id"][:10]):
        node = {"op": "Stage", "id": reference}
        assert run.data("graph", "run", _file(tmp_path, node), "--input", "1")["output"] == 3
        drawn = run.data("graph", "show", _file(tmp_path, node))["drawing"]
        assert "mine  Any → Any" in drawn
        mapped = {"op": "Stage", "id": "map", "config": {"stage_id": reference}}
        answer = run("graph", "run", _file(tmp_path, mapped), "--input", '{"items": [1]}')[1]
        assert answer["data"]["output"] == [3]


_KEY = "sk-planted-0123456789abcdef"


def _bytes_under(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


def test_a_graph_alone_cannot_start_a_process(run, tmp_path, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", _KEY)
    seen = tmp_path / "seen"
    inputs = {"cmd": "sh", "args": ["-c", f"env > {seen}"]}
    graph = _file(tmp_path, {"op": "Stage", "id": "spawn_process"})
    assert run("graph", "check", graph)[0] == 0
    line = ("graph", "run", graph, "--input", json.dumps(inputs))
    run.refused(12, "write a stage that is a program", *line)
    time.sleep(0.2)
    assert not seen.exists(), "a process was started"


def test_an_unsandboxed_program_gets_no_secrets(run, tmp_path, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", _KEY)
    code = "def execute(value):\n    import os\n    return dict(os.environ)\n"
    _stage(run, tmp_path, code, effects=["Fallible"])
    answer = run("stage", "run", "mine", "--input", "1", "--unsandboxed")[1]
    assert _KEY not in json.dumps(answer)
    assert answer["data"]["output"]["PATH"] == os.environ["PATH"]


def test_a_durable_run_leaves_no_secret_on_the_disk(run, tmp_path, home, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", _KEY)
    both = {
        "op": "Sequential",
        "stages": [{"op": "Stage", "id": i} for i in ("env_get", "to_json")],
    }
    line = ["graph", "run", _file(tmp_path, both), "--durable", "--run-id", "secret-1"]
    line += ["--input", '{"name": "ANTHROPIC_API_KEY"}']
    for _ in range(2):
        assert run.data(*line)["output"] == json.dumps(_KEY)
    assert b"secret-1" in _bytes_under(home / "graph" / "runs")
    assert _KEY.encode() not in _bytes_under(home)
    files = [home / "graph" / "runs", *(home / "graph" / "runs").rglob("*")]
    assert not [file for file in files if file.stat().st_mode & 0o077], "readable by others"


def test_a_failed_durable_run_leaves_no_secret_on_the_disk(run, tmp_path, home, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", _KEY)
    both = [{"op": "Stage", "id": "env_get"}, {"op": "Stage", "id": "mine"}]
    _stage(run, tmp_path, "def execute(value):\n    raise RuntimeError('bad key ' + value)\n")
    line = ["graph", "run", _file(tmp_path, {"op": "Sequential", "stages": both}), "--durable"]
    line += ["--run-id", "secret-2", "--input", '{"name": "ANTHROPIC_API_KEY"}']
    assert run(*line)[0] == 12
    assert _KEY.encode() not in _bytes_under(home)
    assert "bad key" in run.data("graph", "trace", "secret-2")["error"]["message"]


def test_many_runs_leave_no_descriptor_open(run, tmp_path):
    line = ["graph", "run", _file(tmp_path, _BOTH), "--durable", "--input", '"x"']
    run(*line)
    gc.disable()
    try:
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(5):
            assert run(*line)[0] == 0
        assert len(list(Path("/proc/self/fd").iterdir())) <= before
    finally:
        gc.enable()


def test_a_trace_that_another_process_removed_does_not_fail_the_run(
    run, tmp_path, home, monkeypatch
):
    monkeypatch.setattr(run_traces, "_KEPT_TRACES", 2)
    (home / "traces").mkdir(parents=True)
    # The link stands for a file that disappears after the folder was listed.
    (home / "traces" / "gone.json").symlink_to("nowhere")
    line = ("graph", "run", _file(tmp_path, _UPPER), "--input", '"x"')
    assert [run(*line)[0] for _ in range(4)] == [0, 0, 0, 0]
    assert len(list((home / "traces").iterdir())) == 2


@pytest.mark.parametrize("broken", ["folder", "full"])
def test_an_unwritable_journal_is_reported(run, tmp_path, home, monkeypatch, broken):
    line = ["graph", "run", _file(tmp_path, _BOTH), "--durable", "--run-id", "r"]
    line += ["--input", json.dumps("x" * 100_000)]
    if broken == "folder":
        (home / "graph").mkdir(parents=True)
        (home / "graph" / "runs").write_text("in the way")
    else:
        opened = SqliteJournal.__init__

        def small(self: SqliteJournal, *args: Any, **named: Any) -> None:
            opened(self, *args, **named)
            self._database._connection.execute("PRAGMA max_page_count = 8")

        monkeypatch.setattr(SqliteJournal, "__init__", small)
    error = run.refused(8, "space", *line)
    assert "rollback" not in error["message"]
    assert "is full" in error["message"] or broken == "folder"
    assert "--run-id" not in error["hint"]


def test_a_run_id_of_another_input_is_refused(run, tmp_path):
    line = ["graph", "run", _file(tmp_path, _UPPER), "--durable", "--run-id", "r", "--input"]
    assert run(*line, '"a"')[0] == 0
    run.refused(5, "choose another --run-id", *line, '"b"')


_SLOW = """def execute(value):
    import os, time
    with open(value["log"], "a") as log:
        log.write("call\\n")
    while value.get("wait") and not os.path.exists(value["log"] + ".go"):
        time.sleep(0.02)
    return {"log": value["log"], "wait": True}
"""


def test_a_killed_durable_run_continues_without_repeating_finished_stages(run, tmp_path):
    _stage(run, tmp_path, _SLOW, effects=["Fallible"])
    graph = _file(tmp_path, {"op": "Sequential", "stages": [{"op": "Stage", "id": "mine"}] * 2})
    log = tmp_path / "log"
    line = ["graph", "run", graph, "--durable", "--run-id", "slow-1", "--unsandboxed"]
    line += ["--input", json.dumps({"log": str(log), "wait": False})]
    first = subprocess.Popen(
        [sys.executable, "-m", "caloron.cli", *line], env=os.environ | {"PYTHONPATH": _SOURCES}
    )
    while not log.exists() or log.read_text().count("call") < 2:
        assert first.poll() is None
        time.sleep(0.02)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    Path(f"{log}.go").touch()
    code, answer = run(*line)
    assert (code, answer["data"]["output"]["wait"]) == (0, True)
    assert log.read_text().count("call") == 3, "the second call was under way and is made again"
    calls = run.data("graph", "trace", "slow-1")["stages"]
    assert [call["source"] for call in calls] == ["journal", "run"]
    other = [*line[:-1], json.dumps({"log": "elsewhere"})]
    assert run(*other)[0] == 5, "a run id belongs to one input"


_SOURCES = str(Path(__file__).parents[3] / "src")


def test_the_schema_for_editors_accepts_exactly_what_strict_accepts():
    validator = Draft202012Validator(graph_schema())
    graphs = [vector["graph"] for vector in VECTORS["runs"] + VECTORS["checks"]]
    graphs += [json.loads(wrapped(_EVERY_OP)), json.loads(wrapped({"op": "Loop"}))]
    graphs += [json.loads(wrapped({"op": "Stage", "id": "a", "idd": 1}))]
    verdicts = set()
    for graph in graphs:
        try:
            parse_graph(json.dumps(graph))
            reads = True
        except GraphError:
            reads = False
        assert validator.is_valid(graph) is reads, graph
        verdicts.add(reads)
    assert verdicts == {True, False}
