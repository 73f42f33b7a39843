"""`caloron` on a Gitea whose main moves in the moment before the first merge of task `a`.

Run it as a program in the place of `python -m caloron.cli`. That merge finds a person's commit on
main that the change was not verified with: `parts/theirs`. No forge can check the base of a merge,
so this happens, if rarely.
"""

from __future__ import annotations

import os

from caloron.forge.remote.forge import RemoteForge
from caloron.ports import Forge
from tests.support.blind_forge import THEIRS, run_blind
from tests.support.gitea import Person, Repository

#: Address, login and token of the person, and the name of the repository.
WHO = "BLIND_GITEA_PERSON"


def _push_theirs(_: Forge) -> None:
    """Push once, however often the merge is tried."""
    url, login, token, repository = os.environ[WHO].split()
    theirs = Repository(Person(url, login, token), repository)
    if not [c for c in theirs.commits() if c.startswith(f"write {THEIRS}")]:
        theirs.write_file(THEIRS, "theirs\n")
    theirs.who.close()


if __name__ == "__main__":
    run_blind(RemoteForge, _push_theirs)
