"""Where agents run: in a bubblewrap of their own, or, if the user insists, in nothing at all."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from caloron.agents import handover, scope, scratch, visible
from caloron.agents.confined import as_argv
from caloron.agents.network import Link, open_link
from caloron.agents.processes import sidecar_environment
from caloron.agents.remedies import INSTALL, explain
from caloron.agents.seccomp import program
from caloron.errors import PreconditionFailed, UsageError
from caloron.ports import Caps, Confined, Confinement

WORKSPACE = Path("/workspace")
HOME = Path("/home/agent")
_ROOT = Path("/")

#: What everybody's environment holds anyway.
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
#: What root needs to enter the agent's folder and to become the agent; nothing of it remains.
_UNTIL_AGENT = ("CAP_DAC_READ_SEARCH", "CAP_SETUID", "CAP_SETGID")
#: Inside, git meets folders of two owners: the agent's workspace and our mirror.
_GITCONFIG = b"[safe]\n\tdirectory = *\n"


class NoSandbox:
    """No confinement; only an allow-list of the environment reaches the agent."""

    name = "none"

    def check(self) -> None:
        """Nothing is needed."""

    def confine(self, argv: tuple[str, ...], given: Confinement) -> Confined:
        path = os.environ.get("PATH", os.defpath)
        known = {"PATH": path, "HOME": str(given.home or Path.home())} | visible.certificates()
        return Confined(
            argv=argv, env=_passed_on() | known | given.env, cwd=_real_folder(given.workspace)
        )

    def inside(self, workspace: Path) -> Path:
        return workspace

    def home_inside(self, home: Path) -> Path:
        return home

    def hand_to_agent(self, *folders: Path) -> None:
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
        """Run the whole profile once, or say what keeps it from running."""
        self._tools  # noqa: B018 - says what is missing
        with tempfile.TemporaryDirectory(prefix="caloron-check-") as place:
            given = Confinement(workspace=Path(place))
            confined = self.confine((sys.executable, "-S", "-E", "-c", "print('in')"), given)
            done = run(confined, timeout_s=_CHECK_S)
        if done.returncode != 0 or done.stdout != b"in\n":
            stderr = done.stderr.decode("utf-8", "replace").strip()
            meaning, remedy = explain(stderr)
            raise PreconditionFailed(
                f"agents cannot be confined here: {meaning} ({stderr or 'it said nothing'})",
                hint=remedy,
            )

    def confine(self, argv: tuple[str, ...], given: Confinement) -> Confined:
        workspace = _real_folder(given.workspace)
        home = _real_folder(given.home) if given.home else None
        bound = self._bound(workspace, home, given.read_only)
        link = None
        if given.network in ("model", "public"):
            link = open_link(given.hosts, public=given.network == "public")
        seccomp = program()
        # A thread counts as a task, and so do the sandbox's own processes.
        limits = scope.prefix(given.caps.memory_mb, given.caps.processes + _WRAPPERS)
        arguments = [
            *limits,
            self._tools["bwrap"],
            *(scope.arguments() if limits else ()),
            *self._namespaces(given),
            *visible.system_arguments(),
            *self._etc(self._uid(workspace), network=given.network == "full"),
            *_furniture(given.caps),
            *("--bind", str(workspace), str(WORKSPACE)),
            *_home(home, given.caps),
            *_read_only({path: path for path in bound}),
            *self._writable(given.writable),
            *(link.arguments if link else ()),
            *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(WORKSPACE)),
            *(("--seccomp", str(_SECCOMP_FD)) if seccomp else ()),
            "--",
            *self._become_agent(workspace, home),
            *self._limits(given.caps),
            *(link.prefix if link else ()),
            *argv,
        ]
        return Confined(
            argv=tuple(arguments),
            env=self._environment(given, bound, link) | (scope.environment() if limits else {}),
            cwd=Path("/"),
            files={_SECCOMP_FD: scratch.keep("seccomp.bpf", seccomp)} if seccomp else {},
            beside=link.beside if link else (),
            wrappers=_WRAPPERS,
        )

    def inside(self, workspace: Path) -> Path:
        return WORKSPACE

    def home_inside(self, home: Path) -> Path:
        return HOME

    def hand_to_agent(self, *folders: Path) -> None:
        """As root: give the folders to the user id of the first; it stays what it once became."""
        if self._as_root and folders:
            uid = handover.agent_uid(_real_folder(folders[0]))
            for folder in folders:
                handover.give(_real_folder(folder), uid)

    @cached_property
    def _tools(self) -> dict[str, str]:
        """The programs that a sandbox is made with, by their full paths."""
        names = {"bwrap": INSTALL, "prlimit": "install the package util-linux"}
        if self._as_root:
            names["setpriv"] = names["prlimit"]
        found = {}
        for name, remedy in names.items():
            program = shutil.which(self._binary if name == "bwrap" else name)
            if program is None:
                raise PreconditionFailed(
                    f"agents cannot be confined here: there is no program {name}", hint=remedy
                )
            found[name] = program
        return found

    @cached_property
    def _always_bound(self) -> list[Path]:
        mirror = (self._mirror,) if self._mirror else ()
        trusted = [Path(path) for path in visible.certificates().values()]
        return [*visible.own_installation(), *visible.toolchains(Path.home()), *trusted, *mirror]

    def _bound(self, workspace: Path, home: Path | None, given: tuple[Path, ...]) -> list[Path]:
        bound = visible.to_bind((*self._always_bound, *given))
        for path in bound:
            _refuse_places(path)
        for own in filter(None, (workspace, home)):
            _keep_apart(own, bound)
        if self._as_root and self._mirror:
            _open_to_agents(self._mirror)
        return bound

    def _writable(self, given: tuple[Path, ...]) -> list[str]:
        arguments: list[str] = []
        for path in (one.absolute() for one in given):
            if not visible.is_there(path):
                raise PreconditionFailed(f"there is no {path} to write to", hint="make it first")
            _refuse_places(path)
            if self._as_root and path.stat().st_mode & 0o002 == 0:
                raise PreconditionFailed(
                    f"what runs confined is not root and cannot write to {path}",
                    hint=f"chmod o+w {path}, or do not run Caloron as root",
                )
            for folder in reversed(path.parents[:-1]):
                arguments += ["--perms", "0755", "--dir", str(folder)]
            arguments += ["--bind", str(path), str(path)]
        return arguments

    def _namespaces(self, given: Confinement) -> list[str]:
        alone = [*_ALONE, *(() if given.network == "full" else ("--unshare-net",))]
        if self._as_root:
            return [*alone, *(word for power in _UNTIL_AGENT for word in ("--cap-add", power))]
        identity = ("--uid", str(_USER_ID), "--gid", str(_USER_ID))
        return ["--unshare-user", "--disable-userns", *identity, *alone]

    def _uid(self, workspace: Path) -> int:
        return handover.agent_uid(workspace) if self._as_root else _USER_ID

    def _become_agent(self, workspace: Path, home: Path | None) -> tuple[str, ...]:
        if not self._as_root:
            return ()
        uid = handover.agent_uid(workspace)
        # Nothing may run as root only because a folder was forgotten.
        for folder in filter(None, (workspace, home)):
            if not handover.is_given(folder, uid):
                handover.give(folder, uid)
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
            "passwd": scratch.keep(f"passwd-{uid}", passwd.encode()),
            "group": scratch.keep(f"group-{uid}", f"root:x:0:\nagent:x:{uid}:\n".encode()),
            "gitconfig": scratch.keep("gitconfig", _GITCONFIG),
        }
        files = {path: path for path in visible.etc_files(network=network)}
        files |= {Path("/etc", name): source for name, source in made.items()}
        return _read_only(files)

    def _environment(
        self, given: Confinement, bound: list[Path], link: Link | None
    ) -> dict[str, str]:
        host = given.env.get("PATH") or os.environ.get("PATH", os.defpath)
        own = {"HOME": str(HOME), "USER": "agent", "LOGNAME": "agent", "SHELL": "/bin/sh"}
        path = {"PATH": visible.search_path(host, tuple(bound), given.read_only)}
        found = visible.toolchain_environment(Path.home()) | visible.certificates()
        # Nothing inside can reach a proxy of the user's: the one beside the sandbox uses it.
        return _passed_on() | own | found | given.env | (link.env if link else {}) | path


def run(
    confined: Confined, stdin: bytes = b"", *, timeout_s: float | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run a confined process to its end, with its proxy beside it."""
    with proxy_beside(confined):
        return subprocess.run(
            as_argv(confined),
            input=stdin,
            capture_output=True,
            env=confined.env,
            cwd=confined.cwd,
            timeout=timeout_s,
            check=False,
            process_group=0,
        )


