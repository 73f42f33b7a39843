"""Prepares the filtering proxy of a sandbox that may reach an allow-list of hosts only.

The list is decided in `engine/runs/sandbox_policy.py`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import NamedTuple

from caloron.agents.sandbox import runtime_dir
from caloron.errors import UsageError

_PROXY = Path(__file__).with_name("proxy.py")
_FORWARD = Path(__file__).with_name("forward.py")
_FIRST_PORT = 3128
_FIRST_OPEN_PORT = 1024
_INSIDE = "/proxy"

_HOST = re.compile(
    r"(?:\*\.)?[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?(?::\d{1,5})?|\[[0-9a-f:.]+\](?::\d{1,5})?"
)
_THIS_MACHINE = re.compile(r"(?:127\.0\.0\.1|localhost):(\d+)")


class Link(NamedTuple):
    """A way out: what runs outside, what is mounted, and what runs inside before the agent."""

    sidecar: tuple[str, ...]
    arguments: tuple[str, ...]
    prefix: tuple[str, ...]
    env: dict[str, str]


def open_link(hosts: Iterable[str], *, public: bool = False) -> Link:
    """Prepare a way out to these hosts, with `public` to all public ones too, and to no others."""
    allowed = tuple(dict.fromkeys(_checked(host) for host in hosts))
    ports = tuple(
        sorted({int(local[1]) for host in allowed if (local := _THIS_MACHINE.fullmatch(host))})
    )
    everywhere = ("*",) if public else ()
    folder = runtime_dir.link_folder()
    python = (sys.executable, "-S", "-E")
    proxy_port = next(port for port in count(_FIRST_PORT) if port not in ports)
    inside = map(str, (f"{_INSIDE}/{runtime_dir.SOCKET}", proxy_port, *ports))
    return Link(
        sidecar=(*python, str(_PROXY), str(folder / runtime_dir.SOCKET), *everywhere, *allowed),
        arguments=("--ro-bind", str(folder), _INSIDE),
        prefix=(*python, str(_FORWARD), *inside, "--"),
        env=_environment(proxy_port),
    )


_URL = re.compile(
    r"(https?)://(?:[^\s/@\"']*@)?([a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::(\d{1,5}))?", re.I
)


def hosts_in(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the hosts of the addresses in settings of the user, each with its port."""
    hosts: dict[str, None] = {}
    for scheme, host, port in (match for text in texts for match in _URL.findall(text)):
        entry = f"{host}:{port or (443 if scheme.lower() == 'https' else 80)}".lower()
        try:
            hosts[_checked(entry)] = None
        except UsageError:
            # A port of this machine that cannot be offered inside.
            continue
    return tuple(hosts)


def _environment(port: int) -> dict[str, str]:
    """Return the variables by which programs find the proxy; most read the first four."""
    proxy = f"http://127.0.0.1:{port}"
    usual = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), proxy)
    usual["NO_PROXY"] = "localhost,127.0.0.1,::1"
    lower = {name.lower(): value for name, value in usual.items()}
    java = " ".join(
        f"-D{kind}.proxyHost=127.0.0.1 -D{kind}.proxyPort={port}" for kind in ("http", "https")
    )
    others = {
        # Newer versions of Node use the others only if this is set.
        "NODE_USE_ENV_PROXY": "1",
        # Yarn from version 2 on.
        "YARN_HTTP_PROXY": proxy,
        "YARN_HTTPS_PROXY": proxy,
        "MAVEN_OPTS": java,
    }
    return usual | lower | others


def _checked(host: str) -> str:
    known = host.strip().lower()
    port = int(known.rpartition(":")[2]) if re.search(r":\d{1,5}$", known) else 443
    if not _HOST.fullmatch(known) or not 0 < port < 65_536:
        raise UsageError(
            f"{host!r} is not a host that agents can be allowed to reach",
            hint="take one of these forms: host, host:port, *.domain, 127.0.0.1:port",
        )
    if _THIS_MACHINE.fullmatch(known) and port < _FIRST_OPEN_PORT:
        raise UsageError(
            f"{host} cannot be offered to agents: they may not open ports below {_FIRST_OPEN_PORT}",
            hint="let that server listen on a higher port",
        )
    return known
