"""The sandbox: missing requirements, refused requests, and the end of its processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from caloron.agents.sandbox import bubblewrap, mounts, network, runtime_dir, seccomp
from caloron.agents.sandbox.bubblewrap import Bubblewrap, NoSandbox
from caloron.agents.supervise.supervise import Output, run
from caloron.errors import PreconditionFailed, UsageError
from caloron.ports import Caps, SandboxSpec
from tests.support.unsandboxed import as_argv
from tests.support.wait import wait_for


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


def inside(workspace: Path, *argv: str, **spec: Any) -> Output:
    """Run a command in a sandbox."""
    return run(Bubblewrap().confine(argv, SandboxSpec(workspace=workspace, **spec)))


def fake(tmp_path: Path, script: str) -> str:
    """Create a program that replaces bubblewrap."""
    program = tmp_path / "bwrap"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def test_without_bubblewrap_the_error_names_the_package(workspace: Path) -> None:
    missing = Bubblewrap(binary="no-such-bwrap")
    with pytest.raises(PreconditionFailed) as refusal:
        missing.check()
    assert "apt-get install bubblewrap" in refusal.value.hint
    with pytest.raises(PreconditionFailed):
        missing.confine(("true",), SandboxSpec(workspace=workspace))


@pytest.mark.parametrize(
    ("complaint", "meaning", "remedy"),
    [
        ("setting up uid map: Permission denied", "AppArmor", "profile bwrap"),
        ("loopback: Failed RTM_NEWADDR: Operation not permitted", "AppArmor", "userns,"),
        ("No permissions to create new namespace, likely because the kernel does not allow",
         "does not let users make namespaces", "kernel.unprivileged_userns_clone=1"),
        ("Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces exceeded",
         "no more namespaces", "max_user_namespaces"),
        ("likely because the kernel does not support user namespaces", "kernel", "CONFIG_USER_NS"),
        ("Creating new namespace failed: Resource temporarily unavailable", "processes", "ulimit"),
        ("Can't mount proc on /newroot/proc: Operation not permitted", "masked", "systempaths"),
        ("Unknown option --disable-userns", "too old", "0.8"),
        ("an unknown complaint", "an unknown complaint", "caloron doctor"),
    ],
)  # fmt: skip
def test_a_complaint_of_bubblewrap_is_reported_with_its_remedy(
    tmp_path: Path, complaint: str, meaning: str, remedy: str
) -> None:
    with pytest.raises(PreconditionFailed) as refusal:
        Bubblewrap(binary=fake(tmp_path, f'echo "bwrap: {complaint}" >&2; exit 1')).check()
    assert meaning in str(refusal.value)
    assert remedy in refusal.value.hint


@pytest.mark.parametrize("script", ["exit 0", "echo out"])
def test_a_sandbox_that_does_not_run_its_command_is_refused(tmp_path: Path, script: str) -> None:
    with pytest.raises(PreconditionFailed):
        Bubblewrap(binary=fake(tmp_path, script)).check()


@pytest.mark.parametrize("kind", [Bubblewrap, NoSandbox])
def test_a_missing_or_linked_workspace_is_refused(
    tmp_path: Path, kind: type[Bubblewrap | NoSandbox]
) -> None:
    link = tmp_path / "link"
    link.symlink_to("/")
    for workspace in (link, tmp_path / "nothing"):
        with pytest.raises(PreconditionFailed, match="is not a folder"):
            kind().confine(("true",), SandboxSpec(workspace=workspace))


@pytest.mark.parametrize(
    "host", ["", "two words", "http://x.org", "x.org:0", "x.org:70000", "*", "*.*.x", "-x", "x/y"]
)
def test_an_invalid_host_is_refused(workspace: Path, host: str) -> None:
    with pytest.raises(UsageError, match="is not a host"):
        inside(workspace, "true", network="model", hosts=(host,))


def test_hosts_of_settings_are_allowed_with_their_ports() -> None:
    texts = (
        "https://packages.example.invalid/simple",
        "[global]\nindex-url = http://me:pw@10.1.2.3:8081/pypi\nfind-links = /opt",
        "sparse+https://crates.example.invalid/index/|https://GO.example.invalid,direct",
        "http://localhost:3141/root http://127.0.0.1/ http://[fd00::1]/",
        "no address",
    )
    assert network.hosts_in(texts) == (
        "packages.example.invalid:443",
        "10.1.2.3:8081",
        "crates.example.invalid:443",
        "go.example.invalid:443",
        "localhost:3141",
        "[fd00::1]:80",
    )


def test_a_port_that_cannot_be_forwarded_is_refused() -> None:
    with pytest.raises(UsageError, match="below 1024"):
        network.open_link(("127.0.0.1:80",))


def test_a_port_of_the_machine_may_be_that_of_the_forwarder(workspace: Path) -> None:
    hosts = ("localhost:3128",)
    done = inside(workspace, "sh", "-c", "echo $HTTPS_PROXY", network="model", hosts=hosts)
    assert done.stdout == b"http://127.0.0.1:3129\n"


def test_a_limit_is_never_above_the_limit_of_the_user(workspace: Path) -> None:
    """`prlimit` refuses a higher limit, which would fail the agent."""
    script = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))\n"
        "from pathlib import Path\n"
        "from caloron.agents.sandbox.bubblewrap import Bubblewrap\n"
        "from caloron.agents.supervise.supervise import run\n"
        "from caloron.ports import Caps, SandboxSpec\n"
        "spec = SandboxSpec(workspace=Path(sys.argv[1]), caps=Caps(file_mb=1 << 20))\n"
        "print(run(Bubblewrap().confine(('sh', '-c', 'ulimit -f'), spec)).stdout.decode())\n"
    )
    done = subprocess.run(
        (sys.executable, "-c", script, str(workspace)), capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == (1 << 30) // 512
    wide = Caps(memory_mb=1 << 23, file_mb=1 << 23)
    assert inside(workspace, "true", caps=wide).returncode == 0


def test_without_a_sandbox_the_environment_is_still_an_allow_list(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "secret")
    spec = SandboxSpec(workspace=workspace, home=workspace, env={"ALLOWED": "1"})
    confined = NoSandbox().confine(("env",), spec)
    assert confined.cwd == workspace
    known = {"PATH", "HOME", "LANG", "LC_ALL", "TERM", "TZ", "ALLOWED"}
    assert set(confined.env) - set(mounts.certificates()) <= known
    assert confined.env["HOME"] == str(workspace)
    assert confined.argv == ("env",)
    assert NoSandbox().inside(workspace) == workspace


@pytest.fixture
def running(workspace: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A sandbox with a daemon that ignores signals to end."""
    script = "(setsid sh -c 'trap \"\" TERM HUP INT; while :; do date > beat; sleep 0.05; done' &)"
    spec = SandboxSpec(workspace=workspace)
    confined = Bubblewrap().confine(("sh", "-c", f"{script}; sleep 600"), spec)
    with subprocess.Popen(as_argv(confined), env=confined.env, cwd="/") as process:
        wait_for((workspace / "beat").exists, "the daemon beats")
        yield process
        process.kill()


