"""Starts confined processes from a program with threads."""

from __future__ import annotations

from caloron.ports import Confined


def as_argv(confined: Confined) -> tuple[str, ...]:
    """The command line of a confined process, with its files opened by a shell on the way.

    Only a shell can open them at fixed numbers: in a program with threads the numbers are taken.
    """
    if not confined.files:
        return confined.argv
    opens = " ".join(f'{fd}<"$f{fd}"' for fd in confined.files)
    names = " ".join(f"f{fd}=$1; shift;" for fd in confined.files)
    paths = tuple(str(path) for path in confined.files.values())
    return ("/bin/sh", "-c", f'{names} exec "$@" {opens}', "sh", *paths, *confined.argv)
