"""How a Python project is set up and tested: uv, poetry, or a virtual environment with pip."""

from __future__ import annotations

import posixpath
import re
import shlex
from typing import Any

from caloron.agents.workspace.project_detection import PYTHON_FILES, ProjectCommands, ProjectFiles
from caloron.json_values import items, table, text

_ENV = {
    "VIRTUAL_ENV": "{workspace}/.venv",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
}
_UV_ENV = {
    # Its cache is on another file system than the workspace, and goes away.
    "UV_LINK_MODE": "copy",
    "UV_PYTHON_INSTALL_DIR": "{workspace}/.caloron/python",
}
_FOR_TESTS = ("dev", "develop", "development", "test", "tests", "testing")
_REQUIREMENTS = re.compile(
    r"(requirements([-_.](dev|develop|tests?|testing|ci))?|(dev|tests?)[-_]requirements)\.txt\Z"
)
_INCLUDE = re.compile(r"(?:-r|-c|--requirement|--constraint)[\s=]*(\S+)")
_LOCAL = re.compile(r"(-e|--editable)?[\s=]*(?:file:)?(\.{1,2}/[^\s;#\[]*|\.(?=$|[\s\[]))")
_PACKAGING = ("pyproject.toml", "setup.py", "setup.cfg")
_PURE_BACKENDS = ("setuptools", "hatchling", "flit_core", "poetry", "pdm", "uv_build")
_EXTENSIONS = re.compile(r"ext[_-]modules|Extension\(|cythonize|cffi_modules")
_COMPILED = (".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".pyx", ".pxd", ".rs", ".f90", ".go")
_BUILD_FILES = ("Cargo.toml", "Cargo.lock", "CMakeLists.txt", "meson.build")
_PYTEST = re.compile(r"\bpytest\b")
_PYTEST_STYLE = re.compile(r"^(import pytest|from pytest|(async )?def test_)", re.MULTILINE)
_INSTALLS = re.compile(r"\b(install_requires|extras_require|packages|package_dir)\b")
_TEST_FILE = re.compile(r"(test_.*|tests?)\.py\Z")
_PYTEST_FILE = re.compile(r"(test_.*|.*_test)\.py\Z")
_NOT_OURS = re.compile(r"(^|/)(\.[^/]*|node_modules|vendor|venv|site-packages)/")
_SAMPLE = 50
_LISTED = 200


def python_commands(project: ProjectFiles) -> ProjectCommands | None:
    """Return the commands of a Python project; None if it is none."""
    python = _Python(project)
    if not python.exists:
        return None
    setup, how = python.setup()
    verify, tests = python.verify()
    summary = " ".join(word for word in ("python", how) if word)
    if not setup:
        return ProjectCommands(verify=verify, summary=_summary(summary, tests))
    products = (".venv", ".caloron/python") if python.uv else (".venv",)
    return ProjectCommands(
        setup=setup,
        verify=verify,
        lock_files=python.lock_files(),
        products=products,
        env=_ENV | (_UV_ENV if python.uv else {}),
        path=("{workspace}/.venv/bin",),
        summary=_summary(summary, tests),
    )


def _summary(kind: str, tests: str) -> str:
    return f"{kind}, {f'tests by {tests}' if tests else 'no tests found'}"


class _Python:
    """The Python project in the files of a repository."""

    def __init__(self, project: ProjectFiles) -> None:
        self._project = project
        self._pyproject = project.toml("pyproject.toml")
        self._declared = table(self._pyproject, "project")
        self._optional = table(self._declared, "optional-dependencies")
        self._groups = table(self._pyproject, "dependency-groups")
        self._poetry = table(self._pyproject, "tool", "poetry")
        ours = (name for name in project.names if not _NOT_OURS.search(name))
        self._sources = sorted(name for name in ours if name.endswith(".py"))
        named = (name for name in project.names if _REQUIREMENTS.match(name))
        #: Those at the root for running and testing, the shortest name first.
        self._requirements = sorted(named, key=lambda name: (len(name), name))
        self.uv = "uv.lock" in project.names

    @property
    def exists(self) -> bool:
        return bool(self._sources or self._project.present(*PYTHON_FILES))

    def setup(self) -> tuple[str, str]:
        """Return the line that installs, and its description for people."""
        pip, source = self._pip()
        if self.uv:
            return _either("uv", f"uv sync --frozen{self._uv_extras()}", pip), "with uv.lock (uv)"
        if self._poetry and not self._declared:
            line = "POETRY_VIRTUALENVS_IN_PROJECT=true poetry install --no-interaction"
            return _either("poetry", line, pip), "with pyproject.toml (poetry)"
        return pip, f"with {source} (pip)" if pip else ""

    def _pip(self) -> tuple[str, str]:
        words: list[str] = []
        sources: list[str] = []
        for name in self._requirements:
            if _without_comments(self._project.text(name)).strip():
                words += ["-r", name]
                sources.append(name)
        if packaged := self._packaged():
            words += ["-e", f".{self._extras()}"]
            sources.append(packaged)
        elif listed := _requirements_in(self._declared.get("dependencies")):
            words += [*listed[:_LISTED], *self._extra_requirements()]
            sources.append("pyproject.toml")
        words += self._group_requirements()
        if self._by_pytest() and not _PYTEST.search(self._installed_text(words)):
            words.append("pytest")
        if not words:
            return "", ""
        arguments = " ".join(shlex.quote(word) for word in words)
        return (
            f"python3 -m venv .venv && .venv/bin/python -m pip install {arguments}",
            " and ".join(sources) or "pytest",
        )

    def _packaged(self) -> str:
        """Return the file that makes the repository itself a package to install; empty: none.

        A [project] without a build system is an application more often than a package, and the
        default build system refuses those with several folders: then only what it needs counts.
        """
        if table(self._pyproject, "build-system"):
            return "pyproject.toml"
        in_src = any(name.startswith("src/") for name in self._sources)
        if self._declared and (in_src or "setup.py" in self._project.names):
            return "pyproject.toml"
        for name in self._project.present("setup.py", "setup.cfg"):
            if _INSTALLS.search(self._project.text(name)):
                return name
        return ""

    def _extras(self) -> str:
        known = {**self._optional, **table(self._poetry, "extras")}
        chosen = [name for name in _FOR_TESTS if name in known]
        return f"[{','.join(chosen)}]" if chosen else ""

    def _uv_extras(self) -> str:
        return "".join(f" --extra {name}" for name in _FOR_TESTS if name in self._optional)

    def _extra_requirements(self) -> list[str]:
        lists = (_requirements_in(self._optional.get(name)) for name in _FOR_TESTS)
        return [item for listed in lists for item in listed][:_LISTED]

    def _group_requirements(self) -> list[str]:
        requirements: list[str] = []
        waiting = [name for name in _FOR_TESTS if name in self._groups]
        queued = set(waiting)
        while waiting and len(requirements) < _LISTED:
            members = self._groups[waiting.pop(0)]
            requirements += _requirements_in(members)
            for other in (text(member, "include-group") for member in items(members)):
                if other in self._groups and other not in queued:
                    queued.add(other)
                    waiting.append(other)
        return requirements[:_LISTED]

    def _installed_text(self, words: list[str]) -> str:
        """Return all texts in which a requirement of pytest would stand."""
        texts = [*words, *(self._project.text(name) for name in self._requirements)]
        if "-e" in words:
            texts += self._extra_requirements()
            texts += _requirements_in(self._declared.get("dependencies"))
            texts += self._project.text("setup.py"), self._project.text("setup.cfg")
        return "\n".join(texts)

    def lock_files(self) -> tuple[str, ...]:
        names = ("uv.lock", "poetry.lock", "pyproject.toml", "setup.py", "setup.cfg", "MANIFEST.in")
        files = dict.fromkeys(self._project.present(*names, ".python-version"))
        files |= dict.fromkeys(self._compiled_sources())
        waiting = list(self._requirements)
        while waiting:
            name = waiting.pop()
            if name not in files:
                files[name] = None
                waiting += self._named_in(name)
        return tuple(sorted(files))

    def _named_in(self, name: str) -> list[str]:
        """Return the files of the repository that a requirements file includes or installs from."""
        here = posixpath.dirname(name)
        paths: list[str] = []
        for line in self._project.text(name).splitlines():
            if include := _INCLUDE.match(line.strip()):
                path = posixpath.normpath(posixpath.join(here, include[1]))
                paths += self._project.present(path)
            elif local := _LOCAL.match(line.strip()):
                # Unlike an included file, such a path counts from where pip is started.
                paths += self._installed_from(posixpath.normpath(local[2]), bool(local[1]))
        return paths

    def _installed_from(self, folder: str, editable: bool) -> tuple[str, ...]:
        """Return the files that decide how a package of the repository itself is installed.

        One that is not editable is a copy, so every file of it counts.
        """
        below = self._project.under(folder) if folder != "." else tuple(sorted(self._project.names))
        if not editable:
            return self._project.present(folder) or below
        return tuple(name for name in below if posixpath.basename(name) in _PACKAGING)

    def _compiled_sources(self) -> list[str]:
        """Return the sources that setup compiles: if they change, its products are out of date."""
        backend = table(self._pyproject, "build-system").get("build-backend", "setuptools")
        pure = isinstance(backend, str) and backend.startswith(_PURE_BACKENDS)
        packaging = self._project.text("setup.py") + self._project.text("pyproject.toml")
        if pure and not _EXTENSIONS.search(packaging):
            return []
        ends = (*_COMPILED, *_BUILD_FILES)
        return [name for name in self._project.names if name.endswith(ends)]

    def verify(self) -> tuple[str, str]:
        """Return the line that tests, and the name of its runner."""
        if self._by_pytest():
            if any(_PYTEST_FILE.match(posixpath.basename(s)) for s in self._sources):
                return "python3 -m pytest", "pytest"
            # Exit code 5 says that there are no tests, which is true before the first is written.
            return "{ python3 -m pytest || [ $? -eq 5 ]; }", "pytest (there are none yet)"
        if "manage.py" in self._project.names and "django" in self._project.text("manage.py"):
            return "python3 manage.py test", "manage.py (django)"
        starts = sorted({self._discovery_start(name) for name in self._test_files()})
        lines = [_discover(start) for start in starts[:8]]
        return " && ".join(lines), "unittest" if lines else ""

    def _test_files(self) -> list[str]:
        return [name for name in self._sources if _TEST_FILE.match(posixpath.basename(name))]

    def _discovery_start(self, name: str) -> str:
        """Return the folder in which unittest must start: from there it enters packages only."""
        folder = posixpath.dirname(name)
        while folder and f"{folder}/__init__.py" in self._project.names:
            folder = posixpath.dirname(folder)
        return folder

    def _by_pytest(self) -> bool:
        project = self._project
        if project.present("pytest.ini", ".pytest.ini", "conftest.py", "tests/conftest.py"):
            return True
        if table(self._pyproject, "tool", "pytest"):
            return True
        asked = [name for name in ("tox.ini", "setup.cfg") if name in project.names]
        texts = [_without_comments(project.text(name)) for name in (*asked, *self._requirements)]
        texts += self._extra_requirements() + self._group_requirements()
        texts += _requirements_in(self._declared.get("dependencies"))
        texts += _keys(self._poetry)
        if any(_PYTEST.search(text) for text in texts):
            return True
        sample = [*self._test_files()[:_SAMPLE]]
        return any(_PYTEST_STYLE.search(project.text(name)) for name in sample)


def _either(tool: str, line: str, otherwise: str) -> str:
    """Use a tool where it is installed; where not, what comes nearest."""
    if not otherwise:
        return line
    return f"if command -v {tool} >/dev/null; then {line}; else {otherwise}; fi"


def _discover(start: str) -> str:
    command = "python3 -m unittest discover"
    return f"{command} -s {shlex.quote(start)}" if start else command


def _requirements_in(value: Any) -> list[str]:
    """Return the requirements of a list, each of one line; an option of pip is none."""
    texts = (item for item in items(value) if isinstance(item, str) and item.isprintable())
    return [item for item in texts if item and not item.startswith("-")]


def _without_comments(text: str) -> str:
    return "\n".join(line.split("#")[0].split(";")[0] for line in text.splitlines())


def _keys(poetry: dict[str, Any]) -> list[str]:
    """Return the names of everything that poetry installs."""
    groups = table(poetry, "group").values()
    tables = [table(poetry, "dependencies"), table(poetry, "dev-dependencies")]
    tables += [table(group, "dependencies") for group in groups]
    return [name for each in tables for name in each]
