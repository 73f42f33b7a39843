"""`caloron stage`: listing, running, adding and testing stages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from caloron.cli.app import main
from caloron.graph.errors import GraphError
from caloron.graph.stage import define
from caloron.graph.stage_file import stage_json, stage_of
from caloron.graph.types import ANY
from scripts.graph_schema import stage_schema
from tests.support.noether import VECTORS

_DOUBLE = {
    "name": "double_n",
    "input": {"Record": [["n", "Number"]]},
    "output": {"Record": [["n", "Number"]]},
    "effects": ["Pure"],
    "implementation": "def execute(input):\n    return {'n': input['n'] * 2}\n",
    "examples": [{"input": {"n": 2}, "output": {"n": 4}}],
}


def _add(run: Any, tmp_path: Path, spec: dict[str, Any], *more: str) -> tuple[int, dict[str, Any]]:
    (tmp_path / "s.json").write_text(json.dumps(spec))
    answer: tuple[int, dict[str, Any]] = run("stage", "add", str(tmp_path / "s.json"), *more)
    return answer


def test_an_added_stage_is_listed_shown_and_run_in_the_sandbox(run, tmp_path):
    code, envelope = _add(run, tmp_path, _DOUBLE)
    assert code == 0
    assert envelope["data"]["id"].startswith("098d96d718575c39")
    assert envelope["data"]["examples"] == 1
    (listed,) = run.data("stage", "list", "--source", "user")["stages"]
    assert (listed["name"], listed["runs_here"]) == ("double_n", True)
    shown = run.data("stage", "show", "098d96d7")
    assert shown["spec"]["implementation_code"] == _DOUBLE["implementation"]
    answer = run("stage", "run", "double_n", "--input", '{"n": 21}')[1]
    assert answer["data"]["output"] == {"n": 42}
    assert run("stage", "run", "double_n", "--input", '{"n": "x"}')[0] == 2
    assert run("stage", "run", "double_n", "--dry-run")[0] == 9
    assert run("stage", "run", "nobody")[0] == 3


def test_a_name_resolves_to_the_stage_added_last(run, tmp_path):
    first = _add(run, tmp_path, _DOUBLE)[1]["data"]["id"]
    triple = _DOUBLE | {
        "implementation": "def execute(input):\n    return {'n': input['n'] * 3}\n",
        "examples": [{"input": {"n": 2}, "output": {"n": 6}}],
        "effects": ["Pure", "Fallible"],
    }
    assert _add(run, tmp_path, triple)[1]["data"]["replaces"] == [first]
    line = ("stage", "run", "double_n", "--input", '{"n": 1}')
    assert run.data(*line)["output"] == {"n": 3}
    assert len(run.data("stage", "list", "--source", "user")["stages"]) == 1
    assert len(run.data("stage", "list", "--source", "user", "--all")["stages"]) == 2
    _add(run, tmp_path, _DOUBLE)
    assert run.data(*line)["output"] == {"n": 2}, "added again, the first is in use again"


def test_a_stage_that_fails_its_examples_is_not_added(run, tmp_path, home):
    wrong = _DOUBLE | {"examples": [{"input": {"n": 2}, "output": {"n": 5}}]}
    code, answer = _add(run, tmp_path, wrong)
    assert (code, answer["error"]["code"]) == (12, "GRAPH_FAILED")
    assert not (home / "stages").exists()
    assert _add(run, tmp_path, wrong, "--dry-run")[0] == 9
    assert not (home / "stages").exists()
    assert _add(run, tmp_path, wrong, "--no-test")[0] == 0
    code, answer = run("stage", "test", "double_n")
    assert (code, answer["data"]["failed"]) == (12, 1)


def test_names_of_built_in_stages_are_reserved(run, tmp_path):
    assert _add(run, tmp_path, _DOUBLE | {"name": "kv_get"})[0] == 5
    assert _add(run, tmp_path, _DOUBLE | {"name": ""})[0] == 5


def test_a_stage_with_the_name_of_a_new_built_in_stage_is_omitted(run, tmp_path, home, capsys):
    answer = _add(run, tmp_path, _DOUBLE)[1]["data"]
    kept = json.loads(Path(answer["path"]).read_text())
    taken = define("kv_get", ANY, ANY, code=kept["implementation_code"], language="python")
    (home / "stages" / f"{taken.id}.json").write_text(json.dumps(stage_json(taken)))
    assert main(["stage", "show", "kv_get"]) == 0
    reply = capsys.readouterr()
    assert "standard, Active" in reply.out
    assert "kv_get comes with the program now" in reply.err


def test_an_invalid_stage_is_refused_with_the_path_of_the_error(run, tmp_path):
    for change, path in (
        ({"input": "Nothing"}, "$.input"),
        ({"effects": ["Sparkling"]}, "$.effects[0]"),
        ({"implementation": "x = 1"}, "$.implementation"),
        ({"implementation": "def execute(input):\n    return 1\nif __name__ == '__main__':"}, "$."),
        ({"examples": [7]}, "$.examples[0]"),
    ):
        (tmp_path / "s.json").write_text(json.dumps(_DOUBLE | change))
        run.refused(2, path, "stage", "add", str(tmp_path / "s.json"))


def test_a_damaged_file_is_reported_and_the_other_stages_are_listed(run, tmp_path, home, capsys):
    _add(run, tmp_path, _DOUBLE)
    (home / "stages" / "bad.json").write_text("{")
    assert main(["stage", "list", "--source", "user"]) == 0
    reply = capsys.readouterr()
    assert reply.out.startswith("double_n")
    assert "bad.json" in reply.err


def test_all_85_stages_of_noether_are_listed_with_the_reason_if_one_cannot_run(run):
    rows = run.data("stage", "list", "--source", "standard")["stages"]
    assert len(rows) == 85
    absent = [row["name"] for row in rows if not row["runs_here"]]
    assert len(absent) == 30
    run.refused(12, "", "stage", "run", "llm_complete", "--input", '{"prompt": "x"}')


def test_the_schema_for_editors_accepts_the_stages_of_the_vectors():
    validator = Draft202012Validator(stage_schema())
    verdicts = set()
    for spec in (vector["spec"] for vector in VECTORS["stages"]):
        if "implementation" not in spec:
            continue
        try:
            stage_of(spec)
        except GraphError as error:
            # A schema cannot detect errors in the code of a stage.
            if error.path == "$.implementation":
                continue
            assert not validator.is_valid(spec), spec
            verdicts.add("refused")
        else:
            assert validator.is_valid(spec), list(validator.iter_errors(spec))
            verdicts.add("taken")
    assert verdicts == {"taken", "refused"}
    assert not validator.is_valid({"name": "x", "implementation": "y", "input": "Text"})
    assert not validator.is_valid(_DOUBLE | {"input": "Nothing"})
