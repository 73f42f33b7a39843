"""Attempts of an agent to leave its sandbox, as root and as an ordinary user."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.agents.cage import SECRET, Cage, can_be_ordinary, new_cage
from tests.support.http_server import HttpServer, Reply


@pytest.fixture(params=["root", "user"])
def cage(request: pytest.FixtureRequest) -> Iterator[Cage]:
    if request.param == "root" and os.getuid() != 0:
        pytest.skip("only root can run agents as root does")
    if request.param == "user" and not can_be_ordinary():
        pytest.skip("the system has no interpreter that an ordinary user could run this with")
    with new_cage(request.param) as made:
        yield made


@pytest.fixture
def server() -> Iterator[int]:
    """The port of a server on this machine that a sandbox may not reach by default."""
    with HttpServer(lambda _: Reply("hello")) as listening:
        yield listening.port


_OPEN_FILES = """
import os, sys
for path in sys.argv[1:]:
    try:
        print(open(path).read())
    except OSError as error:
        print(type(error).__name__)
"""

#: Each call of the kernel that could loosen the sandbox, with what it answers.
_CALLS = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, call):
    ctypes.set_errno(0)
    result = call()
    print(name, "DONE" if result != -1 else errno.errorcode[ctypes.get_errno()])
NEWUSER, NEWNS, BIND, REMOUNT = 0x10000000, 0x20000, 4096, 32
attempt("unshare_user", lambda: libc.unshare(NEWUSER))
attempt("unshare_mount", lambda: libc.unshare(NEWNS))
attempt("mount", lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
attempt("bind", lambda: libc.mount(b"/tmp", b"/home", None, BIND, None))
attempt("remount_usr", lambda: libc.mount(None, b"/usr", None, REMOUNT | BIND, None))
attempt("remount_root", lambda: libc.mount(None, b"/", None, REMOUNT | BIND, None))
attempt("umount", lambda: libc.umount2(b"/proc", 2))
attempt("chroot", lambda: libc.chroot(b"/tmp"))
attempt("setns", lambda: libc.setns(os.open("/proc/1/ns/pid", os.O_RDONLY), 0)
        if os.access("/proc/1/ns/pid", os.R_OK) else libc.setns(0, 0))
attempt("ptrace", lambda: libc.ptrace(16, 1, 0, 0))
attempt("read_memory", lambda: libc.process_vm_readv(1, 0, 0, 0, 0, 0))
attempt("setuid", lambda: libc.setuid(0))
attempt("setgid", lambda: libc.setgid(0))
attempt("setgroups", lambda: libc.setgroups(1, (ctypes.c_uint * 1)(0)))
attempt("keyctl", lambda: libc.syscall(250 if os.uname().machine == "x86_64" else 219, 0, -4, 0))
attempt("io_uring", lambda: libc.syscall(425, 1, 0))
attempt("sethostname", lambda: libc.sethostname(b"mine", 4))
attempt("mknod", lambda: libc.mknod(b"/workspace/disk", 0o60666, 0xfe00))
attempt("vsock", lambda: libc.socket(40, 1, 0))
attempt("packet", lambda: libc.socket(17, 3, 0))
attempt("clone_user", lambda: libc.syscall(56 if os.uname().machine == "x86_64" else 220,
                                           NEWUSER | 17, 0, 0, 0, 0))
"""


def test_files_of_the_user_and_of_the_project_cannot_be_read(cage: Cage) -> None:
    done = cage.run("PYTHON", _OPEN_FILES, *map(str, cage.valuables), "/etc/shadow")
    assert done.out.split() == ["FileNotFoundError"] * (len(cage.valuables) + 1)


def test_the_users_home_and_the_folders_around_a_workspace_show_no_names(cage: Cage) -> None:
    done = cage.shell(f"ls -A {cage.user_home} {cage.project} {cage.run_dir} /run /var /root/.ssh")
    assert SECRET not in done.out
    assert not {"ledger.sqlite", ".ssh", "runs", "spec.json"} & set(done.out.split())
    # Caloron itself is read-only inside, so its parent folders may exist.
    absent = [f for f in ("/run", "/var", "/sys") if not Path(sys.prefix).is_relative_to(f)]
    assert cage.shell(" && ".join(f"test ! -e {folder}" for folder in absent)).code == 0


def test_the_mirror_can_be_read_but_not_written(cage: Cage) -> None:
    head = cage.mirror / "HEAD"
    done = cage.shell(
        f"cat {head}; echo x >> {head}; rm -f {head}; mkdir {cage.mirror}/new",
        mirror=str(cage.mirror),
    )
    assert done.out.strip() == SECRET
    assert len(done.err.splitlines()) == 3, done
    assert "new': Read-only file system" in done.err
    assert head.read_text() == SECRET


