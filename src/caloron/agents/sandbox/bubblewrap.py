"""The sandboxes of agents: bubblewrap, or none if the user insists."""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from caloron.agents.sandbox import mounts, runtime_dir, scope
from caloron.agents.sandbox.seccomp import program
from caloron.agents.supervise.supervise import run
from caloron.errors import PreconditionFailed, UsageError
from caloron.ports import Caps, SandboxedCommand, SandboxSpec

if TYPE_CHECKING:
    from caloron.agents.sandbox.network import Link

WORKSPACE = Path("/workspace")
HOME = Path("/home/agent")
_ROOT = Path("/")

#: Variables without secrets that every environment has.
_PASSED_ON = ("LANG", "LC_ALL", "TERM", "TZ")
_USER_ID = 1000
#: A shell can open no descriptor above 9.
_SECCOMP_FD = 9
_MB = 1 << 20
#: The process that waits outside, and the first one inside.
_WRAPPERS = 2
_CHECK_S = 60

_ALONE = (
    "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup",
    "--hostname", "sandbox", "--new-session", "--die-with-parent", "--cap-drop", "ALL",
)  # fmt: skip
#: Root needs these to enter the agent's folder and to become the agent; they are dropped then.
_UNTIL_AGENT = ("CAP_DAC_READ_SEARCH", "CAP_SETUID", "CAP_SETGID")
#: Inside, git uses folders of two owners: the agent's workspace and our mirror.
_GITCONFIG = b"[safe]\n\tdirectory = *\n"
#: User ids that no system assigns; each folder of an agent has one of them.
_FIRST_UID = 1_900_000_000
_UIDS = 100_000_000
#: Only agents make deeper folders, and those are their own already.
_DEEPEST = 200

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
INSTALL = "install it, for example with: apt-get install bubblewrap"

_APPARMOR = """\
let bubblewrap make user namespaces: write these lines to /etc/apparmor.d/bwrap, then run
`apparmor_parser -r /etc/apparmor.d/bwrap` as root:
  abi <abi/4.0>,
  include <tunables/global>
  profile bwrap /usr/bin/bwrap flags=(unconfined) {
    userns,
    include if exists <local/bwrap>
  }"""
_NAMESPACES = (
    "allow user namespaces as root: sysctl -w kernel.unprivileged_userns_clone=1"
    " user.max_user_namespaces=28633; in a container, start it with a seccomp profile that allows"
    " them (docker: --security-opt seccomp=unconfined), or run Caloron outside of it"
)

_UNMASK = (
    "start the container with its /proc unmasked (docker: --security-opt systempaths=unconfined),"
    " or run Caloron outside of it"
)

#: A part of the error message, its meaning and the remedy; the first match counts.
_MEANINGS = (
    (("setting up uid map: Permission denied", "Failed RTM_NEWADDR"),
     "AppArmor keeps bubblewrap from making user namespaces (Ubuntu 24.04 and later)", _APPARMOR),
    (("No permissions to create new namespace", "Operation not permitted (clone"),
     "this system does not let users make namespaces", _NAMESPACES),
    (("namespaces exceeded",),
     "no more namespaces may be made here", _NAMESPACES),
    (("does not support user namespaces",),
     "the kernel has no user namespaces",
     "run Caloron on a kernel with CONFIG_USER_NS"),
    (("Creating new namespace failed: Resource temporarily unavailable",),
     "you run as many processes as you may",
     "end some, or raise the limit: ulimit -u"),
    (("Can't mount proc", "mount proc on"),
     "/proc is masked here, as in a container",
     _UNMASK),
    (("Unknown option", "Unrecognized option"),
     "bubblewrap is too old",
     "install bubblewrap 0.8 or later"),
    (("Can't find source path",),
     "a folder that agents need is not there",
     "put it back, or take it out of the setting read_only"),
    (("Failed to make / slave", "Creating new namespace failed", "Operation not permitted"),
     "this system does not let Caloron make namespaces",
     _NAMESPACES),
    (("Permission denied",),
     "what Caloron runs on cannot be read by agents, who have a user id of their own",
     "make Caloron's interpreter and package readable for all users (chmod -R o+rX)"),
)  # fmt: skip


class NoSandbox:
    """No confinement; only an allow-list of the environment reaches the agent."""

    name = "none"

    def check(self) -> None:
        """Nothing is needed."""

    def confine(self, argv: tuple[str, ...], spec: SandboxSpec) -> SandboxedCommand:
        path = os.environ.get("PATH", os.defpath)
        known = {"PATH": path, "HOME": str(spec.home or Path.home())} | mounts.certificates()
        return SandboxedCommand(
            argv=argv, env=_passed_on() | known | spec.env, cwd=_real_folder(spec.workspace)
        )

    def inside(self, workspace: Path) -> Path:
        return workspace

    def sandbox_home(self, home: Path) -> Path:
        return home

    def give_ownership(self, *folders: Path) -> None:
        """Agents are the user here."""


