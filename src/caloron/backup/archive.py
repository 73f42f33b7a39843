"""The format of a backup: an uncompressed tar file with a manifest, checked byte by byte.

The manifest comes first, then the parts that it lists, last a digest of all bytes before it.
Nothing is compressed, so unpacking never needs more space than the file itself.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO

import msgspec

from caloron.errors import PreconditionFailed, UsageError
from caloron.forge.local.records import MIGRATIONS as FORGE_MIGRATIONS
from caloron.ledger.ledger import MIGRATIONS as LEDGER_MIGRATIONS
from caloron.store.files import atomic_file

FORMAT = 1
#: The databases of a project by the names of their parts.
DATABASES = {"ledger.sqlite": LEDGER_MIGRATIONS, "forge.sqlite": FORGE_MIGRATIONS}
_MANIFEST, _DIGEST = "manifest.json", "sha256"
_MAX_MANIFEST = 256 << 20
_CHUNK = 1 << 20
_NAME = r"(?!\.)[^/\x00-\x1f\x7f\\\ud800-\udfff]{1,200}"
#: Allowed names of parts. No other name is unpacked, so no file can land outside of the project.
_PART = re.compile(
    r"(?:config\.yml|ledger\.sqlite|forge\.sqlite|forge\.pack|mirror\.pack|sprints\.json"
    rf"|(?:edits|kv|workspace|workspace/agents|workspace/retro)/{_NAME}|agents(?:/{_NAME}){{2,8}})"
)


class Part(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    bytes: int
    sha256: str


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    """The refs of a git repository; its objects are in a pack."""

    refs: dict[str, str]
    object_format: str = "sha1"
    shallow: list[str] = []


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a backup, and the project that it was made from."""

    format: int
    caloron: str
    project: str
    created_at: str
    forge: str
    #: The folders of the project and of its workspace.
    path: str
    workspace: str
    #: The migrations of each database with their checksums, by file name.
    migrations: dict[str, list[tuple[str, str]]]
    repositories: dict[str, Repository]
    #: The phase of each sprint.
    sprints: dict[str, str]
    parts: list[Part]
    left_out: list[str] = []


class _Version(msgspec.Struct):
    """The fields of a manifest that every version of Caloron writes."""

    format: int
    caloron: str = ""


def is_part(name: str) -> bool:
    return _PART.fullmatch(name) is not None


def refused(path: Path, reason: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"{path} cannot be restored: {reason}", hint="use another backup; nothing was changed"
    )


def refused_newer(path: Path, version: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"{path} was written by a newer Caloron ({version})",
        hint="upgrade Caloron; nothing was changed",
    )


