"""A home whose project is on a real Gitea; its user is `ada`, and `judge` is the second account."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.gitea import Repository, Server
from tests.support.home import Home

TOKEN, REVIEWER_TOKEN = "ADAS_FORGE_TOKEN", "JUDGES_FORGE_TOKEN"


class GiteaHome(Home):
    """Tokens stand in the environment of the user, as `--token-env` expects them."""

    def __init__(self, root: Path, server: Server, *, reviewer: bool = False) -> None:
        super().__init__(root)
        self.server = server
        self.reviewer = reviewer
        self.ada = server.person("ada")
        self.repository: Repository = server.repository(self.ada)
        self.environment[TOKEN] = self.ada.token
        if reviewer:
            judge = server.person("judge")
            self.repository.collaborator(judge)
            self.environment[REVIEWER_TOKEN] = judge.token

    @property
    def tokens(self) -> list[str]:
        names = (TOKEN, REVIEWER_TOKEN)
        return [self.environment[name] for name in names if name in self.environment]

    def on_gitea(self, **settings: Any) -> GiteaHome:
        """Make the project."""
        second = ("--reviewer-token-env", REVIEWER_TOKEN) if self.reviewer else ()
        self.init(
            "demo", "--forge", "gitea", "--host", self.server.url,
            "--repo", self.repository.full_name, "--token-env", TOKEN, *second, **settings,
        )  # fmt: skip
        return self
