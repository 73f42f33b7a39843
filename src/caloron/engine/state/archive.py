"""The file that a backup is: an uncompressed tar whose every byte is checked before it is used.

First the manifest, then the parts that it lists, last a digest of all bytes before it. Nothing is
compressed, so that what comes out is never more than the file itself.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import msgspec

from caloron.errors import PreconditionFailed, UsageError
from caloron.store.crash import crashpoint
from caloron.store.files import sync_directory

FORMAT = 1
MANIFEST, SEAL = "manifest.json", "sha256"
_LARGEST_MANIFEST = 256 << 20
_CHUNK = 1 << 20
#: No part has another name: nothing can lie outside of where it is unpacked.
_NAME = re.compile(
    r"(?:config\.yml|ledger\.sqlite|forge\.sqlite|forge\.pack|mirror\.pack|sprints\.json"
    r"|(?:edits|kv|workspace|workspace/agents|workspace/retro)/(?!\.)[^/\x00-\x1f\x7f\\]{1,200}"
    r"|agents(?:/(?!\.)[^/\x00-\x1f\x7f\\]{1,200}){2,8})"
)


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a backup."""

    name: str
    bytes: int
    sha256: str


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    """A git repository without its objects."""

    refs: dict[str, str]
    object_format: str = "sha1"
    shallow: list[str] = []


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup holds, and of what."""

    format: int
    caloron: str
    project: str
    created_at: str
    forge: str
    #: Where the project and its workspace were.
    path: str
    workspace: str
    #: The migrations of each database, by its file, with their checksums.
    migrations: dict[str, list[tuple[str, str]]]
    repositories: dict[str, Repository]
    sprints: dict[str, str]
    parts: list[Part]
    left_out: list[str] = []


def is_part(name: str) -> bool:
    """Whether a backup can hold a part of this name."""
    return _NAME.fullmatch(name) is not None


def digest_of(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def write_archive(target: Path, manifest: Manifest, folder: Path) -> None:
    """Write the whole file or nothing: beside its place, to the disk, then renamed."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w+b") as file:
            # The code in it is nobody else's business.
            os.fchmod(file.fileno(), 0o600)
            _write_members(file, manifest, folder)
            crashpoint("file.temp")
            file.flush()
            os.fsync(file.fileno())
        crashpoint("file.fsync")
        temporary.replace(target)
        sync_directory(target.parent)
    finally:
        temporary.unlink(missing_ok=True)
    crashpoint("file.rename")


def _write_members(file: IO[bytes], manifest: Manifest, folder: Path) -> None:
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        _add(tar, MANIFEST, io.BytesIO(text), len(text))
        for part in manifest.parts:
            with (folder / part.name).open("rb") as opened:
                _add(tar, part.name, opened, part.bytes)
        seal = _digest_until(file, tar.offset).encode() + b"\n"
        file.seek(tar.offset)
        _add(tar, SEAL, io.BytesIO(seal), len(seal))


