"""What the words of a sandbox that did not start mean, and what the user can do about it."""

from __future__ import annotations

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

#: What bubblewrap prints, what that means, and the remedy; the first that fits counts.
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
     "make Caloron's interpreter and package readable for everybody (chmod -R o+rX)"),
)  # fmt: skip


def explain(stderr: str) -> tuple[str, str]:
    """What a sandbox's complaint means, and the remedy."""
    for signs, meaning, remedy in _MEANINGS:
        if any(sign in stderr for sign in signs):
            return meaning, remedy
    return "bubblewrap failed", "run `caloron doctor` and look at what bubblewrap says"
