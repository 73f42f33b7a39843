"""Runs one command in a real sandbox as the current user: `escapes.py < REQUEST`.

A test that runs as root also starts this file as an ordinary user, so the same tests cover both
kinds of sandbox. Request and answer are JSON.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from caloron.agents.sandbox.bubblewrap import Bubblewrap
from caloron.agents.supervise.supervise import run
from caloron.errors import CaloronError
from caloron.ports import Caps, SandboxSpec


def perform(request: dict[str, Any]) -> dict[str, Any]:
    """Confine and run the command of a request, and return its exit code and output."""
    mirror = request.get("mirror")
    sandbox = Bubblewrap(mirror=Path(mirror) if mirror else None)
    workspace = Path(request["workspace"])
    home = Path(request["home"]) if request.get("home") else None
    spec = SandboxSpec(
        workspace=workspace,
        home=home,
        read_only=tuple(map(Path, request.get("read_only", ()))),
        network=request.get("network", "none"),
        hosts=tuple(request.get("hosts", ())),
        env=request.get("env", {}),
        caps=Caps(**request.get("caps", {})),
    )
    argv = tuple(request["argv"])
    if argv[0] == "PYTHON":
        argv = (sys.executable, "-S", "-E", "-c", *argv[1:])
    try:
        if not request.get("keep_owner"):
            sandbox.give_ownership(workspace, *(() if home is None else (home,)))
        confined = sandbox.confine(argv, spec)
        done = run(confined, request.get("stdin", "").encode(), timeout_s=120)
    except CaloronError as error:
        return {"refused": str(error), "hint": error.hint}
    except subprocess.TimeoutExpired:
        return {"refused": "it never ended", "hint": ""}
    return {
        "code": done.returncode,
        "out": done.stdout.decode("utf-8", "replace"),
        "err": done.stderr.decode("utf-8", "replace"),
        "argv": confined.argv,
    }


def main() -> None:
    request = json.load(sys.stdin)
    with socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0caloron-escapes-{os.getpid()}")
        abstract.listen()
        request["argv"] = [word.replace("@DRIVER@", str(os.getpid())) for word in request["argv"]]
        print(json.dumps(perform(request)))


if __name__ == "__main__":
    main()
