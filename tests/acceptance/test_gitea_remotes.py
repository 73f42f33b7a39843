"""Connections to a forge: https with a private certificate, and ssh with the user's own key."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from caloron.errors import ForgeUnavailable, PreconditionFailed, StaleHead
from caloron.forge.connect import connect
from caloron.git.command import GitError
from tests.acceptance.gitea_work import Work
from tests.support.fault_proxy import FaultProxy
from tests.support.gitea import Server
from tests.support.sockets import free_port

_SSH = """\
DISABLE_SSH = false
START_SSH_SERVER = true
BUILTIN_SSH_SERVER_USER = git
SSH_LISTEN_HOST = 127.0.0.1
SSH_LISTEN_PORT = {port}
SSH_PORT = {port}
"""


class SshServer(Server):
    """A Gitea that speaks ssh as well."""

    def __init__(self) -> None:
        self.ssh_port = free_port()
        super().__init__()

    def _write_settings(self) -> None:
        super()._write_settings()
        text = self._settings.read_text()
        more = _SSH.format(port=self.ssh_port)
        self._settings.write_text(text.replace("DISABLE_SSH = true\n", more))


@pytest.fixture
def ssh_gitea(gitea: Server) -> Iterator[SshServer]:
    """Request `gitea` first, so that the test is skipped with the reason where there is none."""
    if shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        pytest.skip("NO SSH HERE, so no remote by ssh is tested: install openssh-client")
    server = SshServer()
    yield server
    server.remove()


def test_a_remote_by_ssh_uses_the_users_own_key_and_no_token(
    ssh_gitea: SshServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "key"
    subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)), check=True)
    owner = ssh_gitea.person("owner")
    owner.post("/user/keys", {"title": "key", "key": key.with_suffix(".pub").read_text()})
    repository = ssh_gitea.repository(owner)
    url = f"ssh://git@127.0.0.1:{ssh_gitea.ssh_port}/{repository.full_name}.git"
    hosts = f"-o UserKnownHostsFile={tmp_path}/hosts -o StrictHostKeyChecking=accept-new"
    monkeypatch.setenv("GIT_SSH_COMMAND", f"ssh -o BatchMode=yes -i {key} {hosts}")
    forge = connect("gitea", ssh_gitea.url, repository.full_name, owner.token, git_url=url)
    assert owner.token not in str(forge.remote().env) + str(forge.remote().settings)
    work = Work(forge, tmp_path / "mirror.git")
    pull = work.open_pull("agent/login/s-1")
    assert forge.merge(pull.number, pull.head, work.main, "m").pull.state == "merged"
    with pytest.raises(StaleHead):
        forge.push(work.mirror.path, "agent/login/s-1", work.main, "")
    ssh_gitea.kill()
    with pytest.raises(ForgeUnavailable):
        work.mirror.fetch_main()
    forge.close()


def own_certificate(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """Make a certificate of a private authority; return a server's context and that authority."""
    authority, key, request = folder / "ca.pem", folder / "key.pem", folder / "request"
    certificate, names = folder / "server.pem", folder / "names"
    names.write_text("subjectAltName=IP:127.0.0.1\n")
    days = " -subj /CN=our-own-ca -days 2"
    signed = f" -CA {authority} -CAkey {folder}/ca.key -CAcreateserial -days 2"
    for words in (
        f"req -x509 -newkey rsa:2048 -nodes -keyout {folder}/ca.key -out {authority}" + days,
        f"req -newkey rsa:2048 -nodes -keyout {key} -out {request} -subj /CN=127.0.0.1",
        f"x509 -req -in {request} -out {certificate} -extfile {names}" + signed,
    ):
        subprocess.run(("openssl", *words.split()), check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, authority


def test_a_private_certificate_authority_is_trusted_only_by_the_client_and_git(
    gitea: Server, tmp_path: Path
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("NO OPENSSL HERE, so no certificate of our own is tested")
    context, authority = own_certificate(tmp_path)
    tls = FaultProxy(gitea.url, context)
    owner = gitea.person("owner")
    name = gitea.repository(owner).full_name
    forge = connect("gitea", tls.url, name, owner.token, ca_file=str(authority))
    work = Work(forge, tmp_path / "mirror.git")
    pull = work.open_pull("agent/login/s-1")
    assert forge.pull(pull.number).head == pull.head
    forge.close()
    distrusting = connect("gitea", tls.url, name, owner.token)
    with pytest.raises(PreconditionFailed, match="certificate") as refused:
        distrusting.issues()
    assert "ca_file" in refused.value.hint
    work.mirror.remote = distrusting.remote()
    with pytest.raises(GitError, match="certificate"):
        work.mirror.fetch_main()
    distrusting.close()
    tls.close()