def test_only_the_workspace_and_the_private_home_can_be_written(cage: Cage) -> None:
    places = ("/", "/usr", "/usr/bin", "/etc", "/dev", "/home", "/bin", "/etc/ssl/certs")
    script = "; ".join(f"touch {folder}/planted && echo WRITTEN {folder}" for folder in places)
    done = cage.shell(f"{script}; touch /workspace/mine ~/mine /tmp/mine /dev/shm/mine && echo ok")
    assert done.out.strip() == "ok"
    assert (cage.workspace / "mine").exists()
    assert (cage.home / "mine").exists()


def test_the_private_tmp_is_removed_after_the_command(cage: Cage) -> None:
    outside = set(Path("/tmp").iterdir())
    assert "left-behind" in cage.shell("echo x > /tmp/left-behind; ls /tmp").out.split()
    assert "left-behind" not in cage.shell("ls -A /tmp").out
    assert not any(path.name == "left-behind" for path in {*Path("/tmp").iterdir()} - outside)


def test_the_environment_of_the_host_is_not_inherited(cage: Cage) -> None:
    done = cage.shell(
        "env; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'", env={"ALLOWED": "1"}
    )
    assert SECRET not in done.out + done.err
    assert "ALLOWED=1" in done.out.split()
    known = {"HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "PWD", "SHELL", "TERM", "TZ", "USER"}
    alone = cage.python("import os; print(*os.environ)")
    assert set(alone.out.split()) <= known | {"RUSTUP_HOME", "VOLTA_HOME", "LC_CTYPE"}


def test_other_processes_cannot_be_seen_or_ended(cage: Cage) -> None:
    with subprocess.Popen(("sleep", "60"), env={"TOKEN": SECRET}) as victim:
        try:
            done = cage.python(
                "import os\n"
                "pids = [int(name) for name in os.listdir('/proc') if name.isdigit()]\n"
                "print(len(pids), max(pids) < 100)\n"
                f"try: os.kill({victim.pid}, 0)\n"
                "except OSError as error: print(type(error).__name__)\n"
            )
            assert done.out.split() == ["2", "True", "ProcessLookupError"]
            # The command sees only the processes of its sandbox.
            cage.shell("kill -9 -1; kill -9 1; true")
            assert victim.poll() is None
        finally:
            victim.kill()


def test_no_call_of_the_kernel_loosens_the_sandbox(cage: Cage) -> None:
    done = cage.python(_CALLS)
    answers = dict(line.split() for line in done.out.splitlines())
    assert len(answers) == 21, done
    assert set(answers.values()) <= {"EPERM", "EINVAL", "EAFNOSUPPORT"}, answers
    assert answers["vsock"] == "EAFNOSUPPORT"
    assert [n for n, a in answers.items() if a == "EINVAL"] in (
        [],
        ["setgid"],
        ["setuid", "setgid"],
    )


def test_a_command_has_no_capabilities_and_gains_none(cage: Cage) -> None:
    done = cage.shell(
        "grep -E '^(CapInh|CapPrm|CapEff|CapAmb|NoNewPrivs|Seccomp):' /proc/self/status"
    )
    powers = dict(line.split() for line in done.out.replace(":", "").splitlines())
    assert {int(powers[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert (powers["NoNewPrivs"], powers["Seccomp"]) == ("1", "2")
    assert cage.shell("id -u; id -un").out.split()[0] != "0"


def test_nothing_can_be_typed_into_a_terminal(cage: Cage) -> None:
    done = cage.python(
        "import fcntl, os, pty\n"
        "main, other = pty.openpty()\n"
        "for request in (0x5412, 0x541c):\n"
        "    try: fcntl.ioctl(other, request, b'x'); print('TYPED')\n"
        "    except OSError as error: print(error.errno)\n"
        "try: os.open('/dev/tty', os.O_RDWR); print('TERMINAL')\n"
        "except OSError: print('none')\n"
    )
    assert done.out.split() == ["1", "1", "none"], done


_KNOCK = """
import socket, sys, urllib.request
def knock(make):
    try:
        make().close()
        print("REACHED")
    except OSError:
        print("refused")
port = int(sys.argv[1])
knock(lambda: socket.create_connection(("127.0.0.1", port), 5))
knock(lambda: socket.create_connection(("192.0.2.1", 443), 5))
abstract = socket.socket(socket.AF_UNIX)
knock(lambda: abstract.connect("\\0caloron-escapes-@DRIVER@") or abstract)
"""


@pytest.mark.parametrize("network", ["none", "model", "public"])
def test_without_a_network_no_machine_is_reached(cage: Cage, server: int, network: str) -> None:
    done = cage.run("PYTHON", _KNOCK, str(server), network=network)
    assert done.out.split() == ["refused"] * 3, done


def test_with_the_full_network_this_machine_is_reached(cage: Cage, server: int) -> None:
    """Without this test the other tests would also pass if the server did not run."""
    done = cage.run("PYTHON", _KNOCK, str(server), network="full")
    assert done.out.split()[0] == "REACHED"


_ASK = """
import sys, urllib.error, urllib.request
def ask(proxied, url):
    handlers = [urllib.request.ProxyHandler(None if proxied else {})]
    try:
        print(urllib.request.build_opener(*handlers).open(url, timeout=20).read().decode())
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode())
    except OSError as error:
        print("failed", error)
allowed, other = sys.argv[1:]
ask(False, f"http://127.0.0.1:{allowed}/")
ask(False, f"http://localhost:{allowed}/")
import os
os.environ["NO_PROXY"] = os.environ["no_proxy"] = ""
ask(True, f"http://127.0.0.1:{allowed}/")
ask(True, f"http://127.0.0.1:{other}/")
ask(True, "http://example.invalid/")
ask(True, "https://example.invalid/")
"""


def test_with_the_network_of_the_model_only_the_listed_hosts_are_reached(
    cage: Cage, server: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as forbidden:
        other = forbidden.getsockname()[1]
        hosts = (f"127.0.0.1:{server}", "api.example.invalid")
        words = (str(server), str(other))
        done = cage.run("PYTHON", _ASK, *words, network="model", hosts=hosts)
    lines = [line for line in done.out.splitlines() if line]
    assert lines[:3] == ["hello"] * 3, done
    assert lines[3].startswith("403 ")
    assert f"127.0.0.1:{other}" in lines[3]
    assert "caloron config set allow_hosts" in lines[4]
    assert "example.invalid:80" in lines[4]
    assert "403" in lines[5]


def test_the_socket_of_the_proxy_cannot_be_replaced(cage: Cage) -> None:
    done = cage.shell("rm -f /proxy/*; touch /proxy/x; mv /proxy /tmp/", network="model")
    assert done.err.count("Read-only file system") + done.err.count("busy") >= 2, done


def test_a_fork_bomb_is_stopped(cage: Cage) -> None:
    done = cage.python(
        "import os, time\n"
        "count = 0\n"
        "while count < 400:\n"
        "    try: child = os.fork()\n"
        "    except BlockingIOError: break\n"
        "    if child == 0: time.sleep(60); os._exit(0)\n"
        "    count += 1\n"
        "print(count)\n",
        caps={"processes": 40},
    )
    assert 20 < int(done.out) <= 40, done
    assert subprocess.run(("true",), check=False).returncode == 0


def test_a_memory_hog_is_stopped(cage: Cage) -> None:
    done = cage.python("bytearray(600 << 20)", caps={"memory_mb": 300})
    assert "MemoryError" in done.err
    assert cage.python("bytearray(200 << 20)", caps={"memory_mb": 300}).code == 0


@pytest.mark.parametrize("folder", ["/workspace", "/home/agent"])
def test_a_big_file_is_stopped(cage: Cage, folder: str) -> None:
    done = cage.shell(
        f"head -c 20M /dev/zero > {folder}/big; ls -l {folder}/big", caps={"file_mb": 4}
    )
    assert int(done.out.split()[4]) == 4 << 20, done


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm", "/home/agent"])
def test_files_in_memory_are_limited(cage: Cage, folder: str) -> None:
    script = f"for n in 1 2 3 4 5 6 7 8; do head -c 16M /dev/zero > {folder}/$n; done"
    done = cage.shell(f"{script}; du -smx {folder} | cut -f1", home=None, caps={"memory_mb": 128})
    assert "No space left on device" in done.err
    # The other files there are small.
    assert int(done.out) <= 40, done


def test_links_in_a_workspace_resolve_inside_the_sandbox(cage: Cage) -> None:
    target = cage.valuables[0]
    (cage.workspace / "link").symlink_to(target)
    (cage.workspace / "up").symlink_to("../spec.json")
    done = cage.shell("cat link up/ up; echo x > link; cat /workspace/../spec.json")
    assert SECRET not in done.out
    assert target.read_text() == SECRET


def test_a_workspace_or_home_that_became_a_link_is_refused(cage: Cage) -> None:
    for name in ("workspace", "home"):
        folder: Path = getattr(cage, name)
        folder.rename(cage.root / name)
        folder.symlink_to(cage.user_home)
        done = cage.shell("cat .ssh/id_ed25519", keep_owner=True)
        assert "a link" in done.refused
        assert SECRET not in done.out
        folder.unlink()
        (cage.root / name).rename(folder)


def test_a_daemon_does_not_outlive_the_agent(cage: Cage) -> None:
    script = "(setsid sh -c 'trap \"\" TERM HUP; sleep 2; touch /workspace/alive' &) ; exit 3"
    done = cage.shell(script)
    assert done.code == 3
    subprocess.run(("sleep", "2.5"), check=True)
    assert not (cage.workspace / "alive").exists()


def test_a_prompt_on_the_terminal_gets_no_answer_and_does_not_wait(cage: Cage) -> None:
    done = cage.shell("read answer; echo [$answer]; cat; python3 -c 'input()'; git commit")
    assert done.out.startswith("[]")
    assert "EOFError" in done.err


def test_tools_of_the_machine_work_inside(cage: Cage) -> None:
    done = cage.shell(
        "set -e; python3 -c 'import ssl, json; print(1 + 1)'; git --version;"
        " if command -v node; then node -e 'console.log(6 * 7)'; fi;"
        " python3 -m venv --without-pip ~/venv; ~/venv/bin/python -c 'print(\"venv\")';"
        ' id -un; test "$(pwd)" = /workspace'
    )
    assert done.code == 0, done
    words = done.out.split()
    assert words[0] == "2"
    assert "42" in words or "node" not in done.out
    assert words[-2:] == ["venv", "agent"]


def test_git_works_in_a_workspace_that_borrows_from_the_mirror(cage: Cage) -> None:
    (cage.mirror / "HEAD").unlink()
    cage.workspace.rmdir()
    cage.outside(
        "git init -q -b main first && cd first && git commit -q --allow-empty -m one && cd .."
        f" && git clone -q --bare first {cage.mirror}"
        f" && git clone -q --shared {cage.mirror} {cage.workspace}"
    )
    done = cage.shell(
        "set -e; git config user.name B; git config user.email b@example.invalid;"
        " echo hi > f; git add f; git commit -qm two; git fetch -q origin; git log --format=%s",
        mirror=str(cage.mirror),
    )
    assert done.out.split() == ["two", "one"], done


def test_read_only_files_keep_their_paths(cage: Cage) -> None:
    tool = cage.root / "tools" / "bin" / "my-tool"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\necho works\n")
    tool.chmod(0o755)
    link = cage.root / "tool-link"
    link.symlink_to(tool)
    single = cage.root / "fixture.json"
    single.write_text("{}\n")
    done = cage.shell(
        f"my-tool; {link}; cat {single}; ls {cage.root}; echo x > {single}; rm {tool}",
        read_only=[str(tool.parent), str(link), str(single), "/nonexistent/file"],
    )
    assert done.out.split()[:3] == ["works", "works", "{}"], done
    assert set(done.out.split()[3:]) <= {"fixture.json", "source", "tool-link", "tools"}
    assert len(done.err.splitlines()) == 2, done
    assert single.read_text() == "{}\n"


def test_the_search_path_has_only_existing_folders(cage: Cage) -> None:
    done = cage.python(
        "import os; print(*(os.path.isdir(p) for p in os.environ['PATH'].split(':')))"
    )
    assert set(done.out.split()) == {"True"}
    odd = cage.python(
        "import os; print(os.environ['PATH'])",
        env={"PATH": f"{cage.user_home}/bin:relative:/usr/bin"},
    )
    assert str(cage.user_home) not in odd.out
    assert "relative" not in odd.out


def test_toolchains_of_the_user_are_visible_without_credentials(cage: Cage) -> None:
    tool = cage.user_home / ".cargo" / "bin" / "cargo-like"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho $RUSTUP_HOME\n")
    tool.chmod(0o755)
    (cage.user_home / ".rustup").mkdir()
    done = cage.shell(
        f"{tool}; ls -A {tool.parents[1]} {cage.user_home}; cat {tool.parents[1]}/cred*"
    )
    assert done.out.split()[0] == str(cage.user_home / ".rustup")
    assert set(done.out.split()) & {"credentials.toml", ".ssh", ".aws"} == set()


@pytest.mark.parametrize(
    ("path", "word"),
    [("{workspace}/inner", "which its agent may change"), ("{home}/inner", "may change"),
     ("{project}", "which every agent may read"), ("/", "agents may not read"),
     ("/proc/1", "agents may not read")],
)  # fmt: skip
def test_a_read_only_path_that_opens_the_sandbox_is_refused(
    cage: Cage, path: str, word: str
) -> None:
    for folder in (cage.workspace, cage.home):
        (folder / "inner").mkdir()
    target = path.format(workspace=cage.workspace, home=cage.home, project=cage.project)
    assert word in cage.shell("true", read_only=[target]).refused


@pytest.mark.skipif(os.getuid() != 0, reason="agents have user ids of their own under root only")
def test_under_root_a_command_never_runs_as_root() -> None:
    with new_cage("root") as cage:
        done = cage.shell("id -u; touch mine", keep_owner=True)
        assert int(done.out) >= 1_900_000_000
        assert (cage.workspace / "mine").stat().st_uid == int(done.out)
