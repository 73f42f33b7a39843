"""Scripts that were written for Noether: each recorded run, through our command line."""

from __future__ import annotations

import io
import json

from caloron.cli.main import main
from tests.support.noether import VECTORS


def test_scripts_written_for_noether_get_its_answers(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CALORON_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    file = str(tmp_path / "file.json")
    for vector in VECTORS["stages"]:
        if vector["exit"] == 0:
            (tmp_path / "file.json").write_text(json.dumps(vector["spec"]))
            assert main(["stage", "add", file, "--no-test", "--profile", "noether"]) == 0
    for vector in VECTORS["runs"]:
        (tmp_path / "file.json").write_text(json.dumps(vector["graph"]))
        line = ["graph", "run", file, "--noether", "--unsandboxed", *vector["flags"]]
        capsys.readouterr()
        code = main([*line, "--input", json.dumps(vector["input"])])
        said = capsys.readouterr()
        assert code == vector["exit"], vector["name"]
        if code == 0:
            data = json.loads(said.out)["data"]
            assert data["output"] == vector["output"], vector["name"]
            assert data["effects"] == vector["effects"], vector["name"]
            assert data["warnings"] == vector["warnings"], vector["name"]
        else:
            assert said.out == "", vector["name"]
            assert json.loads(said.err)["error"]["code"] == "GENERAL_ERROR", vector["name"]
