"""Detection of the setup and test commands of a project from its files."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caloron.agents.workspace.project_detection import (
    ProjectCommands,
    apply_overrides,
    detect,
    environment,
    lock_hash,
    with_path,
)
from caloron.errors import NotFound

_VENV = "python3 -m venv .venv && .venv/bin/python -m pip install"
_PYPROJECT = """
[build-system]
requires = ["setuptools"]
[project]
name = "shop"
version = "1"
dependencies = ["click"]
[project.optional-dependencies]
test = ["pytest"]
docs = ["sphinx"]
"""


def detected(files: dict[str, str]) -> ProjectCommands:
    return detect(files, files.__getitem__)


def package(**content: object) -> str:
    return json.dumps(content)


def test_a_repository_without_known_files_has_no_commands() -> None:
    assert detected({"README.md": "hello", "docs/a.txt": ""}) == ProjectCommands()


_APPLICATION = '[project]\nname = "a"\ndependencies = ["click; python_version > \'3\'"]'
_GROUPS = """
[dependency-groups]
dev = ["ruff", {include-group = "test"}, "--index-url=elsewhere"]
test = ["coverage", {include-group = "dev"}, {include-group = "lost"}, 7]
"""
_MAKEFILE = "all:\n\ttrue\ntest: all\n\ttrue\n"
_NO_TEST = {"test": 'echo "Error: no test specified" && exit 1'}
_NEEDS = package(dependencies={"a": "1"})
_UNITTEST, _PYTEST = "python3 -m unittest discover", "python3 -m pytest"
_VET = "{ go vet ./... >/dev/null 2>&1 || true; }"


@pytest.mark.parametrize(
    ("files", "setup", "verify"),
    [
        # Python without dependencies needs no setup; unittest starts where the tests are.
        ({"shop.py": "", "test_shop.py": "import unittest\n"}, "", _UNITTEST),
        ({"a.py": "", "tests/test_a.py": ""}, "", f"{_UNITTEST} -s tests"),
        ({"tests/__init__.py": "", "tests/test_a.py": ""}, "", _UNITTEST),
        ({"tests/unit/test_a.py": ""}, "", f"{_UNITTEST} -s tests/unit"),
        ({"test_a.py": "", "more/test_b.py": ""}, "", f"{_UNITTEST} && {_UNITTEST} -s more"),
        ({"a.py": "", "node_modules/x/test_a.py": "", ".venv/lib/test_b.py": ""}, "", ""),
        # A file name that the shell would interpret is never used.
        ({"tests;reboot/test_a.py": "", "a.py": ""}, "", ""),
        # A comment that names pytest does not use it, and comments alone need no setup.
        ({"requirements.txt": "# pytest\n\n", "test_a.py": ""}, "", _UNITTEST),
        # Having no tests yet is not red, but losing them is.
        ({"app.py": "", "pytest.ini": ""}, f"{_VENV} pytest", f"{{ {_PYTEST} || [ $? -eq 5 ]; }}"),
        ({"test_a.py": "", "pytest.ini": ""}, f"{_VENV} pytest", _PYTEST),
        # A package is installed editable with what its tests need; an application is not.
        ({"pyproject.toml": _PYPROJECT, "src/shop/a.py": "", "tests/test_a.py": ""},
         f"{_VENV} -e '.[test]'", _PYTEST),
        ({"pyproject.toml": _APPLICATION, "a/x.py": "", "b/y.py": ""},
         f"""{_VENV} 'click; python_version > '"'"'3'"'"''""", ""),
        # Cyclic groups of dependencies end, and options in them are ignored.
        ({"pyproject.toml": _GROUPS, "app.py": ""}, f"{_VENV} ruff coverage", ""),
        # The lock file decides which program installs Node packages.
        ({"package.json": _NEEDS, "package-lock.json": ""}, "npm ci --no-audit --no-fund", ""),
        ({"package.json": _NEEDS, "pnpm-lock.yaml": ""}, "pnpm install --frozen-lockfile", ""),
        ({"package.json": _NEEDS, "yarn.lock": ""}, "yarn install --frozen-lockfile", ""),
        ({"package.json": _NEEDS}, "npm install --no-audit --no-fund --no-package-lock", ""),
        # The default test that npm writes into every package does not count.
        ({"package.json": package(scripts=_NO_TEST)}, "", ""),
        ({"package.json": package(scripts={"test": "jest"})}, "", "CI=true npm test"),
        # Rust is fetched once and tested without a network.
        ({"Cargo.toml": "[workspace]", "Cargo.lock": ""},
         "cargo fetch --locked", "cargo test --workspace --offline"),
        ({"Cargo.toml": ""}, "cargo fetch", "cargo test --offline"),
        # Go downloads and compiles once.
        ({"go.mod": "module a", "go.sum": ""}, f"go mod download && {_VET}", "go test ./..."),
        ({"go.mod": "module a", "vendor/modules.txt": ""}, _VET, "go test ./..."),
        # Make is used only if no other tool has tests.
        ({"Makefile": _MAKEFILE}, "", "make test"),
        ({"Makefile": "test := yes\n"}, "", ""),
        ({"Makefile": _MAKEFILE, "package.json": package(scripts={"test": "x"})},
         "", "CI=true npm test"),
    ],
)  # fmt: skip
def test_setup_and_test_commands_follow_the_files_of_the_project(
    files: dict[str, str], setup: str, verify: str
) -> None:
    commands = detected(files)
    assert (commands.setup, commands.verify) == (setup, verify)


@pytest.mark.parametrize(
    ("files", "locks"),
    [
        ({"package.json": _NEEDS, "yarn.lock": "", "other.txt": ""}, ("package.json", "yarn.lock")),
        ({"Cargo.toml": "", "Cargo.lock": "", "a/Cargo.toml": ""},
         ("Cargo.lock", "Cargo.toml", "a/Cargo.toml")),
        ({"go.mod": "", "go.sum": "", "a.go": ""}, ("go.mod", "go.sum")),
    ],
)  # fmt: skip
def test_lock_files_and_manifests_decide_whether_setup_runs_again(
    files: dict[str, str], locks: tuple[str, ...]
) -> None:
    assert detected(files).lock_files == locks


def test_the_unittest_command_runs_the_tests_of_the_project(tmp_path: Path) -> None:
    files = {
        "tests/unit/test_a.py": "tests/unit",
        "pkg/__init__.py": "",
        "pkg/test_b.py": "",
        "test_c.py": "",
    }
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        test = "import unittest\nclass T(unittest.TestCase):\n def test_it(self): pass\n"
        (tmp_path / name).write_text(test if "test_" in name else "")
    commands = detect(files, lambda name: (tmp_path / name).read_text())
    done = subprocess.run(
        commands.verify, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    ran = [int(line.split()[1]) for line in done.stderr.splitlines() if line.startswith("Ran ")]
    assert sum(ran) == 3


@pytest.mark.parametrize(
    "files",
    [
        {"conftest.py": ""},
        {"pytest.ini": "[pytest]"},
        {"tox.ini": "[testenv]\ncommands = pytest"},
        {"setup.cfg": "[tool:pytest]\naddopts = -q"},
        {"requirements-dev.txt": "pytest==8"},
        {"pyproject.toml": "[tool.pytest.ini_options]"},
        {"pyproject.toml": '[dependency-groups]\ntest = ["pytest>=8"]'},
        {"pyproject.toml": '[tool.poetry.group.dev.dependencies]\npytest = "^8"'},
        {"test_style.py": "def test_it():\n    assert True\n"},
        {"test_style.py": "import pytest\n"},
    ],
)
def test_pytest_is_used_and_installed_where_a_project_names_it(files: dict[str, str]) -> None:
    commands = detected({"app.py": "", "tests/test_a.py": ""} | files)
    assert commands.verify == "python3 -m pytest"
    installed = commands.setup + "".join(files.values())
    assert "pytest" in installed
    assert commands.setup.startswith((_VENV, "if command -v poetry"))


def test_requirements_go_into_a_virtual_environment() -> None:
    commands = detected({"app.py": "", "requirements.txt": "click\n", "requirements-dev.txt": "x"})
    assert commands.setup == f"{_VENV} -r requirements.txt -r requirements-dev.txt"
    assert commands.lock_files == ("requirements-dev.txt", "requirements.txt")
    assert commands.products == (".venv",)
    assert commands.path == ("{workspace}/.venv/bin",)
    assert commands.summary.startswith(
        "python with requirements.txt and requirements-dev.txt (pip)"
    )


def test_files_that_requirements_include_decide_whether_setup_runs_again() -> None:
    files = {
        "requirements.txt": "-r more/base.txt\n--constraint=pins.txt\n./lib\n-e ./plugin\n-r /x",
        "more/base.txt": "-r deep.txt",
        "more/deep.txt": "-r base.txt\nclick",
        "pins.txt": "click==8",
        "lib/setup.py": "",
        "lib/code.py": "",
        "plugin/pyproject.toml": "",
        "plugin/code.py": "",
    }
    assert detected(files).lock_files == (
        "lib/code.py",
        "lib/setup.py",
        "more/base.txt",
        "more/deep.txt",
        "pins.txt",
        "plugin/pyproject.toml",
        "requirements.txt",
    )


def test_compiled_sources_decide_whether_setup_runs_again() -> None:
    setup = "setup(ext_modules=[Extension('a', ['a.c'])], packages=['a'])"
    assert "a.c" in detected({"setup.py": setup, "a.c": "", "b.py": ""}).lock_files
    assert "a.c" not in detected({"setup.py": "packages", "a.c": "", "b.py": ""}).lock_files


def test_uv_is_used_if_installed_and_pip_otherwise() -> None:
    commands = detected({"uv.lock": "", "pyproject.toml": _PYPROJECT})
    assert commands.setup == (
        "if command -v uv >/dev/null; then uv sync --frozen --extra test; "
        f"else {_VENV} -e '.[test]'; fi"
    )
    assert {"uv.lock", "pyproject.toml"} <= set(commands.lock_files)


def test_several_kinds_of_code_are_set_up_and_tested_together() -> None:
    commands = detected(
        {
            "requirements.txt": "click",
            "test_a.py": "",
            "package.json": package(devDependencies={"a": "1"}, scripts={"test": "jest"}),
            "package-lock.json": "{}",
        }
    )
    assert commands.setup == f"{_VENV} -r requirements.txt && npm ci --no-audit --no-fund"
    assert commands.verify == "python3 -m unittest discover && CI=true npm test"
    assert commands.products == (".venv", "node_modules")
    assert commands.summary.count(";") == 1


def test_configured_commands_win_and_none_disables_a_command() -> None:
    files = {"requirements.txt": "click", "test_a.py": "", "tools/setup.sh": ""}
    commands = detected(files)
    own = apply_overrides(commands, files, setup="sh ./tools/setup.sh", verify="make check")
    assert (own.setup, own.verify) == ("sh ./tools/setup.sh", "make check")
    assert own.lock_files == ("requirements.txt", "tools/setup.sh")
    unseen = apply_overrides(
        ProjectCommands(), [*files, "Pipfile.lock", "src/go.mod"], setup="make", verify=""
    )
    assert unseen.lock_files == ("Pipfile.lock", "requirements.txt")
    nothing = apply_overrides(commands, files, setup="none", verify="none")
    assert (nothing.setup, nothing.verify, nothing.env, nothing.path) == ("", "", {}, ())
    assert apply_overrides(commands, files, setup="", verify="") == commands


def test_paths_are_those_inside_the_sandbox() -> None:
    commands = detected({"requirements.txt": "click", "a.py": ""})
    assert environment(commands, Path("/workspace"))["VIRTUAL_ENV"] == "/workspace/.venv"
    argv = with_path(commands, Path("/workspace"), ("sh", "-c", 'echo "$PATH $1"', "sh", "a b"))
    env = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "/workspace/.venv/bin:/usr/bin:/bin a b\n"
    assert with_path(ProjectCommands(), Path("/workspace"), ("true",)) == ("true",)


def test_a_lock_hash_differs_by_content_and_by_file() -> None:
    commands = ProjectCommands(lock_files=("a", "b"))
    hashes = [lock_hash(commands, ids) for ids in ({"a": "1"}, {"b": "1"}, {"a": "1", "b": "1"})]
    assert len(set(hashes)) == 3
    assert lock_hash(commands, {"a": "1", "other": "2"}) == hashes[0]
    assert lock_hash(ProjectCommands(), {"a": "1"}) == ""


def test_a_file_that_cannot_be_read_counts_as_empty() -> None:
    def refuse(name: str) -> str:
        raise NotFound(name)

    assert detect(["package.json", "pyproject.toml", "setup.py"], refuse).setup == ""


_NAMES = (
    "pyproject.toml", "requirements.txt", "setup.py", "setup.cfg", "tox.ini", "package.json",
    "package-lock.json", "Cargo.toml", "go.mod", "Makefile", "conftest.py", "uv.lock",
    "tests/test_a.py", "manage.py",
)  # fmt: skip
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
_ODD_TABLES = st.dictionaries(
    st.sampled_from(["scripts", "dependencies", "devDependencies", "workspaces"]), _JSON
).map(json.dumps)
_TOML_KEYS = st.sampled_from(
    ["project", "build-system", "dependency-groups", "tool.poetry", "tool.pytest", "workspace",
     "project.dependencies", "project.optional-dependencies", "dependency-groups.dev"]
)  # fmt: skip
_ODD_TOML = st.tuples(_TOML_KEYS, _JSON.map(json.dumps)).map(" = ".join)
_CONTENT = st.text() | _ODD_TABLES | _ODD_TOML | st.just("[" * 100_000)


@given(st.dictionaries(st.sampled_from(_NAMES) | st.text(), _CONTENT, max_size=8))
def test_each_command_is_one_valid_shell_line_for_any_files(
    files: dict[str, str],
) -> None:
    commands = detected(files)
    for line in (commands.setup, commands.verify):
        assert "\n" not in line
        assert "\0" not in line
    assert set(commands.lock_files) <= set(files)


@given(st.lists(st.text(min_size=1), min_size=1, max_size=5))
def test_no_dependency_can_become_a_command(dependencies: list[str]) -> None:
    listed = json.dumps(dependencies, ensure_ascii=False)
    project = f'[project]\nname = "a"\ndependencies = {listed}\n'
    setup = detected({"pyproject.toml": project, "a.py": ""}).setup
    if setup:
        words = setup.removeprefix(_VENV)
        done = subprocess.run(
            ("sh", "-c", f"printf '%s\\0' {words}"), capture_output=True, check=True
        )
        assert set(done.stdout.decode().split("\0")) <= {*dependencies, ""}