def beats(workspace: Path) -> bool:
    (workspace / "beat").unlink(missing_ok=True)
    time.sleep(0.5)
    return (workspace / "beat").exists()


def test_the_end_of_the_outer_process_ends_all_processes(
    running: subprocess.Popen[bytes], workspace: Path
) -> None:
    assert beats(workspace)
    running.send_signal(signal.SIGKILL)
    running.wait()
    wait_for(lambda: not beats(workspace), "all processes have ended")


def test_exit_codes_are_returned(workspace: Path) -> None:
    assert inside(workspace, "sh", "-c", "exit 42").returncode == 42
    assert inside(workspace, "sh", "-c", "kill -9 $$").returncode == 137
    assert inside(workspace, "no-such-program").returncode != 0


def test_sandboxes_start_from_many_threads_at_once(tmp_path: Path) -> None:
    codes: list[int] = []

    def run_in_sandbox(number: int) -> None:
        folder = tmp_path / str(number)
        folder.mkdir()
        network = "model" if number % 2 else "none"
        codes.append(inside(folder, "sh", "-c", f"exit {number}", network=network).returncode)

    threads = [threading.Thread(target=run_in_sandbox, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == list(range(8))


def test_no_command_line_of_a_sandbox_contains_a_secret(workspace: Path) -> None:
    spec = SandboxSpec(workspace=workspace, env={"API_KEY": "very-secret"})
    confined = Bubblewrap().confine(("sh", "-c", "echo $API_KEY"), spec)
    assert "very-secret" not in " ".join(confined.argv)
    assert run(confined).stdout == b"very-secret\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives folders away")
class TestOwnership:
    def test_everything_in_the_folders_belongs_to_one_agent(self, tmp_path: Path) -> None:
        one, two = tmp_path / "one", tmp_path / "two"
        for folder in (one / "a" / "b", two):
            folder.mkdir(parents=True)
        (one / "a" / "file").touch()
        Bubblewrap().give_ownership(one, two)
        owners = {path.lstat().st_uid for path in (one, one / "a" / "b", one / "a" / "file", two)}
        assert len(owners) == 1
        assert owners.pop() >= 1_900_000_000

    def test_links_are_not_followed(self, tmp_path: Path, workspace: Path) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "file").touch()
        (workspace / "folder").symlink_to(outside)
        (workspace / "file").symlink_to(outside / "file")
        Bubblewrap().give_ownership(workspace)
        assert {outside.stat().st_uid, (outside / "file").stat().st_uid} == {0}
        assert (workspace / "folder").lstat().st_uid != 0

    def test_a_folder_keeps_its_agent_when_it_moves(self, tmp_path: Path, workspace: Path) -> None:
        Bubblewrap().give_ownership(workspace)
        owner = workspace.stat().st_uid
        moved = workspace.rename(tmp_path / "moved")
        (moved / "new").touch()
        home = tmp_path / "home"
        home.mkdir()
        Bubblewrap().give_ownership(moved, home)
        assert {moved.stat().st_uid, (moved / "new").stat().st_uid, home.stat().st_uid} == {owner}

    def test_a_deep_tree_gets_its_owner(self, workspace: Path) -> None:
        deep = "import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')\n"
        subprocess.run((sys.executable, "-c", deep), cwd=workspace, check=True)
        bubblewrap.chown_tree(workspace, bubblewrap.agent_uid(workspace))
        assert workspace.stat().st_uid >= 1_900_000_000
        subprocess.run(("rm", "-rf", str(workspace)), check=True)

    def test_a_mirror_that_its_agent_could_not_read_is_refused(
        self, tmp_path: Path, workspace: Path
    ) -> None:
        mirror = tmp_path / "mirror.git"
        mirror.mkdir(mode=0o700)
        with pytest.raises(PreconditionFailed, match="agents cannot read"):
            Bubblewrap(mirror=mirror).confine(("true",), SandboxSpec(workspace=workspace))


