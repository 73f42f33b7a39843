"""The parts of this machine that a sandboxed process may read, and the PATH to its programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path

import caloron

#: The system's own folders; where the first holds the others, they are links into it.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")

#: Few, because each is a mount of its own, which takes time.
_ETC = (
    "alternatives", "crypto-policies", "host.conf", "hosts", "ld.so.cache", "ld.so.conf",
    "ld.so.conf.d", "localtime", "maven/logging", "maven/m2.conf", "mime.types", "nsswitch.conf",
    "os-release", "pki/ca-trust", "pki/tls/cert.pem", "pki/tls/certs", "pki/tls/openssl.cnf",
    "protocols", "services", "ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf", "timezone",
)  # fmt: skip
_ETC_LIKE = ("java*",)
_ETC_WITH_NETWORK = ("resolv.conf",)

#: Programs that users install into their homes; none of these folders holds a credential.
_TOOLCHAINS = (
    ".bun/bin", ".cargo/bin", ".deno/bin", ".local/bin/uv", ".local/bin/uvx", ".local/share/uv",
    ".nvm/versions", ".pyenv", ".rustup", ".volta", "go/bin",
)  # fmt: skip
#: Their settings, since HOME is another one inside.
_TOOLCHAIN_HOMES = {"RUSTUP_HOME": ".rustup", "VOLTA_HOME": ".volta"}
_BIN = ("bin", ".bin")
#: Settings of the certificates to trust: an organisation often has its own.
_CERTIFICATES = (
    "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS", "PIP_CERT", "REQUESTS_CA_BUNDLE",
    "SSL_CERT_DIR", "SSL_CERT_FILE",
)  # fmt: skip
_ROOT = Path("/")
_SYSTEM_FOLDERS = tuple(map(Path, SYSTEM))


@cache
def system_arguments() -> list[str]:
    """Return bubblewrap's arguments for the folders of the system, merged into /usr or not."""
    arguments: list[str] = []
    for path in _SYSTEM_FOLDERS:
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            arguments += ["--ro-bind", str(path), str(path)]
    return arguments


@cache
def etc_files(*, network: bool) -> list[Path]:
    """Return the settings of the system that programs read."""
    etc = Path("/etc")
    names = _ETC + _ETC_WITH_NETWORK if network else _ETC
    paths = [etc / name for name in names] + [p for name in _ETC_LIKE for p in etc.glob(name)]
    return [path for path in paths if is_there(path)]


def own_installation() -> list[Path]:
    """Return Caloron's interpreter and package."""
    executable = Path(sys.executable)
    package = Path(caloron.__file__).parent
    return [Path(sys.prefix), Path(sys.base_prefix), executable, executable.resolve(), package]


def toolchains(home: Path) -> list[Path]:
    """Return the folders of programs in the user's home."""
    return [home / name for name in _TOOLCHAINS]


def toolchain_environment(home: Path) -> dict[str, str]:
    folders = {variable: home / folder for variable, folder in _TOOLCHAIN_HOMES.items()}
    return {variable: str(folder) for variable, folder in folders.items() if folder.is_dir()}


def certificates() -> dict[str, str]:
    """Return the user's settings for certificates; their files are mounted too."""
    settings = {name: os.environ.get(name, "") for name in _CERTIFICATES}
    return {name: path for name, path in settings.items() if path.startswith("/")}


@lru_cache(maxsize=64)
def to_bind(paths: tuple[Path, ...]) -> list[Path]:
    """Return the paths that need a mount: existing ones, with their real names, outer first."""
    there = [path for path in paths if is_there(path)]
    wanted = {name for path in there for name in (path.absolute(), path.resolve())}
    bound: list[Path] = []
    for path in sorted(wanted, key=lambda path: (len(path.parts), path)):
        if not is_below(path, (*_SYSTEM_FOLDERS, *bound)):
            bound.append(path)
    return bound


def is_there(path: Path) -> bool:
    """True if something is at a path that we can read."""
    try:
        path.stat()
    except OSError:
        # A path that cannot be read cannot be mounted either.
        return False
    return True


def is_below(path: Path, folders: Iterable[Path]) -> bool:
    """True if a path is one of the folders or lies in one."""
    # Text, because this runs a hundred times for each start.
    name = f"{path}/"
    return any(name.startswith(f"{folder}/") or folder == _ROOT for folder in folders)


@lru_cache(maxsize=64)
def search_path(host: str, bound: tuple[Path, ...], read_only: tuple[Path, ...]) -> str:
    """Return the host's PATH as far as it exists inside; our own interpreter comes last."""
    folders = [*_SYSTEM_FOLDERS, *bound]
    around_files = {path.parent for path in folders if path.is_file()}
    entries = [Path(entry) for entry in host.split(os.pathsep) if entry.startswith("/")]
    last = (Path(sys.executable).parent, *map(Path, ("/usr/local/bin", "/usr/bin", "/bin")))
    inside = [
        str(entry)
        for entry in (*entries, *_program_folders(read_only), *last)
        if is_there(entry) and (is_below(entry, folders) or entry in around_files)
    ]
    return os.pathsep.join(dict.fromkeys(inside))


def _program_folders(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield path if path.name in _BIN else path / "bin"
        elif path.parent.name in _BIN:
            yield path.parent
