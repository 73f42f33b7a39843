"""A project with planted secrets and a sandbox in it, for root and for an ordinary user.

Run as a program, it runs one command in a real sandbox as the current user: a test that runs as
root also starts a copy of this file as an ordinary user. Request and answer are JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import caloron
from caloron.agents.sandbox.bubblewrap import Bubblewrap
from caloron.agents.supervise.supervise import run
from caloron.errors import CaloronError
from caloron.ports import Caps, SandboxSpec

#: A user without an account and without rights.
ORDINARY = 12_345
SECRET = "marker-of-a-planted-secret"
_SYSTEM_PYTHON = Path("/usr/bin/python3")


class Answer(NamedTuple):
    """How a command in the sandbox ended; `refused` if it was never started."""

    code: int
    out: str
    err: str
    refused: str
    hint: str
    argv: list[str]


class Cage:
    """The files of a project, owned by the user who runs the sandbox."""

    def __init__(self, root: Path, uid: int) -> None:
        self.root = root
        self.uid = uid
        self.user_home = root / "user"
        self.project = root / "project"
        self.run_dir = self.project / "runs" / "a"
        self.workspace = self.run_dir / "workspace"
        self.home = self.run_dir / "home"
        self.mirror = self.project / "mirror.git"
        self.valuables = (
            self.user_home / ".ssh" / "id_ed25519",
            self.user_home / ".aws" / "credentials",
            self.user_home / ".cargo" / "credentials.toml",
            self.project / "ledger.sqlite",
            self.project / "forge.git" / "config",
            self.project / "forge.sqlite",
            self.project / "runs" / "b" / "workspace" / "code.py",
            self.run_dir / "spec.json",
            root / "elsewhere.txt",
        )
        for folder in (self.workspace, self.home, self.mirror):
            folder.mkdir(parents=True)
        for file in (*self.valuables, self.mirror / "HEAD"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(SECRET)
        self._python, self._program = sys.executable, __file__
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.user_home),
            "PYTHONPATH": str(Path(caloron.__file__).parents[1]),
            "MY_TOKEN": SECRET,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def run(self, *argv: str, **request: Any) -> Answer:
        """Run a command in the sandbox."""
        asked = {"argv": argv, "workspace": str(self.workspace), "home": str(self.home)} | request
        done = subprocess.run(
            (self._python, self._program),
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            env=self._environment,
            cwd="/",
            check=False,
            **self._identity(),
        )
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        empty = Answer(-1, "", "", "", "", [])
        return empty._replace(**answer)

    def shell(self, script: str, **request: Any) -> Answer:
        return self.run("sh", "-c", script, **request)

    def python(self, script: str, **request: Any) -> Answer:
        return self.run("PYTHON", script, **request)

    def outside(self, script: str) -> None:
        """Run a script outside, as the user who runs the sandbox."""
        variables = {"GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.invalid"}
        variables |= {
            name.replace("AUTHOR", "COMMITTER"): value for name, value in variables.items()
        }
        environment = self._environment | variables | {"GIT_CONFIG_NOSYSTEM": "1"}
        argv = ("sh", "-c", script)
        subprocess.run(argv, env=environment, cwd=self.root, check=True, **self._identity())

    def _identity(self) -> dict[str, Any]:
        if self.uid == os.getuid():
            return {}
        return {"user": self.uid, "group": self.uid, "extra_groups": []}

    def become_ordinary(self) -> None:
        """Give all files to the ordinary user, with a copy of Caloron that this user can run."""
        source = self.root / "source"
        skip = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(caloron.__file__).parent, source / "caloron", ignore=skip)
        shutil.copytree(Path(msgspec.__file__).parent, source / "msgspec", ignore=skip)
        self._program = shutil.copy(__file__, str(self.root / "cage.py"))
        self._environment["PYTHONPATH"] = str(source)
        self._python = str(_SYSTEM_PYTHON)
        for folder, _, files in os.walk(self.root):
            for name in (".", *files):
                os.chown(Path(folder, name), self.uid, self.uid, follow_symlinks=False)


def can_be_ordinary() -> bool:
    """True if the system has an interpreter that runs our modules for all users."""
    if os.getuid() != 0:
        return True
    if not _SYSTEM_PYTHON.exists():
        return False
    argv = (_SYSTEM_PYTHON, "-c", "import sys; print(*sys.version_info[:2])")
    version = subprocess.run(argv, capture_output=True, text=True, check=False).stdout.split()
    return version == [str(part) for part in sys.version_info[:2]]


@contextmanager
def new_cage(user: str) -> Iterator[Cage]:
    # Other users cannot enter the folder of pytest.
    root = Path(tempfile.mkdtemp(prefix="caloron-cage-"))
    root.chmod(0o755)
    ordinary = user == "user" and os.getuid() == 0
    cage = Cage(root, ORDINARY if ordinary else os.getuid())
    if ordinary:
        cage.become_ordinary()
    try:
        yield cage
    finally:
        shutil.rmtree(root)


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
