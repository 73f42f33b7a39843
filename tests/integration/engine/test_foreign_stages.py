"""Stages that are programs run in a sandbox and reach only their declared resources."""

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


def _answer(home: Path, code: str, value: Any, *effects: Effect) -> Any:
    at = GraphRuntime(home)
    stage = define("s", ANY, ANY, code=code, language="python", effects=effects or (PURE,))
    at.catalogue.add(stage)
    prepared = prepare(Graph("g", "1", Stage(stage.id)), at.catalogue)
    return at.run(prepared, value, RunOptions(run_id="r", cached=False)).output


def test_only_stages_that_declare_the_network_reach_the_public_network(tmp_path):
    # Every request stays on this machine.
    code = """def execute(port):
    import os, socket, urllib.error, urllib.request
    reached = []
    try:
        socket.create_connection(("127.0.0.1", port), 2).close()
        reached.append("direct")
    except OSError:
        pass
    for name in ("no_proxy", "NO_PROXY"):
        os.environ.pop(name, None)
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20)
    except urllib.error.HTTPError as error:
        reached.append(f"the proxy says {error.code}")
    except OSError:
        pass
    return reached
"""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert _answer(tmp_path, code, port) == []
        assert _answer(tmp_path, code, port, NETWORK) == ["the proxy says 403"]


_READ_FILE = """def execute(path):
    import os
    try:
        return open(path).read()
    except OSError as error:
        return type(error).__name__
"""


def test_only_declared_files_can_be_read(tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("content")
    os.chmod(secret, 0o644)  # noqa: PTH101  # also for a user who owns nothing
    home = tmp_path / "home"
    assert _answer(home, _READ_FILE, str(secret)) == "FileNotFoundError"
    assert _answer(home, _READ_FILE, str(secret), Effect("FsRead", str(secret))) == "content"


def test_only_declared_folders_can_be_written(tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    target.chmod(0o777)
    code = f"""def execute(value):
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
def test_a_path_that_cannot_be_bound_fails_the_node(path, tmp_path):
    with pytest.raises(StageFailed, match="it cannot be confined") as failed:
        _answer(tmp_path, "def execute(x):\n    return x\n", 1, Effect("FsWrite", path))
    assert failed.value.path == "$.root"
    assert list((tmp_path / "graph" / "calls").iterdir()) == []


def test_a_stage_sees_neither_the_environment_nor_files_of_earlier_calls(tmp_path, monkeypatch):
    monkeypatch.setenv("GITEA_TOKEN", "hidden")
    code = """def execute(value):
    import os
    files = sorted(os.listdir("."))
    open("left", "w").write("x")
    return {"files": files, "token": "GITEA_TOKEN" in os.environ, "user": os.getuid() == 0}
"""
    for _ in range(2):
        answer = _answer(tmp_path, code, 1)
        assert answer == {"files": [], "token": False, "user": False}
    assert list((tmp_path / "graph" / "calls").iterdir()) == []


def test_old_folders_of_killed_processes_are_removed(tmp_path):
    calls = tmp_path / "graph" / "calls"
    for name, age in (("call-old", 7200), ("call-young", 10)):
        (calls / name).mkdir(parents=True)
        then = time.time() - age
        os.utime(calls / name, (then, then))
    assert _answer(tmp_path, "def execute(x):\n    return x\n", 1) == 1
    assert [path.name for path in calls.iterdir()] == ["call-young"]


def test_without_a_sandbox_no_stage_runs(tmp_path, monkeypatch):
    from caloron.errors import PreconditionFailed

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PreconditionFailed, match="there is no program bwrap"):
        _answer(tmp_path, "def execute(x):\n    return 1\n", 1)