@contextmanager
def proxy_beside(confined: Confined) -> Iterator[None]:
    """Have the proxy of a confined process, if it needs one, for the time of the block."""
    proxy = None
    if confined.beside:
        proxy = subprocess.Popen(
            confined.beside, stdin=subprocess.DEVNULL, cwd="/", env=sidecar_environment()
        )
    try:
        yield
    finally:
        if proxy is not None:
            proxy.terminate()
            proxy.wait()


def _read_only(mounts: dict[Path, Path]) -> list[str]:
    """Mounts by where they are to be; the folders on the way there are open to the agent."""
    on_the_way = {parent for path in mounts for parent in path.parents} - {_ROOT}
    arguments: list[str] = []
    for folder in sorted(on_the_way, key=lambda path: len(path.parts)):
        arguments += ["--perms", "0755", "--dir", str(folder)]
    for path, source in mounts.items():
        arguments += ["--ro-bind", str(source), str(path)]
    return arguments


def _furniture(caps: Caps) -> list[str]:
    """What every process expects, of a size that cannot fill the machine's memory."""
    shared, temporary = _size(caps, 8), _size(caps, 4)
    return [
        *("--proc", "/proc", "--dev", "/dev"),
        *("--perms", "1777", "--size", shared, "--tmpfs", "/dev/shm"),
        *("--perms", "1777", "--size", temporary, "--tmpfs", "/tmp"),
    ]


