"""How a project is set up and tested, as its files tell."""

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


def test_a_repository_that_tells_nothing_has_an_empty_recipe() -> None:
    assert detected({"README.md": "hello", "docs/a.txt": ""}) == ProjectCommands()


def test_python_without_dependencies_needs_no_setup_and_is_tested_by_unittest() -> None:
    commands = detected({"shop.py": "", "test_shop.py": "import unittest\n"})
    assert (commands.setup, commands.verify) == ("", "python3 -m unittest discover")
    assert commands.env == {}
    assert commands.summary == "python, tests by unittest"


@pytest.mark.parametrize(
    ("files", "line"),
    [
        (("tests/test_a.py",), "python3 -m unittest discover -s tests"),
        (("tests/__init__.py", "tests/test_a.py"), "python3 -m unittest discover"),
        (("tests/unit/test_a.py",), "python3 -m unittest discover -s tests/unit"),
        (
            ("test_a.py", "more/test_b.py"),
            "python3 -m unittest discover && python3 -m unittest discover -s more",
        ),
        (("node_modules/x/test_a.py", ".venv/lib/test_b.py"), ""),
    ],
)
def test_unittest_starts_where_it_finds_the_tests(files: tuple[str, ...], line: str) -> None:
    assert detected(dict.fromkeys(("app.py", *files), "")).verify == line


def test_unittest_finds_the_tests_that_its_line_is_for(tmp_path: Path) -> None:
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


def test_a_comment_that_names_pytest_is_no_use_of_it() -> None:
    commands = detected({"requirements.txt": "click # we gave up pytest\n", "test_a.py": ""})
    assert commands.verify == "python3 -m unittest discover"


def test_having_no_tests_yet_is_not_red_but_losing_them_is() -> None:
    without = detected({"app.py": "", "pytest.ini": ""})
    assert without.verify == "{ python3 -m pytest || [ $? -eq 5 ]; }"
    assert detected({"test_a.py": "", "pytest.ini": ""}).verify == "python3 -m pytest"


def test_requirements_go_into_a_virtual_environment() -> None:
    commands = detected({"app.py": "", "requirements.txt": "click\n", "requirements-dev.txt": "x"})
    assert commands.setup == f"{_VENV} -r requirements.txt -r requirements-dev.txt"
    assert commands.lock_files == ("requirements-dev.txt", "requirements.txt")
    assert commands.products == (".venv",)
    assert commands.path == ("{workspace}/.venv/bin",)
    assert commands.summary.startswith(
        "python with requirements.txt and requirements-dev.txt (pip)"
    )


def test_requirements_that_hold_only_comments_need_no_setup() -> None:
    assert detected({"app.py": "", "requirements.txt": "# none\n\n"}).setup == ""


def test_what_requirements_include_or_install_from_decides_too() -> None:
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


def test_a_package_is_installed_editable_with_what_its_tests_need() -> None:
    commands = detected({"pyproject.toml": _PYPROJECT, "src/shop/a.py": "", "tests/test_a.py": ""})
    assert commands.setup == f"{_VENV} -e '.[test]'"
    assert commands.verify == "python3 -m pytest"


def test_an_application_gets_only_what_it_depends_on() -> None:
    project = '[project]\nname = "a"\ndependencies = ["click; python_version > \'3\'"]'
    commands = detected({"pyproject.toml": project, "a/x.py": "", "b/y.py": ""})
    assert commands.setup == f"""{_VENV} 'click; python_version > '"'"'3'"'"''"""


def test_groups_of_dependencies_are_followed_without_end_or_options() -> None:
    groups = """
[dependency-groups]
dev = ["ruff", {include-group = "test"}, "--index-url=elsewhere"]
test = ["coverage", {include-group = "dev"}, {include-group = "lost"}, 7]
"""
    commands = detected({"pyproject.toml": groups, "app.py": ""})
    assert commands.setup == f"{_VENV} ruff coverage"


def test_compiled_sources_decide_whether_what_was_made_is_still_right() -> None:
    setup = "setup(ext_modules=[Extension('a', ['a.c'])], packages=['a'])"
    assert "a.c" in detected({"setup.py": setup, "a.c": "", "b.py": ""}).lock_files
    assert "a.c" not in detected({"setup.py": "packages", "a.c": "", "b.py": ""}).lock_files


