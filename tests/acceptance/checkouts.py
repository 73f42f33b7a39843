"""A user's own repository, worked in as its user works in it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.home import Answer, Home, does


@dataclass(frozen=True)
class Repository:
    """A git repository of the user's, in which `caloron` is called."""

    home: Home
    path: Path

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ("git", *arguments),
            cwd=self.path,
            env=self.home.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def write(self, name: str, text: str) -> None:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def commit(self, name: str = "", text: str = "") -> str:
        """Commit everything, with one more file if it is named."""
        if name:
            self.write(name, text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", f"my {name or 'work'}")
        return self.head

    @property
    def head(self) -> str:
        return self.git("rev-parse", "HEAD")

    @property
    def state(self) -> tuple[str, str, str]:
        """Return the state that a refusing command must leave unchanged."""
        refs = self.git("for-each-ref")
        files = {
            str(f.relative_to(self.path)): f.read_bytes()
            for f in sorted(self.path.rglob("*"))
            if f.is_file() and ".git" not in f.relative_to(self.path).parts
        }
        return refs, self.git("status", "--porcelain", "-uall"), repr(files)

    def caloron(self, *arguments: str, folder: str = "", json: bool = True, **env: str) -> Answer:
        return self.home.caloron(*arguments, json=json, cwd=self.path / folder, **env)

    def merged(self, project: str = "shop") -> dict[str, str]:
        """The files on the forge's main."""
        forge = f"--git-dir={self.home.project(project) / 'forge.git'}"
        names = self.git(forge, "ls-tree", "-r", "--name-only", "main").splitlines()
        read = (self.git(forge, "cat-file", "blob", f"main:{name}") for name in names)
        return dict(zip(names, read, strict=True))

    def sprint(self, goal: str = "go", *options: str, folder: str = "") -> Answer:
        """A sprint of one task, with the scripted agent."""
        fixed = ("--single", "--yes", "--framework", "stub")
        return self.caloron("sprint", goal, *fixed, *options, folder=folder)


def repository(home: Home, name: str = "shop", *, branch: str = "main") -> Repository:
    """A repository with one commit."""
    made = Repository(home, home.root / "src" / name)
    made.path.mkdir(parents=True)
    made.git("init", "--quiet", f"--initial-branch={branch}")
    made.commit("kept.txt", "kept\n")
    return made


def writes_file(name: str, text: str = "new\n") -> dict[str, object]:
    """Any agent that implements writes this file."""
    return does("implement", files={name: text})


def from_repository(home: Home, files: dict[str, str], *, more: str = "true") -> Home:
    """A project whose main holds these files; `more` is a shell line before their commit."""
    source = home.root / "source"
    for name, text in files.items():
        file = source / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    line = f"git init -q -b main && git add . && {more} && git commit -q -m 'what was there'"
    subprocess.run(("sh", "-c", line), cwd=source, env=home.environment, check=True)
    return home.init("demo", "--repo", str(source))


def path_without(home: Home, *programs: str) -> str:
    """Return a PATH with every usual program except these."""
    folder = home.root / "bin"
    folder.mkdir()
    for path_entry in home.environment["PATH"].split(":"):
        for program in Path(path_entry).glob("*"):
            link = folder / program.name
            if program.name not in programs and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)