def write_archive(target: Path, manifest: Manifest, folder: Path) -> None:
    """Write the file whole or not at all."""
    with (
        atomic_file(target) as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        # A backup contains the user's code.
        os.fchmod(file.fileno(), 0o600)
        text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        _add(tar, _MANIFEST, io.BytesIO(text), len(text))
        for part in manifest.parts:
            with (folder / part.name).open("rb") as content:
                _add(tar, part.name, content, part.bytes)
        file.flush()
        digest = _digest(file, 0, tar.offset).encode() + b"\n"
        file.seek(tar.offset)
        _add(tar, _DIGEST, io.BytesIO(digest), len(digest))


def _add(tar: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o600
    tar.addfile(member, content)


class Archive:
    """A backup file that was checked: every byte is the one that was written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            if not path.is_file():
                problem = "is not a file" if path.exists() else "does not exist"
                raise UsageError(f"the backup {path} {problem}", hint="name the file of a backup")
            self._file = path.open("rb")
        except (OSError, ValueError) as error:
            raise UsageError(f"the backup {str(path)[:200]!r} cannot be read: {error}") from error
        try:
            self._members = self._read_members()
            self.manifest = self._read_manifest()
            self._check_parts()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._file.close()

    def _read_members(self) -> dict[str, tarfile.TarInfo]:
        """Return the members in order, after the digest of all bytes was compared."""
        size = self.path.stat().st_size
        members: dict[str, tarfile.TarInfo] = {}
        try:
            with tarfile.open(fileobj=self._file, mode="r:") as tar:
                for member in tar:
                    if problem := _problem_of(member, size, members):
                        raise refused(self.path, problem)
                    members[member.name] = member
        except (tarfile.TarError, EOFError, UnicodeError, ValueError) as error:
            raise refused(self.path, f"it is not a backup, or damaged ({error})") from error
        names = list(members)
        if names[:1] != [_MANIFEST] or names[-1:] != [_DIGEST]:
            raise refused(self.path, "it is not a backup, or its end is missing")
        self._check_digest(members[_DIGEST], size)
        return members

    def _check_digest(self, member: tarfile.TarInfo, size: int) -> None:
        expected = self._content(member, 100).decode("ascii", "replace").strip()
        if _digest(self._file, 0, member.offset) != expected:
            raise refused(self.path, "its bytes are not those that were written")
        self._file.seek(member.offset_data + member.size)
        rest = size - self._file.tell()
        if rest > 2 * tarfile.RECORDSIZE or self._file.read().strip(b"\0"):
            raise refused(self.path, "data follows its end")

    def _content(self, member: tarfile.TarInfo, limit: int = _MAX_MANIFEST) -> bytes:
        if member.size > limit:
            raise refused(self.path, f"{member.name} has {member.size} bytes, more than {limit}")
        return b"".join(_chunks(self._file, member.offset_data, member.size))

    def _read_manifest(self) -> Manifest:
        text = self._content(self._members[_MANIFEST])
        try:
            version = msgspec.json.decode(text, type=_Version)
            if version.format > FORMAT:
                raise refused_newer(self.path, version.caloron)
            return msgspec.json.decode(text, type=Manifest)
        except msgspec.MsgspecError as error:
            raise refused(self.path, f"its manifest cannot be read: {error}") from error

    def _check_parts(self) -> None:
        """Compare the parts with the manifest: a staged part may have changed on the disk."""
        if [part.name for part in self.manifest.parts] != list(self._members)[1:-1]:
            raise refused(self.path, "its manifest lists other parts than it has")
        for part in self.manifest.parts:
            member = self._members[part.name]
            digest = _digest(self._file, member.offset_data, member.size)
            if (member.size, digest) != (part.bytes, part.sha256):
                raise refused(self.path, f"its part {part.name} is not the one that was written")

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def names(self, *prefixes: str) -> list[str]:
        return [part.name for part in self.manifest.parts if part.name.startswith(prefixes)]

    def text(self, name: str) -> bytes:
        return self._content(self._members[name])

    def unpack(self, name: str, target: Path) -> None:
        """Write one part to a new file."""
        member = self._members[name]
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            file = target.open("xb")
        except (FileExistsError, NotADirectoryError) as error:
            raise refused(self.path, f"{name} in it is a file and a folder") from error
        with file:
            file.writelines(_chunks(self._file, member.offset_data, member.size))
            file.flush()
            os.fsync(file.fileno())


def _problem_of(member: tarfile.TarInfo, size: int, before: Collection[str]) -> str:
    """Return why a backup cannot have this member; empty if it can."""
    if member.type != tarfile.REGTYPE or member.issparse():
        return f"{member.name!r} in it is not a plain file"
    if member.name not in (_MANIFEST, _DIGEST) and not is_part(member.name):
        return f"a backup has no part {member.name!r}"
    if member.size < 0 or member.offset_data + member.size > size:
        return "its end is missing"
    return f"it has {member.name!r} twice" if member.name in before else ""


def _chunks(file: IO[bytes], start: int, size: int) -> Iterator[bytes]:
    file.seek(start)
    while size and (chunk := file.read(min(_CHUNK, size))):
        size -= len(chunk)
        yield chunk


def _digest(file: IO[bytes], start: int, size: int) -> str:
    digest = hashlib.sha256()
    for chunk in _chunks(file, start, size):
        digest.update(chunk)
    return digest.hexdigest()
