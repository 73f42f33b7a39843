"""The real Gitea that other tests use: it starts, survives a power cut, and leaves nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.support.gitea import Server

ROOT = Path(__file__).parents[2]


def test_a_server_dies_with_the_process_that_started_it(gitea: Server) -> None:
    code = (
        "import os; from tests.support.gitea import Server; s = Server();"
        "print(s.pid, s.folder, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run(
        (sys.executable, "-c", code), cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    pid, folder = done.stdout.split()
    until = time.monotonic() + 30
    while Path("/proc", pid).exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path("/proc", pid).exists()
    assert Path(folder).name.startswith("caloron-gitea-")
    subprocess.run(("rm", "-rf", "--", folder), check=True)


SCRIPT = ROOT / "scripts" / "gitea.sh"
#: A stand-in for Go: its module has the files that the script takes, and its build can fail.
FAKE_GO = """\
#!/bin/sh
echo "$1" >> "$FAKE_GO_LOG"
case "$1" in
mod) mkdir -p "$FAKE_GO_CACHE/code.gitea.io/gitea@v1.26.0"/options
     mkdir -p "$FAKE_GO_CACHE/code.gitea.io/gitea@v1.26.0"/templates
     mkdir -p "$FAKE_GO_CACHE/code.gitea.io/gitea@v1.26.0"/public ;;
env) echo "$FAKE_GO_CACHE" ;;
build) [ ! -e "$FAKE_GO_LOG.fails" ] || exit 1; echo '#!/bin/sh' > ../gitea; chmod +x ../gitea ;;
esac
"""


def _script(folder: Path, path: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "HOME": str(folder), "PATH": path,
        "FAKE_GO_LOG": str(folder / "go.log"), "FAKE_GO_CACHE": str(folder / "modules"),
    }  # fmt: skip
    return subprocess.run(
        (str(SCRIPT),), env=environment, capture_output=True, text=True, check=False
    )


def test_without_go_the_script_names_the_missing_program(tmp_path: Path) -> None:
    path = tmp_path / "bin"
    path.mkdir()
    for name in ("sh", "mkdir", "flock", "id"):
        program = next(p for p in (Path("/usr/bin", name), Path("/bin", name)) if p.exists())
        (path / name).symlink_to(program)
    result = _script(tmp_path, str(path))
    assert (result.returncode, result.stdout) == (1, "")
    assert "Go is missing" in result.stderr


def test_gitea_is_built_once_and_an_interrupted_build_is_repeated(tmp_path: Path) -> None:
    path = tmp_path / "bin"
    path.mkdir()
    (path / "go").write_text(FAKE_GO)
    (path / "go").chmod(0o755)
    search = f"{path}:/usr/bin:/bin"
    fails = tmp_path / "go.log.fails"
    fails.touch()
    failed = _script(tmp_path, search)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "could not be built" in failed.stderr
    fails.unlink()
    built = _script(tmp_path, search)
    assert built.returncode == 0, built.stderr
    again = _script(tmp_path, search)
    program = Path(built.stdout.strip())
    try:
        assert (again.stdout, again.stderr) == (built.stdout, "")
        assert os.access(program, os.X_OK)
        parts = {part.name for part in (program.parent / "static").iterdir()}
        assert parts == {"options", "templates", "public"}
        assert (tmp_path / "go.log").read_text().split().count("build") == 2
    finally:
        if not program.is_relative_to(tmp_path):
            shutil.rmtree(program.parent)