def _add(tar: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o600
    tar.addfile(member, content)


def _digest_until(file: IO[bytes], end: int) -> str:
    file.flush()
    file.seek(0)
    found, left = hashlib.sha256(), end
    while left and (chunk := file.read(min(_CHUNK, left))):
        found.update(chunk)
        left -= len(chunk)
    return found.hexdigest()


class Archive:
    """A backup that was found whole: every byte of it is what was written."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path, self._file = path, file
        self._members = self._checked()
        self.manifest = self._manifest()
        self._check_parts()

    def _refused(self, why: str) -> PreconditionFailed:
        return PreconditionFailed(
            f"{self.path} cannot be restored: {why}",
            hint="take another backup; nothing was changed",
        )

    def _checked(self) -> dict[str, tarfile.TarInfo]:
        """The members in their order, after the digest over all bytes was found right."""
        size = self._file.seek(0, io.SEEK_END)
        self._file.seek(0)
        members: dict[str, tarfile.TarInfo] = {}
        try:
            with tarfile.open(fileobj=self._file, mode="r:") as tar:
                for member in tar:
                    self._check_member(member, members, size)
                    members[member.name] = member
        except (tarfile.TarError, EOFError, UnicodeError, ValueError) as error:
            raise self._refused(f"it is no backup, or damaged ({error})") from error
        names = list(members)
        if names[:1] != [MANIFEST] or names[-1:] != [SEAL]:
            raise self._refused("it is no backup, or the end of it is missing")
        self._check_seal(members[SEAL], size)
        return members

    def _check_member(
        self, member: tarfile.TarInfo, before: dict[str, tarfile.TarInfo], size: int
    ) -> None:
        if member.type != tarfile.REGTYPE or member.issparse():
            raise self._refused(f"{member.name!r} in it is not a plain file")
        if member.name not in (MANIFEST, SEAL) and not is_part(member.name):
            raise self._refused(f"no backup has a part {member.name!r}")
        if member.name in before:
            raise self._refused(f"{member.name!r} is in it twice")
        if member.size < 0 or member.offset_data + member.size > size:
            raise self._refused("its end is missing")

    def _check_seal(self, seal: tarfile.TarInfo, size: int) -> None:
        wanted = self._content(seal, 100).decode("ascii", "replace").strip()
        if _digest_until(self._file, seal.offset) != wanted:
            raise self._refused("some of its bytes are not what was written")
        self._file.seek(seal.offset_data + seal.size)
        rest = size - self._file.tell()
        if rest > 2 * tarfile.RECORDSIZE or self._file.read().strip(b"\0"):
            raise self._refused("something stands behind its end")

    def _content(self, member: tarfile.TarInfo, most: int) -> bytes:
        if member.size > most:
            raise self._refused(f"{member.name} has {member.size} bytes, more than {most}")
        self._file.seek(member.offset_data)
        return self._file.read(member.size)

    def _manifest(self) -> Manifest:
        text = self._content(self._members[MANIFEST], _LARGEST_MANIFEST)
        try:
            known = msgspec.json.decode(text, type=_Form)
            if known.format > FORMAT:
                raise PreconditionFailed(
                    f"{self.path} was written by a newer Caloron ({known.caloron})",
                    hint="upgrade Caloron; nothing was changed",
                )
            return msgspec.json.decode(text, type=Manifest)
        except msgspec.MsgspecError as error:
            raise self._refused(f"its manifest cannot be read: {error}") from error

    def _check_parts(self) -> None:
        listed = [part.name for part in self.manifest.parts]
        if listed != list(self._members)[1:-1]:
            raise self._refused("its manifest lists other parts than it has")
        for part in self.manifest.parts:
            member = self._members[part.name]
            found = hashlib.sha256()
            for chunk in self._chunks(member):
                found.update(chunk)
            if (member.size, found.hexdigest()) != (part.bytes, part.sha256):
                raise self._refused(f"{part.name} in it is not what was written")

    def _chunks(self, member: tarfile.TarInfo) -> Iterator[bytes]:
        self._file.seek(member.offset_data)
        left = member.size
        while left and (chunk := self._file.read(min(_CHUNK, left))):
            left -= len(chunk)
            yield chunk

    def has(self, name: str) -> bool:
        return name in self._members

    def text(self, name: str) -> bytes:
        return self._content(self._members[name], _LARGEST_MANIFEST)

    def unpack(self, name: str, target: Path) -> None:
        """Write one part to a place that the caller has chosen."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            for chunk in self._chunks(self._members[name]):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())

    def names(self, where: Callable[[str], bool]) -> list[str]:
        return [part.name for part in self.manifest.parts if where(part.name)]


class _Form(msgspec.Struct):
    """As much of a manifest as every Caloron writes."""

    format: int
    caloron: str = ""


def open_archive(path: Path) -> tuple[Archive, IO[bytes]]:
    """A backup that was checked, and the open file to close after it."""
    try:
        if not path.is_file():
            what = "is not a file" if path.exists() else "is not there"
            raise UsageError(f"the backup {path} {what}", hint="name the file of a backup")
        file = path.open("rb")
    except (OSError, ValueError) as error:
        raise UsageError(f"the backup {str(path)[:200]!r} cannot be read: {error}") from error
    try:
        return Archive(path, file), file
    except BaseException:
        file.close()
        raise
