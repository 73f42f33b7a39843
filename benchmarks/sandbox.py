"""The time that a sandbox adds to the start of an agent, beside a bare bubblewrap sandbox."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Measure, alternate, median, ratio
from caloron.agents.sandbox import bubblewrap as sandbox
from caloron.agents.supervise import supervise
from caloron.ports import Network, SandboxSpec
from tests.support.unsandboxed import as_argv

_RUNS = 60
_BARE = ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-pid")


def _bare() -> float:
    began = time.perf_counter()
    subprocess.run(("bwrap", *_BARE, "true"), check=True, capture_output=True)
    return time.perf_counter() - began


def _confined(workspace: Path, network: Network) -> Callable[[], float]:
    bubblewrap = sandbox.Bubblewrap()
    spec = SandboxSpec(workspace=workspace, network=network)

    def timed_run() -> float:
        began = time.perf_counter()
        done = supervise.run(bubblewrap.confine(("true",), spec))
        took = time.perf_counter() - began
        assert done.returncode == 0, done.stderr
        return took

    return timed_run


def _started(workspace: Path) -> Callable[[], float]:
    """Return the start alone: the command line is made while a workspace is prepared."""
    confined = sandbox.Bubblewrap().confine(("true",), SandboxSpec(workspace=workspace))
    argv = as_argv(confined)

    def timed_run() -> float:
        began = time.perf_counter()
        subprocess.run(argv, env=confined.env, check=True, capture_output=True)
        return time.perf_counter() - began

    return timed_run


def run() -> list[Measure]:
    if shutil.which("bwrap") is None:
        return [Measure("sandbox start", float("nan"), "x", note="NOT MEASURED: no bubblewrap")]
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder)
        blocks = (_started(workspace), _confined(workspace, "none"), _confined(workspace, "model"))
        started, whole, model, bare = alternate(_RUNS, *blocks, _bare)
    who = "as root" if os.geteuid() == 0 else "as a user"
    explanation = (
        f"{who}; `bwrap … true` {median(bare) * 1000:.1f} ms; medians of {_RUNS} runs in turn"
    )
    return [
        Measure(
            "sandbox start, of bare `bwrap … true`", ratio(started, bare), "x", note=explanation
        ),
        Measure("sandbox start", median(started) * 1000, "ms"),
        Measure("sandbox start with its command line made", median(whole) * 1000, "ms"),
        Measure(
            "sandbox start with network `model`",
            median(model) * 1000,
            "ms",
            note="with the forwarder inside and the proxy outside, until both have ended",
        ),
    ]
