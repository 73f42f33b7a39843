"""Detects from a project's files how it is set up and tested.

Only the root of the repository counts. The result is shell lines that run in the sandbox alone, so
a hostile file can mislead detection but nothing more.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from caloron.errors import CaloronError
from caloron.json_values import table, text
from caloron.store import log

#: Only such names go into a shell line; each is also a word of its own for the shell.
_PLAIN = re.compile(r"[A-Za-z0-9_.+@-]+(/[A-Za-z0-9_.+@-]+)*\Z")

#: Each of these shows a Python project, as does any Python source.
PYTHON_FILES = ("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "uv.lock")


#: Never resolved on PATH: a branch can install a program of any name.
SHELL = "/bin/sh"
_NONE = "none"
_PLACEHOLDER = "{workspace}"
_NO_TEST_YET = "no test specified"
_DEPENDENCIES = ("dependencies", "devDependencies", "optionalDependencies", "peerDependencies")
_MAKEFILES = ("GNUmakefile", "makefile", "Makefile")
_MANIFEST = re.compile(
    r"([^/]*requirements[^/]*\.(txt|in)|pyproject\.toml|setup\.(py|cfg)|[^/]*[.-]lock(\.json|\.yaml)?"
    r"|package\.json|Cargo\.toml|go\.(mod|sum)|Gemfile|Makefile|environment\.ya?ml|Pipfile)\Z"
)
_TEST_TARGET = re.compile(r"^test\s*:(?!=)", re.MULTILINE)


class ProjectCommands(msgspec.Struct, frozen=True, kw_only=True):
    """The commands that set up and verify a project."""

    #: One shell line; empty: nothing to install.
    setup: str = ""
    #: One shell line; empty: none was detected.
    verify: str = ""
    #: The files whose content decides whether what setup made can be used again.
    lock_files: tuple[str, ...] = ()
    #: Known products of setup, relative to the workspace; there may be more.
    products: tuple[str, ...] = ()
    #: For setup, verify and agents; `{workspace}` is the path of the workspace in the sandbox.
    env: dict[str, str] = msgspec.field(default_factory=dict)
    #: Folders to put first on PATH, with the same placeholder.
    path: tuple[str, ...] = ()
    #: One line for people.
    summary: str = ""


class ProjectFiles:
    """The files of a repository; one that cannot be read counts as empty."""

    def __init__(self, files: Collection[str], read: Callable[[str], str]) -> None:
        self.names = frozenset(name for name in files if _PLAIN.match(name))
        self._read = read

    def text(self, name: str) -> str:
        if name not in self.names:
            return ""
        try:
            return self._read(name)
        except (OSError, ValueError, CaloronError) as error:
            log.warning("cannot read a file of the project", error=error, path=name)
            return ""

    def toml(self, name: str) -> dict[str, Any]:
        try:
            return tomllib.loads(self.text(name))
        except (ValueError, RecursionError) as error:
            log.info("a file of the project is not TOML", error=error, path=name)
            return {}

    def json(self, name: str) -> dict[str, Any]:
        try:
            content = json.loads(self.text(name) or "{}")
        except (ValueError, RecursionError) as error:
            log.info("a file of the project is not JSON", error=error, path=name)
            return {}
        return content if isinstance(content, dict) else {}

    def present(self, *names: str) -> tuple[str, ...]:
        """Return those of the names that exist, in their order."""
        return tuple(name for name in names if name in self.names)

    def under(self, folder: str) -> tuple[str, ...]:
        """Return every file below a folder of the repository."""
        return tuple(sorted(name for name in self.names if name.startswith(f"{folder}/")))


def detect(files: Collection[str], read: Callable[[str], str]) -> ProjectCommands:
    """Return the commands for a repository; empty ones where its files show none."""
    project = ProjectFiles(files, read)
    kinds = (_python, _node, _cargo, _go)
    parts = [commands for kind in kinds if (commands := kind(project)) is not None]
    if not any(commands.verify for commands in parts) and (make := _make(project)):
        parts.append(make)
    return _combined(parts)


def _combined(parts: list[ProjectCommands]) -> ProjectCommands:
    """Combine the commands: a repository may hold several kinds of code."""
    env: dict[str, str] = {}
    for commands in parts:
        env |= commands.env
    return ProjectCommands(
        setup=_chain(commands.setup for commands in parts),
        verify=_chain(commands.verify for commands in parts),
        lock_files=tuple(sorted({name for commands in parts for name in commands.lock_files})),
        products=tuple(dict.fromkeys(name for commands in parts for name in commands.products)),
        env=env,
        path=tuple(folder for commands in parts for folder in commands.path),
        summary="; ".join(commands.summary for commands in parts),
    )


def _chain(lines: Iterable[str]) -> str:
    return " && ".join(line for line in lines if line)


def _python(project: ProjectFiles) -> ProjectCommands | None:
    if not any(name.endswith(".py") or name in PYTHON_FILES for name in project.names):
        return None
    from caloron.agents.workspace.python_detection import python_commands

    return python_commands(project)


def _node(project: ProjectFiles) -> ProjectCommands | None:
    if "package.json" not in project.names:
        return None
    package = project.json("package.json")
    setup, how = _node_setup(project, any(table(package, key) for key in _DEPENDENCIES))
    script = text(package, "scripts", "test")
    tested = bool(script.strip()) and _NO_TEST_YET not in script
    summary = f"node{how}, {'tests by npm test' if tested else 'no tests found'}"
    # Runners of tests that watch for changes do not do so in continuous integration.
    verify = "CI=true npm test" if tested else ""
    if not setup:
        return ProjectCommands(verify=verify, summary=summary)
    locks = ("package-lock.json", "npm-shrinkwrap.json", "pnpm-lock.yaml", "yarn.lock")
    settings = ("package.json", ".npmrc", ".yarnrc", ".yarnrc.yml", "pnpm-workspace.yaml")
    # Several packages; those of dependencies do not count.
    members = [n for n in project.names if n.endswith("/package.json") and "node_modules/" not in n]
    return ProjectCommands(
        setup=setup,
        verify=verify,
        lock_files=(*project.present(*locks, *settings), *sorted(members)),
        products=("node_modules",),
        env={"npm_config_store_dir": "{workspace}/.caloron/pnpm"} if "pnpm" in setup else {},
        path=("{workspace}/node_modules/.bin",),
        summary=summary,
    )


def _node_setup(project: ProjectFiles, needs_any: bool) -> tuple[str, str]:
    if lock := project.present("npm-shrinkwrap.json", "package-lock.json"):
        return "npm ci --no-audit --no-fund", f" with {lock[0]} (npm)"
    if "pnpm-lock.yaml" in project.names:
        return "pnpm install --frozen-lockfile", " with pnpm-lock.yaml (pnpm)"
    if "yarn.lock" in project.names:
        return "yarn install --frozen-lockfile", " with yarn.lock (yarn)"
    if needs_any:
        # A lock file that setup wrote would pass for work of the agent.
        line = "npm install --no-audit --no-fund --no-package-lock"
        return line, " with package.json (npm)"
    return "", ""


def _cargo(project: ProjectFiles) -> ProjectCommands | None:
    if "Cargo.toml" not in project.names:
        return None
    manifest = project.toml("Cargo.toml")
    locked = "Cargo.lock" in project.names
    every = " --workspace" if "workspace" in manifest else ""
    names = ("Cargo.lock", "rust-toolchain", "rust-toolchain.toml", ".cargo/config.toml")
    manifests = sorted(n for n in project.names if n == "Cargo.toml" or n.endswith("/Cargo.toml"))
    return ProjectCommands(
        setup=f"cargo fetch{' --locked' if locked else ''}",
        verify=f"cargo test{every} --offline",
        lock_files=(*project.present(*names), *manifests),
        products=(".caloron/cargo",),
        env={"CARGO_HOME": "{workspace}/.caloron/cargo"},
        summary=f"rust with Cargo.{'lock' if locked else 'toml'} (cargo), tests by cargo test",
    )


def _go(project: ProjectFiles) -> ProjectCommands | None:
    if "go.mod" not in project.names:
        return None
    vendored = "vendor/modules.txt" in project.names
    cache = "{workspace}/.caloron/go"
    # Go's own library comes as source: the first check of the code compiles it.
    vet = "{ go vet ./... >/dev/null 2>&1 || true; }"
    return ProjectCommands(
        setup=vet if vendored else f"go mod download && {vet}",
        verify="go test ./...",
        lock_files=project.present("go.mod", "go.sum", "go.work", "go.work.sum"),
        products=(".caloron/go",),
        env={
            "GOPATH": cache,
            "GOMODCACHE": f"{cache}/mod",
            "GOCACHE": f"{cache}/build",
            # Without it the folders of the cache are read-only and hard to remove.
            "GOFLAGS": "-modcacherw",
        },
        summary=f"go with go.mod{' (vendored)' if vendored else ''}, tests by go test",
    )


def _make(project: ProjectFiles) -> ProjectCommands | None:
    for name in project.present(*_MAKEFILES):
        if _TEST_TARGET.search(project.text(name)):
            return ProjectCommands(verify="make test", summary=f"{name}, tests by make test")
    return None


def apply_overrides(
    commands: ProjectCommands, files: Collection[str], *, setup: str, verify: str
) -> ProjectCommands:
    """Replace detected commands by those of the user's settings; `none` means: do not run any."""
    if setup == _NONE:
        commands = ProjectCommands(verify=commands.verify, summary=commands.summary)
    elif setup:
        words = {word.strip("'\"();&|").removeprefix("./") for word in setup.split()}
        named = words.intersection(files) | set(commands.lock_files)
        # The inputs of a script are not known, so every usual manifest counts.
        named |= {name for name in files if _MANIFEST.match(name)}
        commands = msgspec.structs.replace(commands, setup=setup, lock_files=tuple(sorted(named)))
    if verify:
        commands = msgspec.structs.replace(commands, verify="" if verify == _NONE else verify)
    return commands


def environment(commands: ProjectCommands, inside: Path) -> dict[str, str]:
    """Return the environment of the commands; `inside`: its path in the sandbox."""
    return {name: value.replace(_PLACEHOLDER, str(inside)) for name, value in commands.env.items()}


def with_path(commands: ProjectCommands, inside: Path, argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command with the project's folders first on its PATH.

    The branch in the workspace decides what these folders contain, so this is for authors, setup
    and tests only, and the program itself is named by an absolute path.
    """
    if not commands.path:
        return argv
    folders = ":".join(folder.replace(_PLACEHOLDER, str(inside)) for folder in commands.path)
    # Only the sandbox knows its PATH.
    return (SHELL, "-c", 'PATH="$1:$PATH"; export PATH; shift; exec "$@"', "sh", folders, *argv)


def lock_hash(commands: ProjectCommands, ids: Mapping[str, str]) -> str:
    """Return one hash of the lock files of a commit; `ids` are the blob ids of its files.

    Empty without lock files: then the result of setup may differ each time.
    """
    if not commands.lock_files:
        return ""
    content = "".join(f"{name}\0{ids.get(name, '')}\0" for name in commands.lock_files)
    return hashlib.sha256(content.encode()).hexdigest()
