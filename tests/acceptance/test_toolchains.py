"""Real package managers: what setup makes in one workspace works in the next."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from caloron.agents.supervise.supervise import run
from caloron.agents.workspace.project_detection import lock_hash
from caloron.ports import SandboxSpec
from tests.integration.agents.setup_bench import SANDBOX, SetupBench, detect_commands
from tests.integration.agents.test_proxy import corporate_proxy


@pytest.fixture
def bench(tmp_path: Path) -> SetupBench:
    return SetupBench(tmp_path)


def needs(tool: str, ask: str = "--version") -> pytest.MarkDecorator:
    return pytest.mark.skipif(not _runs(tool, ask), reason=f"{tool} does not run here")


def _runs(tool: str, ask: str) -> bool:
    """True if a tool works: a tool that rustup installed for another HOME does not."""
    if shutil.which(tool) is None:
        return False
    return subprocess.run((tool, ask), capture_output=True, check=False).returncode == 0


def test_a_python_environment_works_in_the_second_workspace(bench: SetupBench) -> None:
    files = {
        "requirements.txt": "--no-index\n./lib\n",
        "lib/pyproject.toml": _BACKEND.format(name="greet"),
        "lib/backend.py": _WHEEL.format(name="greet"),
        "app.py": "import greet\n",
    }
    commands = detect_commands(files)
    for name, ran in (("1", True), ("2", False)):
        workspace = bench.workspace(name, files)
        assert bench.install(workspace, commands, lock_hash(commands, files)) is ran
        greeting = bench.inside(
            workspace, commands, "python3 -c 'import app, greet; print(greet.HI)'"
        )
        assert greeting == "hello from greet"
        prefix = bench.inside(workspace, commands, "python3 -c 'import sys; print(sys.prefix)'")
        assert prefix == "/workspace/.venv"
        assert bench.inside(workspace, commands, ".venv/bin/pip --version").startswith("pip ")
    changed = files | {"lib/backend.py": _WHEEL.format(name="greet").replace("hello", "bye")}
    third = bench.workspace("3", changed)
    assert bench.install(third, commands, lock_hash(commands, changed)) is True
    assert bench.inside(third, commands, "python3 -c 'import greet; print(greet.HI)'").startswith(
        "bye"
    )


#: A build backend in a few lines, because the usual ones would have to be downloaded.
_BACKEND = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "{name}"
version = "1"
"""
_WHEEL = """
import zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    file = "{name}-1-py3-none-any.whl"
    info = "{name}-1.dist-info/"
    with zipfile.ZipFile(folder + "/" + file, "w") as wheel:
        wheel.writestr("{name}.py", "HI = 'hello from {name}'")
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: {name}\\nVersion: 1\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\n"
                       "Tag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return file
"""


_PROJECTS = {
    "npm": {
        "package.json": json.dumps(
            {
                "name": "shop",
                "dependencies": {"greet": "file:lib"},
                "scripts": {"test": "node app.js"},
            }
        ),
        "lib/package.json": json.dumps({"name": "greet", "version": "1.0.0", "main": "i.js"}),
        "lib/i.js": "module.exports = 'hello from greet'\n",
        "app.js": "console.log(require('greet'))\n",
    },
    "cargo": {
        "Cargo.toml": '[package]\nname = "shop"\nversion = "1.0.0"\nedition = "2021"\n',
        "src/lib.rs": "#[test]\nfn adds() { assert_eq!(1 + 1, 2); }\n",
    },
    "go": {
        "go.mod": "module shop\n\ngo 1.21\n\nrequire greet v1.0.0\n\nreplace greet => ./lib\n",
        "lib/go.mod": "module greet\n\ngo 1.21\n",
        "lib/greet.go": 'package greet\n\nconst Hi = "hello"\n',
        "a_test.go": 'package shop\n\nimport (\n\t"greet"\n\t"testing"\n)\n\n'
        'func TestHi(t *testing.T) {\n\tif greet.Hi != "hello" {\n\t\tt.Fail()\n\t}\n}\n',
    },
}


@pytest.mark.parametrize(
    ("tool", "greeting"),
    [
        pytest.param("npm", "hello from greet", marks=needs("npm")),
        pytest.param("cargo", "1 passed", marks=needs("cargo")),
        pytest.param("go", "ok", marks=needs("go", "version")),
    ],
)
def test_a_project_is_verified_in_the_second_workspace_without_another_setup(
    bench: SetupBench, tool: str, greeting: str
) -> None:
    files = _PROJECTS[tool]
    commands = detect_commands(files)
    for name, ran in (("1", True), ("2", False)):
        workspace = bench.workspace(name, files)
        assert bench.install(workspace, commands, lock_hash(commands, files)) is ran
        assert greeting in bench.inside(workspace, commands, commands.verify)


#: How each tool is asked for a package of a registry that only the proxy of this machine knows;
#: a tool that resolves names itself, or has no proxy, never gets there.
_ASKS = {
    "cargo": "cargo search x --index sparse+https://registry.invalid/",
    "curl": "curl https://registry.invalid/x",
    "git": "git ls-remote https://registry.invalid/x",
    "go": "GOPROXY=https://registry.invalid go mod download example.invalid/x@v1.0.0",
    "mvn": "mvn -B -q validate",
    "npm": "npm view x --registry=https://registry.invalid --fetch-retries=0",
    "pip": "python3 -m pip download --retries 0 -i https://registry.invalid/simple x",
    "pnpm": "pnpm add x --registry=https://registry.invalid --fetch-retries=0",
    "uv": "uv pip install --target t --index-url https://registry.invalid/simple x",
    "yarn": "yarn add x@1.0.0",
}
_VERSIONS = {"go": "go version", "pip": "python3 -m pip --version"}
_ASKING = {
    "go.mod": "module shop\n\ngo 1.21\n",
    "package.json": '{"name": "shop", "version": "1.0.0"}',
    "yarn.lock": "",
    ".yarnrc": 'registry "https://registry.invalid"\n',
    ".yarnrc.yml": "npmRegistryServer: https://registry.invalid\nhttpRetry: 0\n",
    "pom.xml": """<project><modelVersion>4.0.0</modelVersion><artifactId>shop</artifactId>
<parent><groupId>x</groupId><artifactId>y</artifactId><version>1</version><relativePath/></parent>
<repositories><repository><id>central</id><url>https://registry.invalid</url></repository>
</repositories></project>""",
}


@pytest.mark.parametrize("tool", _ASKS)
def test_a_package_manager_reaches_its_registry_through_the_proxy(
    bench: SetupBench, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = bench.workspace("1", _ASKING)
    SANDBOX.give_ownership(workspace)

    def inside(line: str) -> int:
        spec = SandboxSpec(workspace=workspace, network="public")
        return run(SANDBOX.confine(("sh", "-c", line), spec), timeout_s=120).returncode

    program = shutil.which("python3" if tool == "pip" else tool)
    # A program of the system has to run; the user's own programs may not be visible inside.
    if not program or (
        not program.startswith("/usr/") and inside(_VERSIONS.get(tool, f"{tool} --version"))
    ):
        pytest.skip(f"{tool} is not installed here, or not where a sandbox sees it")
    with corporate_proxy() as (port, heard):
        for name in ("HTTPS_PROXY", "HTTP_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        inside(_ASKS[tool])
    assert any(line.startswith("CONNECT registry.invalid:443 ") for line in heard), heard