class Bubblewrap:
    """A sandbox of namespaces: a read-only system, one workspace, and a network policy.

    For an ordinary user it is a user namespace. Root makes the mounts itself and then takes a
    user id that owns nothing but the agent's folders, so that limits per user hold for it too.
    """

    name = "bubblewrap"

    def __init__(self, *, mirror: Path | None = None, binary: str = "bwrap") -> None:
        self._mirror = mirror.absolute() if mirror else None
        self._binary = binary
        self._as_root = os.geteuid() == 0

    def check(self) -> None:
        """Run the whole profile once, or raise `PreconditionFailed` with the reason."""
        self._tools  # noqa: B018 - raises if one is missing
        with tempfile.TemporaryDirectory(prefix="caloron-check-") as folder:
            spec = SandboxSpec(workspace=Path(folder))
            confined = self.confine((sys.executable, "-S", "-E", "-c", "print('in')"), spec)
            done = run(confined, timeout_s=_CHECK_S)
        if done.returncode != 0 or done.stdout != b"in\n":
            stderr = done.stderr.decode("utf-8", "replace").strip()
            meaning, remedy = diagnose(stderr)
            raise PreconditionFailed(
                f"agents cannot be confined here: {meaning} ({stderr or 'it printed nothing'})",
                hint=remedy,
            )

    def confine(self, argv: tuple[str, ...], spec: SandboxSpec) -> SandboxedCommand:
        workspace = _real_folder(spec.workspace)
        home = _real_folder(spec.home) if spec.home else None
        bound = self._bound(workspace, home, spec.read_only)
        link = None
        if spec.network in ("model", "public"):
            from caloron.agents.sandbox.network import open_link

            link = open_link(spec.hosts, public=spec.network == "public")
        seccomp = program()
        uid = agent_uid(workspace) if self._as_root else _USER_ID
        # A thread counts as a task, and so do the sandbox's own processes.
        limits = scope.prefix(spec.caps.memory_mb, spec.caps.processes + _WRAPPERS)
        arguments = [
            *limits,
            self._tools["bwrap"],
            *(scope.arguments() if limits else ()),
            *self._namespaces(spec),
            *mounts.system_arguments(),
            *self._etc(uid, network=spec.network == "full"),
            *_base_mounts(spec.caps),
            *("--bind", str(workspace), str(WORKSPACE)),
            *_home(home, spec.caps),
            *_read_only({path: path for path in bound}),
            *self._writable(spec.writable),
            *(link.arguments if link else ()),
            *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(WORKSPACE)),
            *(("--seccomp", str(_SECCOMP_FD)) if seccomp else ()),
            "--",
            *self._become_agent(workspace, home),
            *self._limits(spec.caps),
            *(link.prefix if link else ()),
            *argv,
        ]
        return SandboxedCommand(
            argv=tuple(arguments),
            env=self._environment(spec, bound, link) | (scope.environment() if limits else {}),
            cwd=Path("/"),
            files={_SECCOMP_FD: runtime_dir.keep("seccomp.bpf", seccomp)} if seccomp else {},
            sidecar=link.sidecar if link else (),
            sandbox_depth=_WRAPPERS,
        )

    def inside(self, workspace: Path) -> Path:
        return WORKSPACE

    def sandbox_home(self, home: Path) -> Path:
        return HOME

    def give_ownership(self, *folders: Path) -> None:
        """As root: make the user id of the first folder own all; that id never changes."""
        if self._as_root and folders:
            uid = agent_uid(_real_folder(folders[0]))
            for folder in folders:
                chown_tree(_real_folder(folder), uid)

    @cached_property
    def _tools(self) -> dict[str, str]:
        """Find the programs that make a sandbox, by their full paths."""
        names = {"bwrap": INSTALL, "prlimit": "install the package util-linux"}
        if self._as_root:
            names["setpriv"] = names["prlimit"]
        programs = {}
        for name, remedy in names.items():
            program = shutil.which(self._binary if name == "bwrap" else name)
            if program is None:
                raise PreconditionFailed(
                    f"agents cannot be confined here: there is no program {name}", hint=remedy
                )
            programs[name] = program
        return programs

    @cached_property
    def _always_bound(self) -> list[Path]:
        mirror = (self._mirror,) if self._mirror else ()
        trusted = [Path(path) for path in mounts.certificates().values()]
        return [*mounts.own_installation(), *mounts.toolchains(Path.home()), *trusted, *mirror]

    def _bound(self, workspace: Path, home: Path | None, more: tuple[Path, ...]) -> list[Path]:
        bound = mounts.to_bind((*self._always_bound, *more))
        for path in bound:
            _refuse_system_path(path)
        for own in filter(None, (workspace, home)):
            _refuse_overlap(own, bound)
        if self._as_root and self._mirror:
            _open_to_agents(self._mirror)
        return bound

    def _writable(self, paths: tuple[Path, ...]) -> list[str]:
        arguments: list[str] = []
        for path in (path.absolute() for path in paths):
            if not mounts.is_there(path):
                raise PreconditionFailed(f"there is no {path} to write to", hint="make it first")
            _refuse_system_path(path)
            if self._as_root and path.stat().st_mode & 0o002 == 0:
                raise PreconditionFailed(
                    f"what runs confined is not root and cannot write to {path}",
                    hint=f"chmod o+w {path}, or do not run Caloron as root",
                )
            for folder in reversed(path.parents[:-1]):
                arguments += ["--perms", "0755", "--dir", str(folder)]
            arguments += ["--bind", str(path), str(path)]
        return arguments

    def _namespaces(self, spec: SandboxSpec) -> list[str]:
        alone = [*_ALONE, *(() if spec.network == "full" else ("--unshare-net",))]
        if self._as_root:
            return [*alone, *(word for power in _UNTIL_AGENT for word in ("--cap-add", power))]
        identity = ("--uid", str(_USER_ID), "--gid", str(_USER_ID))
        return ["--unshare-user", "--disable-userns", *identity, *alone]

    def _become_agent(self, workspace: Path, home: Path | None) -> tuple[str, ...]:
        if not self._as_root:
            return ()
        uid = agent_uid(workspace)
        # A folder whose owner was never set must not run its agent as root.
        for folder in filter(None, (workspace, home)):
            if folder.lstat().st_uid != uid:
                chown_tree(folder, uid)
        identity = (f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--inh-caps=-all")
        return (self._tools["setpriv"], *identity, "--")

    def _limits(self, caps: Caps) -> tuple[str, ...]:
        wanted = {
            "nproc": (resource.RLIMIT_NPROC, caps.processes),
            "data": (resource.RLIMIT_DATA, caps.memory_mb * _MB),
            "fsize": (resource.RLIMIT_FSIZE, caps.file_mb * _MB),
            "core": (resource.RLIMIT_CORE, 0),
        }
        options = (f"--{name}={_at_most(kind, value)}" for name, (kind, value) in wanted.items())
        return (self._tools["prlimit"], *options, "--")

    def _etc(self, uid: int, *, network: bool) -> list[str]:
        passwd = f"root:x:0:0:root:/:/bin/false\nagent:x:{uid}:{uid}:agent:{HOME}:/bin/sh\n"
        made = {
            "passwd": runtime_dir.keep(f"passwd-{uid}", passwd.encode()),
            "group": runtime_dir.keep(f"group-{uid}", f"root:x:0:\nagent:x:{uid}:\n".encode()),
            "gitconfig": runtime_dir.keep("gitconfig", _GITCONFIG),
        }
        files = {path: path for path in mounts.etc_files(network=network)}
        files |= {Path("/etc", name): source for name, source in made.items()}
        return _read_only(files)

    def _environment(
        self, spec: SandboxSpec, bound: list[Path], link: Link | None
    ) -> dict[str, str]:
        host = spec.env.get("PATH") or os.environ.get("PATH", os.defpath)
        own = {"HOME": str(HOME), "USER": "agent", "LOGNAME": "agent", "SHELL": "/bin/sh"}
        path = {"PATH": mounts.search_path(host, tuple(bound), spec.read_only)}
        tools = mounts.toolchain_environment(Path.home()) | mounts.certificates()
        # The user's proxy cannot be reached from inside: the sidecar uses it.
        return _passed_on() | own | tools | spec.env | (link.env if link else {}) | path


def _read_only(mounts: dict[Path, Path]) -> list[str]:
    """Return read-only mounts by target; their parent folders are open to the agent."""
    on_the_way = {parent for path in mounts for parent in path.parents} - {_ROOT}
    arguments: list[str] = []
    for folder in sorted(on_the_way, key=lambda path: len(path.parts)):
        arguments += ["--perms", "0755", "--dir", str(folder)]
    for path, source in mounts.items():
        arguments += ["--ro-bind", str(source), str(path)]
    return arguments


def _base_mounts(caps: Caps) -> list[str]:
    """Return the mounts that every process expects, with sizes that cannot fill the memory."""
    shared, temporary = _size(caps, 8), _size(caps, 4)
    return [
        *("--proc", "/proc", "--dev", "/dev"),
        *("--perms", "1777", "--size", shared, "--tmpfs", "/dev/shm"),
        *("--perms", "1777", "--size", temporary, "--tmpfs", "/tmp"),
    ]


def _home(home: Path | None, caps: Caps) -> list[str]:
    if home is not None:
        return ["--perms", "0755", "--dir", str(HOME.parent), "--bind", str(home), str(HOME)]
    # As root the agent has another user id than the owner of this mount.
    return ["--perms", "0777", "--size", _size(caps, 8), "--tmpfs", str(HOME)]


def _refuse_system_path(path: Path) -> None:
    if path in (_ROOT, WORKSPACE, HOME) or path.parts[1] in ("proc", "dev", "sys"):
        raise UsageError(
            f"agents may not read {path}",
            hint="name the folders that they need in the setting read_only",
        )


def _size(caps: Caps, part: int) -> str:
    return str(max(caps.memory_mb // part, 16) * _MB)


def _at_most(kind: int, value: int) -> int:
    """Return a limit that is not above the hard limit: that can be lowered, not raised."""
    hard = resource.getrlimit(kind)[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def _refuse_overlap(own: Path, readable: Iterable[Path]) -> None:
    real = own.resolve()
    system = [Path(path) for path in mounts.SYSTEM]
    for path in (*system, *readable):
        if mounts.is_below(real, (path,)) or mounts.is_below(own, (path,)):
            raise PreconditionFailed(
                f"{own} lies in {path}, which every agent may read",
                hint="move it elsewhere (CALORON_HOME, or the setting work_dir)",
            )
        if mounts.is_below(path, (own, real)):
            raise PreconditionFailed(
                f"{path} lies in {own}, which its agent may change",
                hint="take it out of what agents may read (the setting read_only)",
            )


def _open_to_agents(mirror: Path) -> None:
    """Check that the agent, which has another user id, may read the mirror."""
    if mounts.is_there(mirror) and mirror.stat().st_mode & 0o005 != 0o005:
        raise PreconditionFailed(
            f"agents cannot read {mirror}",
            hint=f"chmod -R o+rX {mirror}, and run Caloron with umask 022",
        )


def _real_folder(path: Path) -> Path:
    """Return the folder itself; one that was replaced by a link is refused."""
    if path.is_symlink() or not path.is_dir():
        raise PreconditionFailed(
            f"{path} is not a folder" + (" but a link" if path.is_symlink() else ""),
            hint="the task starts again from main with a new one",
        )
    return path.absolute()


def _passed_on() -> dict[str, str]:
    return {name: os.environ[name] for name in _PASSED_ON if name in os.environ}


def agent_uid(folder: Path) -> int:
    """Return the user id of the agent that owns a folder, or will own it."""
    owner = folder.lstat().st_uid
    if _FIRST_UID <= owner < _FIRST_UID + _UIDS:
        return owner
    digest = hashlib.blake2b(bytes(folder.absolute()), digest_size=8).digest()
    return _FIRST_UID + int.from_bytes(digest, "big") % _UIDS


def chown_tree(folder: Path, uid: int) -> None:
    """Make a user own a folder and all that is in it; links are never followed.

    The folder itself comes last: its owner shows that everything in it was changed.
    """
    handle = os.open(folder, _FOLDER)
    try:
        _chown_content(handle, uid, 0)
        os.fchown(handle, uid, uid)
    finally:
        os.close(handle)


def _chown_content(folder: int, uid: int, depth: int) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            # Git would read a file again whose ctime has changed.
            if entry.stat(follow_symlinks=False).st_uid != uid:
                os.chown(entry.name, uid, uid, dir_fd=folder, follow_symlinks=False)
            if depth < _DEEPEST and entry.is_dir(follow_symlinks=False):
                inner = os.open(entry.name, _FOLDER, dir_fd=folder)
                try:
                    _chown_content(inner, uid, depth + 1)
                finally:
                    os.close(inner)


def diagnose(stderr: str) -> tuple[str, str]:
    """Return what an error message of bubblewrap means, and the remedy."""
    for signs, meaning, remedy in _MEANINGS:
        if any(sign in stderr for sign in signs):
            return meaning, remedy
    return "bubblewrap failed", "run `caloron doctor` and read the message of bubblewrap"
