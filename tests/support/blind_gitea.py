"""`caloron` on a Gitea whose main moves in the moment before the first merge of task `a`.

Run it as a program in the place of `python -m caloron.cli`. That merge finds a person's commit on
main that the change was not verified with: `parts/theirs`. No forge can check the base of a merge,
so this happens, if rarely.
"""

from __future__ import annotations

import os

from caloron.cli.start import run
from caloron.forge.remote.forge import RemoteForge
from caloron.ports import Merged
from tests.support.blind_forge import THEIRS
from tests.support.gitea import Person, Repository

#: Address, login and token of the person, and the name of the repository.
WHO = "BLIND_GITEA_PERSON"
_merge = RemoteForge.merge


def merge_blindly(
    self: RemoteForge, number: int, head: str, base: str, message: str, verified: object = None
) -> Merged:
    pull = self.pull(number)
    if pull.branch.startswith("agent/a/") and pull.state == "open":
        _push_theirs()
    return _merge(self, number, head, "", message)


def _push_theirs() -> None:
    """Push once, however often the merge is tried."""
    url, login, token, repository = os.environ[WHO].split()
    theirs = Repository(Person(url, login, token), repository)
    if not [c for c in theirs.commits() if c.startswith(f"write {THEIRS}")]:
        theirs.write_file(THEIRS, "theirs\n")
    theirs.who.close()


if __name__ == "__main__":
    RemoteForge.merge = merge_blindly  # type: ignore[method-assign]
    run()
