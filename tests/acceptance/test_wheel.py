"""The wheel that people install: complete by itself, with its declared dependencies alone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.support.documents import ROOT
from tests.support.home import does, task, writes

_WORD = re.compile(r"[\w.-]+")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, because a build leaves files beside the sources."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=ignored)
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "wheel")
    line = (*pip, "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder), str(source))
    subprocess.run(line, check=True)
    (built,) = folder.glob("caloron-*.whl")
    return built


@pytest.fixture(scope="module")
def programs(wheel: Path) -> Iterator[Path]:
    """The `bin` of an environment with the wheel, and with what the wheel requires.

    Sandboxes of root run with other user ids, which must be able to read it.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield install(wheel, Path(folder))


def install(wheel: Path, environment: Path) -> Path:
    venv.create(environment, symlinks=True)
    python = environment / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", str(python), "--quiet", "install", "--no-index")
    subprocess.run((*pip, "--no-deps", str(wheel)), check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    (metadata,) = site.glob("caloron-*.dist-info/METADATA")
    for name in required(re.findall(r"^Requires-Dist: (.+)$", metadata.read_text(), re.MULTILINE)):
        copy_distribution(name, site)
    return environment / "bin"


def required(lines: list[str]) -> set[str]:
    """Return the distributions that these lines require, also indirectly, without extras."""
    found: set[str] = set()
    waiting = list(lines)
    while waiting:
        line = waiting.pop()
        name = _WORD.match(line)
        assert name, line
        if name[0].lower() not in found and not is_optional(line):
            found.add(name[0].lower())
            waiting += distribution(name[0]).requires or []
    return found


def is_optional(line: str) -> bool:
    _, _, marker = line.partition(";")
    return bool(re.search(r"extra|python_version|python_full_version|platform|sys_", marker))


def copy_distribution(name: str, site: Path) -> None:
    for file in distribution(name).files or ():
        if ".." not in file.parts and "__pycache__" not in file.parts:
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(file.locate()), site / file)


def test_a_sprint_of_the_installed_wheel_merges_its_work(programs: Path, tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    shop.mkdir()
    fixture = tmp_path / "fixture.json"
    plan = does("po", output=json.dumps([task("health")]))
    script = {"responses": [plan, writes("health")], "default": "APPROVED"}
    fixture.write_text(json.dumps(script))
    environment = {
        "HOME": str(tmp_path),
        "PATH": f"{programs}:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "CALORON_STUB_FIXTURE": str(fixture),
    }
    lines = (
        "git init -q -b main && git config user.name Ada && git config user.email ada@example.org",
        "git commit -q --allow-empty -m Begin",
        "caloron sprint 'Add a health endpoint' --framework stub --yes",
        "caloron report --format html >report.html",
        "caloron apply",
        "caloron graph check full_cycle",
    )
    done = subprocess.run(
        ("sh", "-ec", "\n".join(lines)),
        cwd=shop,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (shop / "health.txt").read_text() == "health\n"