def _home(home: Path | None, caps: Caps) -> list[str]:
    if home is not None:
        return ["--perms", "0755", "--dir", str(HOME.parent), "--bind", str(home), str(HOME)]
    # With a user id of its own, the agent does not own what was mounted for it.
    return ["--perms", "0777", "--size", _size(caps, 8), "--tmpfs", str(HOME)]


def _refuse_places(path: Path) -> None:
    if path in (_ROOT, WORKSPACE, HOME) or path.parts[1] in ("proc", "dev", "sys"):
        raise UsageError(
            f"agents cannot be given {path} to read",
            hint="name the folders that they need in the setting read_only",
        )


def _size(caps: Caps, part: int) -> str:
    return str(max(caps.memory_mb // part, 16) * _MB)


def _at_most(kind: int, value: int) -> int:
    """A limit can be lowered, not raised."""
    hard = resource.getrlimit(kind)[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def _keep_apart(own: Path, readable: Iterable[Path]) -> None:
    real = own.resolve()
    system = [Path(path) for path in visible.SYSTEM]
    for path in (*system, *readable):
        if visible.is_below(real, (path,)) or visible.is_below(own, (path,)):
            raise PreconditionFailed(
                f"{own} lies in {path}, which every agent may read",
                hint="move it elsewhere (CALORON_HOME, or the setting work_dir)",
            )
        if visible.is_below(path, (own, real)):
            raise PreconditionFailed(
                f"{path} lies in {own}, which its agent may change",
                hint="take it out of what agents may read (the setting read_only)",
            )


def _open_to_agents(mirror: Path) -> None:
    """An agent with a user id of its own reads the mirror as one of the others."""
    if visible.is_there(mirror) and mirror.stat().st_mode & 0o005 != 0o005:
        raise PreconditionFailed(
            f"agents cannot read {mirror}",
            hint=f"chmod -R o+rX {mirror}, and run Caloron with umask 022",
        )


def _real_folder(path: Path) -> Path:
    """The folder itself: one that was replaced by a link is somebody's trap."""
    if path.is_symlink() or not path.is_dir():
        raise PreconditionFailed(
            f"{path} is not a folder" + (" but a link" if path.is_symlink() else ""),
            hint="the task starts again from main with a new one",
        )
    return path.absolute()


def _passed_on() -> dict[str, str]:
    return {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
