"""The redactor removes secrets from written text, and no other text."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import uuid
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import caloron.store.redact
from caloron.store.redact import RedactingStream, Redactor, secrets_in

OVER_LINES = "first9\nsecond8\nthe 3rd"
SECRET = 'pa55/w+rd "äö" {x}'
#: Built from parts, so that secret scanners do not report this file.
PEM_BODY = "\n".join(
    base64.b64encode(hashlib.sha512(bytes([n])).digest()).decode()[:64] for n in range(25)
)
PEM = f"-----BEGIN RSA {'PRIVATE'} KEY-----\n{PEM_BODY}\nAbc12=\n-----END RSA {'PRIVATE'} KEY-----"
LETTERS = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s9T0u1V2w3X4y5Z6"
KEYS = {
    "anthropic": "sk-" + f"ant-api03-{LETTERS}-{LETTERS}_AA",
    "openai": "sk-" + LETTERS[:48],
    "openai project": "sk-" + f"proj-{LETTERS}_{LETTERS}",
    "github": "ghp" + f"_{LETTERS[:36]}",
    "github server": "ghs" + f"_{LETTERS[:36]}",
    "github fine": "github" + f"_pat_11ABCDEFG0{LETTERS[:11]}_{LETTERS}",
    "gitlab": "glpat" + f"-{LETTERS[:20]}",
    "slack": "xoxb" + f"-123456789012-{LETTERS[:24]}",
    "aws": "AKIA" + "IOSFODNN7EXAMPLE",
    "google": "AIza" + f"Sy{LETTERS[:33]}",
    "npm": "npm" + f"_{LETTERS[:36]}",
    "huggingface": "hf" + f"_{LETTERS[:34]}",
    "jwt": f"eyJ{LETTERS[:20]}.eyJ{LETTERS[:30]}.{LETTERS[:43]}",
}
ORDINARY = [
    f"commit {hashlib.sha1(b'x').hexdigest()}",
    f'"integrity": "sha512-{base64.b64encode(hashlib.sha512(b"x").digest()).decode()}"',
    f'checksum = "{hashlib.sha256(b"x").hexdigest()}"',
    f"--hash=sha256:{hashlib.sha256(b'y').hexdigest()}",
    f"github.com/some/token v1.2.3 h1:{base64.b64encode(hashlib.sha256(b'z').digest()).decode()}",
    f'"js-tokens": {{"integrity": "sha512-{base64.b64encode(hashlib.sha512(b"t").digest()).decode()}"}}',  # noqa: E501
    f'"tokenIntegrity": "sha512-{base64.b64encode(hashlib.sha512(b"x").digest()).decode()}"',
    f"request id {uuid.UUID(int=1 << 100)}",
    "token = get_token_from_the_environment(name)",
    "accessToken = this.tokenService2.createTokenForUser14(user)",
    "token: str = TokenKind2.from_text_v3",
    "password = os.environ['DB_PASSWORD_FOR_TESTS_ONLY']",
    "secret: ${{ secrets.GITHUB_TOKEN }}",
    "class: sk-loading-indicator-of-the-page",
    "a task-abcdefghijklmnopqrstuvwxyz0123456789 b",
    "npm_config_cache_min=9999999999 npm_package_version",
    "https://example.com:8080/path@2x.png",
    "git@github.com:owner/name.git",
    "https://${USER}:${PASSWORD}@host/ https://user@host/x",
    "if text.startswith('-----BEGIN RSA " + "PRIVATE KEY-----'): return the_rest_of_it",
    "-----BEGIN CERTIFICATE-----\n" + PEM_BODY + "\n-----END CERTIFICATE-----",
    "-----BEGIN PUBLIC KEY-----\n" + PEM_BODY + "\n-----END PUBLIC KEY-----",
    "Bearer authentication-with-a-long-description is explained here",
    "Author: Some Body <some.body@example.com>",
    "cache-key: linux-" + hashlib.sha256(b"lock").hexdigest(),
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + LETTERS[:43] + " me@host",
    "tokens_consumed: 123456789012345678901234",
    "eyJ.not.a.token eyJhbGci eyes.open.wide",
]


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize(
    "around",
    ["{}", "key is {}.", '{{"k": "{}"}}', "X={}\n", "({})", "\\n{}\\n", "https://h/?t={}&x=1"],
)
def test_a_key_is_recognised_by_its_form_anywhere(kind: str, around: str) -> None:
    text = around.format(KEYS[kind])
    assert Redactor().text(text) == around.format("[redacted]")


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Authorization: Bearer abcdefgh1", "Authorization: Bearer [redacted]"),
        ('"authorization": "Basic dXNlcjpwYXNz"', '"authorization": "Basic [redacted]"'),
        (r"{\"Authorization\": \"token 0123abcd\"}", r"{\"Authorization\": \"token [redacted]\"}"),
        ("https://me:hunter2@host/x.git", "https://me:[redacted]@host/x.git"),
        ("postgres://u:p%40ss@db:5432/x", "postgres://u:[redacted]@db:5432/x"),
        (f"https://{'a1' * 20}@gitea.local/x", "https://[redacted]@gitea.local/x"),
        (f"GITEA_TOKEN={'0a' * 20}", "GITEA_TOKEN=[redacted]"),
        (f'token: "{"0a" * 20}"', 'token: "[redacted]"'),
        (f'"accessToken" : "{LETTERS[:30]}"', '"accessToken" : "[redacted]"'),
        (f"API_KEY := '{LETTERS}'", "API_KEY := '[redacted]'"),
        (
            "aws_secret_access_key = wJalrXUtnFEMI/" + "K7MDENG/bPxRfiCYEXAMPLEKEY",
            "aws_secret_access_key = [redacted]",
        ),
    ],
)
def test_a_random_value_with_the_name_of_a_secret_is_redacted(text: str, clean: str) -> None:
    assert Redactor().text(text) == clean


@pytest.mark.parametrize(
    "block",
    [
        PEM,
        PEM.replace("\n", "\r\n"),
        json.dumps(PEM)[1:-1],
        "\n".join(f"+{line}" for line in PEM.splitlines())[1:],
        "\n".join(f"    {line}" for line in PEM.splitlines())[4:],
        PEM.replace("-\n", "-\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0A\n\n", 1),
        PEM.replace("RSA ", "OPENSSH "),
    ],
)  # fmt: skip
def test_a_private_key_is_redacted_from_its_first_line_to_its_last(block: str) -> None:
    assert Redactor().text(f"before\n{block}\nafter") == "before\n[redacted]\nafter"


def test_half_a_private_key_is_redacted() -> None:
    clean = Redactor().text(PEM[:900])
    assert PEM_BODY[:16] not in clean
    assert PEM[850:900].rsplit("\n", maxsplit=1)[-1] not in clean


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_is_not_changed(text: str) -> None:
    assert Redactor().text(text) == text
    assert Redactor().text(json.dumps(text)) == json.dumps(text)


@settings(deadline=None)
@given(
    st.binary(min_size=64, max_size=64),
    st.sampled_from(
        ["{}", '  "integrity": "sha512-{}",', 'hash = "{}"', "id: {}", "{}  file", "@{}"]
    ),
)
def test_no_hash_in_any_usual_form_is_redacted(digest: bytes, around: str) -> None:
    writings = (
        digest.hex(), digest[:20].hex(), digest[:32].hex(), base64.b64encode(digest).decode(),
        base64.b64encode(digest[:32]).decode(), str(uuid.UUID(bytes=digest[:16])),
    )  # fmt: skip
    for writing in writings:
        text = around.format(writing)
        assert Redactor().text(text) == text


def test_the_source_of_this_project_has_nothing_that_looks_like_a_secret() -> None:
    source = Path(caloron.store.redact.__file__).parents[1]
    for file in source.rglob("*.py"):
        data = file.read_bytes()
        assert Redactor().data(data) == data, file


@pytest.mark.parametrize(
    "form",
    [
        SECRET,
        json.dumps(SECRET)[1:-1],
        json.dumps(SECRET, ensure_ascii=False)[1:-1],
        json.dumps(json.dumps(SECRET))[3:-3],
        quote(SECRET),
        quote(SECRET, safe=""),
        quote_plus(SECRET),
    ],
)
def test_a_known_value_is_redacted_in_every_printed_form(form: str) -> None:
    assert Redactor([SECRET]).text(f"a {form} b") == "a [redacted] b"
    assert Redactor({"DB": SECRET}).text(f"a {form} b") == "a [redacted DB] b"


@settings(deadline=None)
@given(st.binary(max_size=9), st.binary(max_size=9))
def test_a_known_value_inside_base64_leaves_no_readable_part(before: bytes, after: bytes) -> None:
    value = "hunter2-hunter2-x"
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        coded = encode(before + value.encode() + after)
        left = Redactor([value]).data(coded).split(b"[redacted]")
        assert len(left) == 2
        # Letters at the borders hold bits of what stands beside the value: one byte of it.
        assert len(coded) - len(b"".join(left)) >= len(value) * 8 // 6 - 3


def test_the_longest_known_value_wins_and_short_values_are_not_redacted() -> None:
    redactor = Redactor(["abcdefgh", "abcdefgh-and-more", "short", ""])
    assert redactor.text("abcdefgh-and-more abcdefgh short") == "[redacted] [redacted] short"


def test_each_line_of_a_value_with_lines_is_secret_too() -> None:
    redactor = Redactor({"KEY": PEM})
    assert redactor.text(f"x {PEM} y") == "x [redacted KEY] y"
    line = PEM_BODY.splitlines()[3]
    assert redactor.text(f"> {line}") == "> [redacted KEY]"


def test_a_second_redaction_changes_nothing() -> None:
    redactor = Redactor({"A_TOKEN": SECRET})
    once = redactor.text(
        "\n".join((*KEYS.values(), PEM, SECRET, f"https://u:{SECRET}@h", *ORDINARY))
    )
    assert redactor.text(once) == once


@settings(deadline=None)
@given(st.lists(st.sampled_from([*KEYS.values(), *ORDINARY, PEM, PEM[:700], SECRET]) | st.text()))
def test_a_line_of_json_is_still_json_when_it_is_redacted(texts: list[str]) -> None:
    redactor = Redactor({"S": SECRET})
    for ascii_only in (True, False):
        document = {"joined": " ".join(texts), "eachOfTheTextsAlone": texts}
        clean = json.loads(redactor.text(json.dumps(document, ensure_ascii=ascii_only)))
        assert list(clean) == list(document)
        # A list of the lines of a key is one secret; so is one with what follows if it was cut.
        cut = any(text in (PEM, PEM[:700]) for text in texts)
        assert cut or len(clean["eachOfTheTextsAlone"]) == len(texts)
        clean_texts = clean["eachOfTheTextsAlone"]
        assert not any(key in text for text in clean_texts for key in KEYS.values())


@settings(deadline=None)
@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_any_text_and_any_bytes_can_be_redacted(text: str) -> None:
    assert Redactor([SECRET]).text(text + SECRET).startswith(text[:1])
    assert Redactor().data(text.encode("utf-16", "surrogatepass")) is not None


PIECES = st.lists(
    st.sampled_from(
        [*KEYS.values(), *ORDINARY, PEM, SECRET, OVER_LINES, "\n", "x" * 5000, " ", "é", "=", '"']
    )
    | st.text(max_size=20),
    max_size=12,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(PIECES, st.lists(st.integers(1, 3000), min_size=1, max_size=8))
@example([PEM], [1])
@example(["x", OVER_LINES], [3])
@example(["x" * 5000, KEYS["jwt"], "x" * 5000], [1])
def test_a_stream_cut_anywhere_hides_the_same_secrets(pieces: list[str], sizes: list[int]) -> None:
    data = "".join(f"{piece}\n" if len(piece) > 9 else piece for piece in pieces).encode()
    redactor = Redactor({"S": SECRET, "L": OVER_LINES})
    stream = RedactingStream(redactor)
    written, at, turn = b"", 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)] * (1 if len(data) < 2000 else 7)
        written += stream.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    assert written + stream.finish() == redactor.data(data)


@pytest.mark.parametrize("end", [9000, 9000 - 4096])
@pytest.mark.parametrize("secret", [*KEYS.values(), SECRET, f"token={LETTERS}"])
def test_a_secret_in_an_endless_line_is_redacted_at_every_cut(secret: str, end: int) -> None:
    # The third piece ends at 9000 bytes, and what is kept of it begins 4096 bytes before.
    for shift in range(len(secret.encode()) + 2):
        stream = RedactingStream(Redactor([SECRET]))
        data = (
            (b"word " * 2000)[: end - shift - 1] + b" " + secret.encode() + b" " + b"word " * 2000
        )
        out = b"".join(stream.feed(data[n : n + 3000]) for n in range(0, len(data), 3000))
        out += stream.finish()
        assert out == Redactor([SECRET]).data(data)
        assert out.count(b"[redacted]") == 1


def test_a_stream_buffers_little_and_writes_whole_lines_at_once() -> None:
    stream = RedactingStream(Redactor([SECRET]))
    assert stream.feed(b"one\ntwo\nthr") == b"one\ntwo\n"
    assert stream.feed(b"ee\n") == b"three\n"
    kept = 0
    for _ in range(100):
        kept += 65_536 - len(stream.feed(b"x" * 65_536))
        assert kept < 8192
    assert len(stream.finish()) == kept


def test_an_endless_private_key_is_not_buffered_without_limit() -> None:
    stream = RedactingStream(Redactor())
    head, line = PEM.split("\n", maxsplit=1)[0].encode() + b"\n", PEM_BODY.encode() + b"\n"
    out = stream.feed(head)
    for _ in range(12):
        out += stream.feed(line)
    assert out.startswith(b"[redacted]")


def test_secrets_are_recognised_by_the_names_of_variables() -> None:
    secret = {
        "ANTHROPIC_API_KEY": KEYS["anthropic"],
        "GITHUB_TOKEN": KEYS["github"],
        "DB_PASSWORD": "hunter2!x",
        "AWS_SECRET_ACCESS_KEY": LETTERS[:40],
        "npm_config__auth": "dXNlcjpwYXNzd29yZA==",
        "STRIPE_KEY": LETTERS[:24],
        "MY_CREDENTIALS": '{"user": "x", "pass": "y9"}',
    }
    harmless = {
        "SSH_AUTH_SOCK": "/tmp/ssh-x/agent.1234",
        "GPG_AGENT_INFO": "/run/user/1/gnupg:0:1",
        "XDG_SESSION_KEY": "12345678-abcd-0123",
        "GOOGLE_APPLICATION_CREDENTIALS": "/home/me/key.json",
        "TOKEN_FILE": "some-file-name-9",
        "PWD": "/home/me/token",
        "KEYBOARD": "de-latin1-nodeadkeys",
        "MONKEY": "banana-split-123",
        "TOKENIZERS_PARALLELISM": "false",
        "MAX_TOKENS": "12345678901",
        "AUTH_METHOD_TOKEN": "password-file",
        "GIT_PASSWORD": "short",
        "HOME": "/home/me",
    }
    assert secrets_in(secret | harmless) == secret


def test_the_password_inside_a_url_is_a_secret_of_its_own() -> None:
    environment = {"DATABASE_URL": "postgres://u:long-passw0rd@db/x", "HTTP_PROXY": "http://p:3128"}
    assert secrets_in(environment) == {"DATABASE_URL": "long-passw0rd"}


def test_the_redactor_imports_little_of_the_standard_library() -> None:
    source = Path(caloron.store.redact.__file__).parents[2]
    script = (
        f"import sys; sys.path.insert(0, {str(source)!r}); "
        "import __future__, json, re; before = set(sys.modules); "
        "from caloron.store.redact import Redactor; Redactor(['abcdefgh1']).text('x'); "
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-c", script], capture_output=True, text=True, check=True
    )
    others = {name for name in done.stdout.split() if not name.startswith("caloron")}
    assert others <= {"binascii", "collections.abc"}