def test_uv_is_used_where_it_is_and_pip_where_it_is_not() -> None:
    commands = detected({"uv.lock": "", "pyproject.toml": _PYPROJECT})
    assert commands.setup == (
        "if command -v uv >/dev/null; then uv sync --frozen --extra test; "
        f"else {_VENV} -e '.[test]'; fi"
    )
    assert {"uv.lock", "pyproject.toml"} <= set(commands.lock_files)


@pytest.mark.parametrize(
    ("lock", "line"),
    [
        ("package-lock.json", "npm ci --no-audit --no-fund"),
        ("pnpm-lock.yaml", "pnpm install --frozen-lockfile"),
        ("yarn.lock", "yarn install --frozen-lockfile"),
        ("other.txt", "npm install --no-audit --no-fund --no-package-lock"),
    ],
)
def test_node_is_installed_by_whose_lock_file_is_there(lock: str, line: str) -> None:
    commands = detected({"package.json": package(dependencies={"a": "1"}), lock: "{}"})
    assert commands.setup == line
    assert "package.json" in commands.lock_files
    assert (lock in commands.lock_files) is (lock != "other.txt")


def test_the_test_that_npm_writes_into_every_package_is_none() -> None:
    placeholder = {"test": 'echo "Error: no test specified" && exit 1'}
    assert detected({"package.json": package(scripts=placeholder)}) == ProjectCommands(
        summary="node, no tests found"
    )
    assert (
        detected({"package.json": package(scripts={"test": "jest"})}).verify == "CI=true npm test"
    )


def test_rust_is_fetched_once_and_tested_without_a_network() -> None:
    commands = detected({"Cargo.toml": "[workspace]", "Cargo.lock": "", "a/Cargo.toml": ""})
    assert commands.setup == "cargo fetch --locked"
    assert commands.verify == "cargo test --workspace --offline"
    assert commands.lock_files == ("Cargo.lock", "Cargo.toml", "a/Cargo.toml")
    assert detected({"Cargo.toml": ""}).setup == "cargo fetch"


def test_go_downloads_and_compiles_once() -> None:
    compiled = "{ go vet ./... >/dev/null 2>&1 || true; }"
    commands = detected({"go.mod": "module a\nrequire b v1.0.0\n", "go.sum": ""})
    assert commands.setup == f"go mod download && {compiled}"
    assert commands.verify == "go test ./..."
    vendored = detected({"go.mod": "module a\nrequire b v1", "vendor/modules.txt": ""})
    assert vendored.setup == compiled


def test_make_is_asked_only_when_nothing_else_has_tests() -> None:
    rules = "all:\n\ttrue\ntest: all\n\ttrue\n"
    assert detected({"Makefile": rules}).verify == "make test"
    assert detected({"Makefile": "test := yes\n"}).verify == ""
    assert detected({"Makefile": rules, "go.mod": "module a"}).verify == "go test ./..."


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


def test_the_users_own_lines_win_and_none_means_none() -> None:
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


def test_places_are_those_that_are_seen_inside() -> None:
    commands = detected({"requirements.txt": "click", "a.py": ""})
    assert environment(commands, Path("/workspace"))["VIRTUAL_ENV"] == "/workspace/.venv"
    argv = with_path(commands, Path("/workspace"), ("sh", "-c", 'echo "$PATH $1"', "sh", "a b"))
    env = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "/workspace/.venv/bin:/usr/bin:/bin a b\n"
    assert with_path(ProjectCommands(), Path("/workspace"), ("true",)) == ("true",)


def test_a_lock_hash_tells_other_content_and_other_files_apart() -> None:
    commands = ProjectCommands(lock_files=("a", "b"))
    hashes = [lock_hash(commands, ids) for ids in ({"a": "1"}, {"b": "1"}, {"a": "1", "b": "1"})]
    assert len(set(hashes)) == 3
    assert lock_hash(commands, {"a": "1", "other": "2"}) == hashes[0]
    assert lock_hash(ProjectCommands(), {"a": "1"}) == ""


def test_a_file_that_cannot_be_read_counts_as_empty() -> None:
    def refuse(name: str) -> str:
        raise NotFound(name)

    assert detect(["package.json", "pyproject.toml", "setup.py"], refuse).setup == ""


def test_a_name_for_the_shell_is_never_taken() -> None:
    files = {"tests;reboot/test_a.py": "", "a.py": "", "requirements-dev.txt": "x"}
    assert ";reboot" not in detected(files).verify


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
def test_whatever_the_files_hold_a_recipe_is_one_line_each_and_the_shell_can_read_it(
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
