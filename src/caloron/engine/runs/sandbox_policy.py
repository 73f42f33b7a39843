"""Decides from the project's settings what each role may see and reach."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import cast, get_args

from caloron.agents.supervise.supervise import run
from caloron.agents.workspace.project_detection import SHELL
from caloron.domain.model.roles import ROLES, shown_role, stored_role
from caloron.errors import PreconditionFailed, UsageError
from caloron.ledger.settings import ProjectConfig
from caloron.ports import Caps, Network, Sandbox, SandboxedCommand, SandboxSpec

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9][A-Za-z0-9.-]*(:\d{1,5})?")
_CHECK_S = 60.0
#: Settings that name variables which no agent may get.
TOKEN_VARIABLES = ("token_env", "reviewer_token_env", "webhook_secret_env")
#: Roles with a network policy and a model of their own.
SANDBOX_ROLES = (*ROLES, "setup")
_ROLE_NAMES = ", ".join(map(shown_role, SANDBOX_ROLES))


class SandboxPolicy:
    """Confines processes of a project by their roles."""

    def __init__(self, config: ProjectConfig, sandbox: Sandbox) -> None:
        refuse_passing_tokens(config)
        self.sandbox = sandbox
        self._network: Network = config.network
        self._by_role = network_by_role(config)
        self.allow_hosts = tuple(config.allow_hosts)
        self.read_only = tuple(Path(path).expanduser() for path in config.read_only)
        self.caps = Caps(
            memory_mb=config.memory_mb,
            processes=config.max_processes,
            file_mb=config.max_file_mb,
            disk_mb=config.disk_mb,
        )

    def network(self, role: str) -> Network:
        return self._by_role.get(role, self._network)

    def confine(
        self,
        role: str,
        argv: tuple[str, ...],
        workspace: Path,
        home: Path,
        *,
        env: dict[str, str],
        read_only: tuple[Path, ...] = (),
        hosts: tuple[str, ...] = (),
    ) -> SandboxedCommand:
        network, reachable = self.network(role), (*hosts, *self.allow_hosts)
        if network == "model" and not reachable:
            # No host is allowed: cut the network off, because a proxy would refuse everything.
            network = "none"
        return self.sandbox.confine(
            argv,
            SandboxSpec(
                workspace=workspace,
                home=home,
                read_only=(*self.read_only, *read_only),
                network=network,
                hosts=reachable,
                env=env,
                caps=self.caps,
            ),
        )

    def check(self) -> None:
        """Start a process with the project's limits; refuse limits with which none starts."""
        with tempfile.TemporaryDirectory(prefix="caloron-check-") as place:
            workspace, home = Path(place, "workspace"), Path(place, "home")
            workspace.mkdir()
            home.mkdir()
            argv = (SHELL, "-c", "git --version")
            done = run(self.confine("verify", argv, workspace, home, env={}), timeout_s=_CHECK_S)
        if done.returncode != 0:
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise PreconditionFailed(
                f"with the limits of this project no program starts: {lines[-1] if lines else ''}",
                hint="raise memory_mb or max_processes (caloron config list)",
            )

    def watch(self, *folders: Path) -> dict[str, object]:
        """Return the limits that the shim watches, as its spec contains them."""
        return {
            "memory_mb": self.caps.memory_mb,
            "processes": self.caps.processes,
            "disk_mb": self.caps.disk_mb,
            "folders": [str(folder) for folder in folders],
        }


def network_by_role(config: ProjectConfig) -> dict[str, Network]:
    """The setting `network_roles`, checked; a role that it does not name keeps its default."""
    policies: dict[str, Network] = {"setup": "public", "verify": "none"}
    for entry in config.network_roles:
        name, _, policy = entry.partition("=")
        if (role := stored_role(name)) not in SANDBOX_ROLES or policy not in get_args(Network):
            raise UsageError(
                f"setting network_roles has {entry!r}; expected role=policy",
                hint=f"roles: {_ROLE_NAMES}; policies: {', '.join(get_args(Network))}",
            )
        policies[role] = cast(Network, policy)
    return policies


def check_setting(key: str, value: list[str]) -> None:
    """Refuse a value that would only fail in the middle of a sprint."""
    if key == "network_roles":
        network_by_role(ProjectConfig(name="x", network_roles=value))
    if key not in _ENTRIES:
        return
    is_good, expected = _ENTRIES[key]
    for entry in value:
        if not is_good(entry):
            raise UsageError(f"setting {key} has {entry!r}", hint=f"expected {expected}")


def refuse_passing_tokens(config: ProjectConfig) -> None:
    """Refuse to give agents what opens the forge."""
    for key in TOKEN_VARIABLES:
        name = getattr(config, key)
        if name and name in config.pass_env:
            raise UsageError(
                f"setting pass_env gives agents {name}, which setting {key} names as a secret",
                hint="take it out of pass_env: agents never need the forge's token",
            )


def _names_model(entry: str) -> bool:
    role, _, model = entry.partition("=")
    return stored_role(role) in SANDBOX_ROLES and bool(model)


def _names_variable(entry: str) -> bool:
    return bool(_VARIABLE.fullmatch(entry)) and entry not in ("PATH", "HOME")


def _is_there(entry: str) -> bool:
    try:
        return Path(entry).exists()
    except (OSError, ValueError):
        # A name that no file can have.
        return False


#: The check of each entry of a list setting, and its description for people.
_ENTRIES: dict[str, tuple[Callable[[str], object], str]] = {
    "model_roles": (_names_model, f"role=model, with a role of {_ROLE_NAMES}"),
    "read_only": (_is_there, "files and folders that are there"),
    "pass_env": (_names_variable, "names of environment variables, e.g. MY_KEY"),
    "allow_hosts": (_HOST.fullmatch, "host, host:port, *.domain or 127.0.0.1:port"),
}


def model_of(config: ProjectConfig, role: str) -> str:
    """The model for a role: its own, or the project's; empty: the framework's choice."""
    named = (entry.split("=", 1) for entry in config.model_roles if "=" in entry)
    return {stored_role(name): model for name, model in named}.get(role, config.model)
