"""How a project is set up and tested, found out from its files.

Only the root of the repository is looked at. What is found is a shell line for the sandbox, never
run anywhere else, so a hostile file can mislead detection but nothing more.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import msgspec

from caloron.agents.project_files import ProjectFiles, Recipe, table
from caloron.agents.recipes_python import python_recipe

__all__ = ["SHELL", "Recipe", "chosen", "detect", "environment", "lock_hash", "with_path"]

#: Never looked up on PATH: a branch can install a program of any name.
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


def detect(files: Collection[str], read: Callable[[str], str]) -> Recipe:
    """The recipe that the files of a repository tell; an empty one where they tell nothing."""
    project = ProjectFiles(files, read)
    kinds = (python_recipe, _node, _cargo, _go)
    found = [recipe for kind in kinds if (recipe := kind(project)) is not None]
    if not any(recipe.verify for recipe in found) and (make := _make(project)):
        found.append(make)
    return _combined(found)


def _combined(found: list[Recipe]) -> Recipe:
    """Everything in one: a repository may hold several kinds of code."""
    env: dict[str, str] = {}
    for recipe in found:
        env |= recipe.env
    return Recipe(
        setup=_chain(recipe.setup for recipe in found),
        verify=_chain(recipe.verify for recipe in found),
        lock_files=tuple(sorted({name for recipe in found for name in recipe.lock_files})),
        products=tuple(dict.fromkeys(name for recipe in found for name in recipe.products)),
        env=env,
        path=tuple(folder for recipe in found for folder in recipe.path),
        found="; ".join(recipe.found for recipe in found),
    )


def _chain(lines: Iterable[str]) -> str:
    return " && ".join(line for line in lines if line)


def _node(project: ProjectFiles) -> Recipe | None:
    if "package.json" not in project.names:
        return None
    package = project.json("package.json")
    setup, how = _node_setup(project, any(table(package, key) for key in _DEPENDENCIES))
    script = table(package, "scripts").get("test")
    tested = isinstance(script, str) and bool(script.strip()) and _NO_TEST_YET not in script
    found = f"node{how}, {'tests by npm test' if tested else 'no tests found'}"
    # Runners of tests that watch for changes do not do so in continuous integration.
    verify = "CI=true npm test" if tested else ""
    if not setup:
        return Recipe(verify=verify, found=found)
    told = ("package-lock.json", "npm-shrinkwrap.json", "pnpm-lock.yaml", "yarn.lock")
    settings = ("package.json", ".npmrc", ".yarnrc", ".yarnrc.yml", "pnpm-workspace.yaml")
    members = [name for name in project.names if name.endswith("/package.json")]
    return Recipe(
        setup=setup,
        verify=verify,
        lock_files=(*project.present(*told, *settings), *_members(members)),
        products=("node_modules",),
        env={"npm_config_store_dir": "{workspace}/.caloron/pnpm"} if "pnpm" in setup else {},
        path=("{workspace}/node_modules/.bin",),
        found=found,
    )


def _node_setup(project: ProjectFiles, needs_any: bool) -> tuple[str, str]:
    if lock := project.present("npm-shrinkwrap.json", "package-lock.json"):
        return "npm ci --no-audit --no-fund", f" with {lock[0]} (npm)"
    if "pnpm-lock.yaml" in project.names:
        return "pnpm install --frozen-lockfile", " with pnpm-lock.yaml (pnpm)"
    if "yarn.lock" in project.names:
        return "yarn install --frozen-lockfile", " with yarn.lock (yarn)"
    if needs_any:
        # A lock file that setup wrote would look like work of the agent.
        line = "npm install --no-audit --no-fund --no-package-lock"
        return line, " with package.json (npm)"
    return "", ""


def _members(names: list[str]) -> list[str]:
    """The manifests of a repository with several packages, without what is installed."""
    return sorted(name for name in names if "node_modules/" not in name)


def _cargo(project: ProjectFiles) -> Recipe | None:
    if "Cargo.toml" not in project.names:
        return None
    manifest = project.toml("Cargo.toml")
    locked = "Cargo.lock" in project.names
    every = " --workspace" if "workspace" in manifest else ""
    names = ("Cargo.lock", "rust-toolchain", "rust-toolchain.toml", ".cargo/config.toml")
    manifests = sorted(n for n in project.names if n == "Cargo.toml" or n.endswith("/Cargo.toml"))
    return Recipe(
        setup=f"cargo fetch{' --locked' if locked else ''}",
        verify=f"cargo test{every} --offline",
        lock_files=(*project.present(*names), *manifests),
        products=(".caloron/cargo",),
        env={"CARGO_HOME": "{workspace}/.caloron/cargo"},
        found=f"rust with {'Cargo.lock' if locked else 'Cargo.toml'} (cargo), tests by cargo test",
    )


def _go(project: ProjectFiles) -> Recipe | None:
    if "go.mod" not in project.names:
        return None
    vendored = "vendor/modules.txt" in project.names
    place = "{workspace}/.caloron/go"
    # Go's own library comes as source: the first look at the code compiles what it uses.
    look = "{ go vet ./... >/dev/null 2>&1 || true; }"
    return Recipe(
        setup=look if vendored else f"go mod download && {look}",
        verify="go test ./...",
        lock_files=project.present("go.mod", "go.sum", "go.work", "go.work.sum"),
        products=(".caloron/go",),
        env={
            "GOPATH": place,
            "GOMODCACHE": f"{place}/mod",
            "GOCACHE": f"{place}/build",
            # Without it the folders of the cache are read-only and hard to remove.
            "GOFLAGS": "-modcacherw",
        },
        found=f"go with go.mod{' (vendored)' if vendored else ''}, tests by go test",
    )


def _make(project: ProjectFiles) -> Recipe | None:
    for name in project.present(*_MAKEFILES):
        if _TEST_TARGET.search(project.text(name)):
            return Recipe(verify="make test", found=f"{name}, tests by make test")
    return None


def chosen(found: Recipe, files: Collection[str], *, setup: str, verify: str) -> Recipe:
    """What was found, where the user's settings do not say otherwise; `none` means: do not."""
    if setup == _NONE:
        found = Recipe(verify=found.verify, found=found.found)
    elif setup:
        words = {word.strip("'\"();&|").removeprefix("./") for word in setup.split()}
        named = words.intersection(files) | set(found.lock_files)
        # A script says nothing about what it reads, so whatever usually counts does.
        named |= {name for name in files if _MANIFEST.match(name)}
        found = msgspec.structs.replace(found, setup=setup, lock_files=tuple(sorted(named)))
    if verify:
        found = msgspec.structs.replace(found, verify="" if verify == _NONE else verify)
    return found


def environment(recipe: Recipe, inside: Path) -> dict[str, str]:
    """The recipe's environment for a workspace that is at `inside` for those who work in it."""
    return {name: value.replace(_PLACEHOLDER, str(inside)) for name, value in recipe.env.items()}


def with_path(recipe: Recipe, inside: Path, argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command with the recipe's folders first on its PATH.

    The branch in the workspace decides what these folders contain, so this is for authors, setup
    and tests only, and the program itself is named by an absolute path.
    """
    if not recipe.path:
        return argv
    folders = ":".join(folder.replace(_PLACEHOLDER, str(inside)) for folder in recipe.path)
    # What PATH is inside only the sandbox knows.
    return (SHELL, "-c", 'PATH="$1:$PATH"; export PATH; shift; exec "$@"', "sh", folders, *argv)


def lock_hash(recipe: Recipe, ids: Mapping[str, str]) -> str:
    """What the lock files of a commit hold, in one word; `ids` are git's names of their content.

    Empty where there are none: then nobody can tell whether setup would make the same again.
    """
    if not recipe.lock_files:
        return ""
    told = "".join(f"{name}\0{ids.get(name, '')}\0" for name in recipe.lock_files)
    return hashlib.sha256(told.encode()).hexdigest()
