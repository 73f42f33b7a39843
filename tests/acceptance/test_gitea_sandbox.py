"""During a sprint on a real Gitea no agent can read a token of the forge anywhere."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from tests.acceptance.searching import sources_of_secret
from tests.support.gitea import Server
from tests.support.home import does, task, writes
from tests.support.live import REVIEWER_TOKEN, TOKEN, GiteaHome

#: Runs inside. It gets the needles backwards, so that it does not match its own input.
_SEARCH = """
import json, os, subprocess, sys

needles = {name: value[::-1].encode() for name, value in json.load(open(sys.argv[1])).items()}
matches, searched = set(), 0

def search(source, data):
    global searched
    searched += 1
    matches.update(f"{name} in {source}" for name, value in needles.items() if value in data)

for name, value in os.environ.items():
    search(f"environment {name}", value.encode())
for pid in filter(str.isdecimal, os.listdir("/proc")):
    for part in ("environ", "cmdline"):
        try:
            search(f"/proc/{part}", open(f"/proc/{pid}/{part}", "rb").read())
        except OSError:
            pass
for command in (
    ("git", "remote", "-v"), ("git", "config", "--list", "--show-origin"),
    ("git", "ls-remote"), ("git", "log", "--all", "--format=%B"),
):
    done = subprocess.run(command, capture_output=True, timeout=60)
    search(" ".join(command), done.stdout + done.stderr)
asked = b"protocol=http\\nhost=127.0.0.1\\n\\n"
quiet = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
done = subprocess.run(("git", "credential", "fill"), input=asked, capture_output=True, env=quiet)
search("git credential", done.stdout + done.stderr)
# Installed programs are the same on every machine; all other files are read.
system = {"/proc", "/sys", "/dev", "/usr", "/lib", "/lib64", "/bin", "/sbin"}
installed = {"lib", "libexec", "share", "include", "pkg", "src", "toolchains", "registry", ".git"}
for folder, folders, files in os.walk("/"):
    inside = folder.startswith(("/workspace", "/home", "/tmp", "/etc"))
    folders[:] = [
        f for f in folders
        if os.path.join(folder, f) not in system and (inside or f not in installed)
    ]
    for name in files:
        path = os.path.join(folder, name)
        try:
            if os.path.isfile(path) and os.path.getsize(path) < 64 << 20:
                search(path, open(path, "rb").read())
        except OSError:
            pass
for line in sorted(matches):
    print("match: " + line, flush=True)
print(f"searched: {sys.argv[2]} in {searched} sources", flush=True)
"""


class _ArgvWatch:
    """Reads the command lines of all processes of this machine again and again."""

    def __init__(self, *secrets: str) -> None:
        self._secrets = [secret.encode() for secret in secrets]
        self.leaks: set[str] = set()
        self.rounds = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.02):
            self.rounds += 1
            for command_line in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    line = command_line.read_bytes()
                except OSError:
                    continue
                if any(secret in line for secret in self._secrets):
                    self.leaks.add(line.decode("utf-8", "replace"))

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


@pytest.mark.parametrize(
    "reviewer",
    [pytest.param(False, id="one account", marks=pytest.mark.long), pytest.param(True, id="two")],
)
def test_no_token_of_the_forge_is_readable_for_an_agent_or_written_to_a_file(
    gitea: Server, tmp_path: Path, reviewer: bool
) -> None:
    home = GiteaHome(tmp_path, gitea, reviewer=reviewer)
    decoy = "decoy-0f1e2d3c4b5a69788796a5b4c3d2e1f0"
    home.repository.write_file("decoy.txt", f"{decoy}\n")
    names = (TOKEN, REVIEWER_TOKEN)[: len(home.tokens)]
    needles = dict(zip(names, home.tokens, strict=True)) | {"DECOY": decoy}
    folder = home.gate("search").folder
    (folder / "search.py").write_text(_SEARCH)
    backwards = {name: value[::-1] for name, value in needles.items()}
    (folder / "needles.json").write_text(json.dumps(backwards))
    search = f"python3 {folder}/search.py {folder}/needles.json"
    home.on_gitea(verify=f"{search} verify")
    home.script(
        writes("a", run=f"{search} implement"),
        does("review", round=1, run=f"{search} review; echo 'CHANGES_NEEDED: more'"),
        does("fix", run=f"{search} fix; echo more > more.txt"),
        does("review", run=f"{search} review; echo APPROVED"),
    )
    watch = _ArgvWatch(*home.tokens)
    answer = home.sprint(task("a"))
    watch.end()
    assert answer.code == 0, answer.stdout
    roles = {line.split()[0] for line in home.printed("searched: ")}
    assert roles >= {"implement", "review", "fix"}
    # The search works: it finds the decoy in the files and in git.
    matches = set(home.printed("match: "))
    assert any(line.startswith("DECOY in ") and "decoy.txt" in line for line in matches)
    assert {line for line in matches if not line.startswith("DECOY ")} == set()
    assert (watch.leaks, watch.rounds > 10) == (set(), True)
    for token in home.tokens:
        assert sources_of_secret(home, token, answer) == []
        assert token not in json.dumps(_on_the_forge(home))


def _on_the_forge(home: GiteaHome) -> list[object]:
    """Return all issues, pull requests and comments, which everybody can read."""
    repository = home.repository
    numbers = [
        issue_or_pull["number"] for issue_or_pull in (*repository.issues(), *repository.pulls())
    ]
    comments = [repository.comments(number) for number in numbers]
    return [repository.issues(), repository.pulls(), comments]