def test_old_files_and_folders_of_killed_proxies_are_removed() -> None:
    file = runtime_dir.keep("passwd-1", b"x")
    stale, used, unused, fresh = (runtime_dir.link_folder() for _ in range(4))
    with socket.socket(socket.AF_UNIX) as alive:
        with socket.socket(socket.AF_UNIX) as dead:
            # A killed proxy leaves a bound socket without a listener.
            dead.bind(str(stale / runtime_dir.SOCKET))
        alive.bind(str(used / runtime_dir.SOCKET))
        alive.listen()
        for path in (file, stale, used, unused):
            os.utime(path, (1, 1))
        runtime_dir.prune(file.parent)
        assert not any(path.exists() for path in (file, stale, unused))
        assert used.exists()
        assert fresh.exists()
    (used / runtime_dir.SOCKET).unlink()
    used.rmdir()
    fresh.rmdir()


def test_a_proxy_removes_its_folder_at_its_end(workspace: Path) -> None:
    confined = Bubblewrap().confine(
        ("sh", "-c", "until [ -S /proxy/proxy.sock ]; do sleep 0.01; done"),
        SandboxSpec(workspace=workspace, network="model"),
    )
    folder = Path(confined.sidecar[4]).parent
    assert folder.is_dir()
    assert run(confined).returncode == 0
    assert not folder.exists()


def test_a_scratch_folder_that_others_can_enter_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: f"test-{os.getpid()}")
    link = Path(f"/tmp/caloron-test-{os.getpid()}")
    link.symlink_to(tmp_path)
    try:
        with pytest.raises(PreconditionFailed, match="not a folder of yours alone"):
            runtime_dir.folder()
    finally:
        link.unlink()


def test_the_filter_of_system_calls_is_made_for_the_machines_we_know() -> None:
    known = {seccomp.program(machine) for machine in ("x86_64", "aarch64")}
    assert len(known) == 2
    assert all(len(code) % 8 == 0 and len(code) < 4096 * 8 for code in known)
    assert seccomp.program("riscv64") == b""
    assert seccomp.program() in known


def test_certificates_of_an_organisation_are_visible_inside(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "own-ca.pem"
    bundle.write_text("certificates\n")
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    done = inside(workspace, "sh", "-c", 'cat "$SSL_CERT_FILE"')
    assert done.stdout == b"certificates\n"
