"""Stages that are programs run confined: they reach what they declare, and nothing else."""

from __future__ import annotations

import os
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from caloron.engine.graphs.runtime import GraphRuntime, RunOptions
from caloron.graph.errors import StageFailed
from caloron.graph.nodes import Graph, Stage
from caloron.graph.prepare import prepare
from caloron.graph.stage import NETWORK, PURE, Effect, define
from caloron.graph.types import ANY

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")


def _answer(home: Path, code: str, given: Any, *effects: Effect) -> Any:
    at = GraphRuntime(home)
    stage = define("s", ANY, ANY, code=code, language="python", effects=effects or (PURE,))
    at.catalogue.add(stage)
    prepared = prepare(Graph("g", "1", Stage(stage.id)), at.catalogue)
    return at.run(prepared, given, RunOptions(run_id="r", cached=False)).output


def test_only_stages_that_declare_the_network_have_it_and_it_is_the_public_one(tmp_path):
    # Nothing is sent elsewhere: what a stage may reach answers or refuses on this machine.
    code = """def execute(port):
    import os, socket, urllib.error, urllib.request
    found = []
    try:
        socket.create_connection(("127.0.0.1", port), 2).close()
        found.append("direct")
    except OSError:
        pass
    for name in ("no_proxy", "NO_PROXY"):
        os.environ.pop(name, None)
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20)
    except urllib.error.HTTPError as error:
        found.append(f"the proxy says {error.code}")
    except OSError:
        pass
    return found
"""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert _answer(tmp_path, code, port) == []
        assert _answer(tmp_path, code, port, NETWORK) == ["the proxy says 403"]


_LOOK = """def execute(path):
    import os
    try:
        return open(path).read()
    except OSError as error:
        return type(error).__name__
"""


def test_files_are_there_only_where_they_are_declared(tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("told")
    os.chmod(secret, 0o644)  # noqa: PTH101  # also for a user who owns nothing
    home = tmp_path / "home"
    assert _answer(home, _LOOK, str(secret)) == "FileNotFoundError"
    assert _answer(home, _LOOK, str(secret), Effect("FsRead", str(secret))) == "told"


def test_only_what_is_declared_can_be_written(tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    target.chmod(0o777)
    code = f"""def execute(given):
    open("{target}/written", "w").write("here")
    return True
"""
    home = tmp_path / "home"
    with pytest.raises(StageFailed):
        _answer(home, code, 1)
    assert not (target / "written").exists()
    assert _answer(home, code, 1, Effect("FsWrite", str(target))) is True
    assert (target / "written").read_text() == "here"


@pytest.mark.parametrize("path", ["/no/such/place", "/proc/1"])
def test_what_cannot_be_given_to_a_stage_is_a_failure_of_its_node(path, tmp_path):
    with pytest.raises(StageFailed, match="it cannot be confined") as failed:
        _answer(tmp_path, "def execute(x):\n    return x\n", 1, Effect("FsWrite", path))
    assert failed.value.path == "$.root"
    assert list((tmp_path / "graph" / "calls").iterdir()) == []


def test_nothing_of_the_environment_and_of_earlier_calls_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv("GITEA_TOKEN", "hidden")
    code = """def execute(given):
    import os
    found = sorted(os.listdir("."))
    open("left", "w").write("x")
    return {"files": found, "token": "GITEA_TOKEN" in os.environ, "user": os.getuid() == 0}
"""
    for _ in range(2):
        told = _answer(tmp_path, code, 1)
        assert told == {"files": [], "token": False, "user": False}
    assert list((tmp_path / "graph" / "calls").iterdir()) == []


def test_what_a_killed_process_left_goes_when_it_is_old(tmp_path):
    calls = tmp_path / "graph" / "calls"
    for name, age in (("call-old", 7200), ("call-young", 10)):
        (calls / name).mkdir(parents=True)
        then = time.time() - age
        os.utime(calls / name, (then, then))
    assert _answer(tmp_path, "def execute(x):\n    return x\n", 1) == 1
    assert [place.name for place in calls.iterdir()] == ["call-young"]


def test_where_nothing_can_be_confined_no_stage_runs(tmp_path, monkeypatch):
    from caloron.errors import PreconditionFailed

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PreconditionFailed, match="there is no program bwrap"):
        _answer(tmp_path, "def execute(x):\n    return 1\n", 1)
