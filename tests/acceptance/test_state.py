"""The state of a project: shown, compared with the ledger, backed up while it works, restored."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import random
import shutil
import signal
import sqlite3
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from caloron.cli.app import main
from tests.integration.store.conftest import exit_code
from tests.support.home import Answer, Home, does, task, writes

#: Each file that is made from the ledger, below the home.
PROJECTIONS = (
    "kv/demo-1.json",
    "kv/demo-2.json",
    "projects/demo/sprints.json",
    "projects/demo/workspace/learnings.json",
    "projects/demo/workspace/dag.json",
    "projects/demo/workspace/agents/a.agent",
    "projects/demo/workspace/agents/b.agent",
    "projects/demo/workspace/agent_versions.json",
    "projects/demo/workspace/skill_store.json",
    "projects/demo/workspace/retro_report.md",
    "projects/demo/workspace/retro/sprint-demo-1.md",
    "projects/demo/workspace/retro/sprint-demo-2.md",
)
#: Rows that a repair or a restore adds to.
LATER = tuple(f'INSERT INTO "{name}"' for name in ("kv", "events", "sqlite_sequence"))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with a sprint that is done and one that waits for a person, to be copied."""
    home = Home(tmp_path_factory.mktemp("filled"))
    home.init().script(writes("a"), does("implement", "b", exit_code=1))
    assert home.sprint(task("a")).code == 0
    assert home.sprint(task("b")).code == 10
    (backup := home.root / "backup").mkdir()
    assert home.caloron("state", "backup", str(backup / "good.tar")).code == 0
    yield home.root
    home.close()


class HomeCopy:
    """A copy of that home, with commands that run in this process: each takes milliseconds."""

    def __init__(self, root: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.root, self.home = root, root / "home"
        self.project = self.home / "projects" / "demo"
        self.good = root / "backup" / "good.tar"
        self._capfd = capfd

    def caloron(self, *line: str) -> Answer:
        self._capfd.readouterr()
        code = main(["state", *line, "--output", "json"])
        out, err = self._capfd.readouterr()
        return Answer(code, out, err)

    def verify(self, *options: str) -> dict[str, Any]:
        answer = self.caloron("verify", *options)
        data = answer.data
        assert answer.code == (8 if data["deviations"] else 0), answer
        return data

    def deviations(self) -> list[str]:
        return [deviation["target"] for deviation in self.verify()["deviations"]]

    def ledger(self, statement: str, *values: object) -> None:
        with closing(sqlite3.connect(self.project / "ledger.sqlite")) as connection:
            connection.execute(statement, values)
            connection.commit()

    def facts(self) -> list[str]:
        """Return all rows but those that only serve to make files."""
        with closing(sqlite3.connect(self.project / "ledger.sqlite")) as connection:
            return [line for line in connection.iterdump() if not line.startswith(LATER)]

    def killed_at(self, point: str, *line: str) -> None:
        """Run a command that is killed when it reaches a point, `name|k`."""
        code = exit_code(lambda: main(["state", *line]), killed_at=point)
        assert code == -signal.SIGKILL, point


@pytest.fixture
def home_copy(
    filled: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> HomeCopy:
    root = tmp_path / "copy"
    shutil.copytree(filled, root, ignore=shutil.ignore_patterns("wake"))
    monkeypatch.setenv("CALORON_HOME", str(root / "home"))
    monkeypatch.chdir(root)
    return HomeCopy(root, capfd)


def test_show_lists_each_file_with_its_author(home_copy: HomeCopy) -> None:
    (home_copy.home / "kv" / "demo-1.json").write_text("{}")
    (home_copy.project / "workspace" / "dag.json").unlink()
    shown = home_copy.caloron("show").data
    whose = {Path(f["path"]).name: f["whose"] for f in shown["files"]}
    assert whose["ledger.sqlite"] == whose["forge.git"] == "truth"
    assert (whose["demo-1.json"], whose["demo-2.json"], whose["dag.json"]) == (
        "foreign",
        "ours",
        "missing",
    )
    assert shown["ledger"]["counts"]["sprints"] == 2
    sprint = home_copy.caloron("show", "--sprint", "1").data
    assert sprint["state"]["state"]["tasks"]["a"]["status"] == "Done"
    assert {Path(f["path"]).name for f in sprint["files"]} == {"demo-1.json", "sprint-demo-1.md"}


def test_every_damage_of_exported_files_is_reported_and_repaired(home_copy: HomeCopy) -> None:
    files = [home_copy.home / name for name in PROJECTIONS]
    good, facts = {file: file.read_bytes() for file in files}, home_copy.facts()
    assert home_copy.deviations() == []
    chance = random.Random(8)
    damages: list[Callable[[Path], object]] = [
        lambda file: file.unlink(),
        lambda file: file.write_bytes(b"{\xff" + chance.randbytes(200)),
        lambda file: file.write_bytes(good[file][: len(good[file]) // 2] + b"\0"),
    ]
    for damage in damages:
        for file in files:
            damage(file)
        assert sorted(home_copy.deviations()) == sorted(map(str, files))
        assert home_copy.caloron("verify", "--repair", "--dry-run").code == 9
        assert len(home_copy.verify("--repair")["repaired"]) == len(files)
        assert {file: file.read_bytes() for file in files} == good
        assert home_copy.verify("--repair")["repaired"] == []
    for file in files:
        aside = [f for f in file.parent.iterdir() if f.name.startswith(f"{file.name}.")]
        assert len(aside) == len(damages) - 1
    assert home_copy.facts() == facts


def test_an_edit_that_resume_reads_back_is_a_note_and_stays(home_copy: HomeCopy) -> None:
    file = home_copy.home / "kv" / "demo-2.json"
    edited = json.loads(file.read_bytes())
    edited["state"]["tasks"]["b"]["status"] = "Cancelled"
    file.write_text(text := json.dumps(edited))
    verified = home_copy.verify("--repair")
    assert "Escalated → Cancelled" in verified["notes"][0]["found"]
    assert verified["repaired"] == []
    assert file.read_text() == text
    # An empty line helps no reader.
    edited["state"]["tasks"]["b"]["status"] = "Escalated"
    file.write_text(json.dumps(edited))
    assert home_copy.deviations() == [str(file)]
    assert len(home_copy.verify("--repair")["repaired"]) == 1


def test_wrong_cached_records_are_computed_again(home_copy: HomeCopy) -> None:
    good = (home_copy.project / "sprints.json").read_bytes()
    home_copy.ledger("UPDATE records SET data = ? WHERE sprint = 'demo-1'", b"{}")
    assert home_copy.deviations() == ["records/demo-1"]
    assert home_copy.verify("--repair")["deviations"] == []
    assert home_copy.deviations() == []
    assert (home_copy.project / "sprints.json").read_bytes() == good


def test_facts_that_disagree_are_reported_and_never_changed(home_copy: HomeCopy) -> None:
    home_copy.ledger("UPDATE tasks SET status = 'Done' WHERE id = 'b'")
    home_copy.ledger("UPDATE observations SET version = 9999")
    home_copy.ledger("UPDATE actions SET task = 'nobody' WHERE id = 1")
    home_copy.ledger("UPDATE work_items SET payload = '{}' WHERE id LIKE 'demo-2/b/%'")
    home_copy.ledger("DROP TRIGGER caloron_records_event")
    facts = home_copy.facts()
    (trigger,) = [t for t in home_copy.deviations() if "caloron_records_event" in t]
    assert trigger == "trigger caloron_records_event"
    assert home_copy.facts() == facts
    with closing(sqlite3.connect(home_copy.project / "ledger.sqlite")) as connection:
        connection.executescript(_trigger())
    named = "\n".join(home_copy.deviations())
    for what in ("tasks/demo-2/b, status", "observations/", "actions/1", "work_items/demo-2/b/"):
        assert what in named
    facts = home_copy.facts()
    assert home_copy.caloron("verify", "--repair").code == 8
    assert home_copy.facts() == facts


def _trigger() -> str:
    """The trigger as the migration has it."""
    source = Path(__file__).parents[2] / "src/caloron/ledger/migrations/0003-records.sql"
    text = source.read_text()
    return text[text.index("CREATE TRIGGER caloron_records_event") :]


def test_damage_to_the_forge_or_to_a_database_is_reported(home_copy: HomeCopy) -> None:
    forge = home_copy.project / "forge.git"
    head = (forge / "refs" / "heads" / "main").read_text().strip()
    (forge / "objects" / head[:2] / head[2:]).unlink()
    assert any("pull request" in t or "branch main" in t for t in home_copy.deviations())
    ledger = home_copy.project / "ledger.sqlite"
    pages = bytearray(ledger.read_bytes())
    pages[8192:40960] = bytes(40960 - 8192)
    ledger.write_bytes(pages)
    answer = home_copy.caloron("verify")
    assert answer.code == 8
    assert {deviation["kind"] for deviation in answer.data["deviations"]} == {"forge", "ledger"}


def test_repair_and_restore_are_refused_while_an_engine_runs(home_copy: HomeCopy) -> None:
    with (home_copy.project / "engine.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert home_copy.caloron("verify", "--repair").code == 5
        assert home_copy.caloron("restore", str(home_copy.good), "--force").code == 5
        assert home_copy.verify()["deviations"] == []
        assert home_copy.caloron("backup", str(home_copy.root)).code == 0


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(f.relative_to(folder)): f.read_bytes()
        for f in sorted(folder.rglob("*"))
        if f.is_file() and not f.name.endswith(("-shm", "-wal"))
    }


def test_a_restored_project_equals_the_backed_up_project(home_copy: HomeCopy) -> None:
    texts = {name: (home_copy.home / name).read_bytes() for name in PROJECTIONS}
    facts = set(home_copy.facts())
    shutil.rmtree(home_copy.home)
    answer = home_copy.caloron("restore", str(home_copy.good))
    assert answer.code == 0, answer
    assert {name: (home_copy.home / name).read_bytes() for name in PROJECTIONS} == texts
    assert facts - set(home_copy.facts()) == set()
    assert home_copy.verify()["deviations"] == []
    for line in (["status"], ["history"], ["report", "1"], ["pr", "list"], ["show", "2"]):
        assert main(line) == 0


def test_a_project_is_replaced_only_by_force_and_kept_beside(home_copy: HomeCopy) -> None:
    before = tree(home_copy.home)
    assert home_copy.caloron("restore", str(home_copy.good)).code == 5
    assert home_copy.caloron("restore", str(home_copy.good), "--as", "other").code == 5
    assert home_copy.caloron("restore", str(home_copy.good), "--force", "--dry-run").code == 9
    assert tree(home_copy.home) == before
    (home_copy.project / "mine.txt").write_text("mine")
    answer = home_copy.caloron("restore", str(home_copy.good), "--force")
    assert answer.code == 0
    assert (Path(answer.data["kept"]) / "mine.txt").read_text() == "mine"
    assert not (home_copy.project / "mine.txt").exists()
    assert home_copy.verify()["deviations"] == []


def test_a_project_can_come_back_under_another_name(home_copy: HomeCopy) -> None:
    shutil.rmtree(home_copy.home)
    assert home_copy.caloron("restore", str(home_copy.good), "--as", "again").code == 0
    assert main(["status"]) == 0
    assert home_copy.verify()["deviations"] == []
    assert main(["show", "1"]) == 0


def test_files_of_a_workspace_elsewhere_come_back_there(home_copy: HomeCopy) -> None:
    elsewhere = home_copy.root / "elsewhere"
    shutil.move(home_copy.project / "workspace", elsewhere)
    config = home_copy.project / "config.yml"
    config.write_text(config.read_text().replace("work_dir: ''", f"work_dir: {elsewhere}"))
    assert home_copy.verify()["deviations"] == []
    made = home_copy.root / "elsewhere.tar"
    assert home_copy.caloron("backup", str(made)).code == 0
    before = tree(elsewhere)
    shutil.rmtree(home_copy.home)
    (elsewhere / "dag.json").unlink()
    (elsewhere / "learnings.json").write_text('{"sprints": [{"sprint_id": 7}]}')
    answer = home_copy.caloron("restore", str(made))
    (aside,) = answer.data["aside"]
    assert Path(aside).name.startswith("learnings.json.foreign-")
    Path(aside).unlink()
    assert tree(elsewhere) == before
    assert home_copy.verify()["deviations"] == []


def with_digest(target: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    """Write a tar of any members with a right digest at its end."""
    with target.open("w+b") as file, tarfile.open(fileobj=file, mode="w") as tar:
        for member, content in members:
            tar.addfile(member, io.BytesIO(content))
        file.flush()
        seal = hashlib.sha256(target.read_bytes()[: tar.offset]).hexdigest().encode() + b"\n"
        end = tarfile.TarInfo("sha256")
        end.size = len(seal)
        file.seek(tar.offset)
        tar.addfile(end, io.BytesIO(seal))
    return target


def plain(name: str, content: bytes = b"") -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    return member, content


def made_of(good: Path, target: Path, change: Callable[[dict[str, bytes], Any], None]) -> Path:
    """A backup like the good one, but for one change, with every digest in it right."""
    with tarfile.open(good) as tar:
        parts = {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
    manifest = json.loads(parts.pop("manifest.json"))
    parts.pop("sha256")
    change(parts, manifest)
    manifest["parts"] = [
        {"name": n, "bytes": len(c), "sha256": hashlib.sha256(c).hexdigest()}
        for n, c in parts.items()
    ]
    members = [plain("manifest.json", json.dumps(manifest).encode())]
    return with_digest(target, members + [plain(*part) for part in parts.items()])


def test_a_backup_that_is_damaged_anywhere_is_refused_with_nothing_changed(
    home_copy: HomeCopy,
) -> None:
    good, bad = home_copy.good.read_bytes(), home_copy.root / "bad.tar"
    shutil.rmtree(home_copy.home)
    chance = random.Random(8)
    ends = (0, 1, 511, 512, 5000, len(good) // 2, len(good) - 10241, len(good) - 20480)
    texts = [good[:end] for end in ends] + [good + b"more", good + bytes(1 << 20)]
    for _ in range(60):
        at = chance.randrange(len(good))
        texts.append(good[:at] + bytes([good[at] ^ 1 << chance.randrange(8)]) + good[at + 1 :])
    for text in texts:
        bad.write_bytes(text)
        assert home_copy.caloron("restore", str(bad)).code == 8
    assert not home_copy.home.exists()


def test_a_backup_with_foreign_names_links_or_devices_is_refused(home_copy: HomeCopy) -> None:
    bad = home_copy.root / "bad.tar"
    shutil.rmtree(home_copy.home)
    manifest = plain("manifest.json", b"{}")
    for name in ("../out", "/tmp/out", "kv/../../out", "workspace/a/b", "kv/.x", "runs/x", "kv/"):
        with_digest(bad, [manifest, plain(name, b"x")])
        assert home_copy.caloron("restore", str(bad)).code == 8, name
    kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE)
    for kind in kinds:
        member = tarfile.TarInfo("config.yml")
        member.type, member.linkname = kind, "/etc/passwd"
        with_digest(bad, [manifest, (member, b"")])
        assert home_copy.caloron("restore", str(bad)).code == 8, kind
    bomb = tarfile.TarInfo("ledger.sqlite")
    bomb.pax_headers = {
        "GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 50),
        "GNU.sparse.name": "ledger.sqlite",
    }  # fmt: skip
    content = b"1\n0\n0\n".ljust(512, b"\0")
    bomb.size = len(content)
    with_digest(bad, [manifest, (bomb, content)])
    assert home_copy.caloron("restore", str(bad)).code == 8
    with_digest(bad, [manifest, plain("config.yml", b"x"), plain("config.yml", b"x")])
    assert home_copy.caloron("restore", str(bad)).code == 8
    assert not home_copy.home.exists()
    assert not Path("/tmp/out").exists()


def test_a_backup_with_right_digests_and_wrong_content_is_refused(
    home_copy: HomeCopy, tmp_path: Path
) -> None:
    shutil.rmtree(home_copy.home)

    def newer(parts: dict[str, bytes], manifest: Any) -> None:
        manifest["format"] = 2

    def newer_ledger(parts: dict[str, bytes], manifest: Any) -> None:
        manifest["migrations"]["ledger.sqlite"].append(["ledger/9999-later", "0"])

    def no_trigger(parts: dict[str, bytes], manifest: Any) -> None:
        file = tmp_path / "changed.sqlite"
        file.write_bytes(parts["ledger.sqlite"])
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("DROP TRIGGER caloron_events_no_delete")
            connection.commit()
        parts["ledger.sqlite"] = file.read_bytes()

    def no_commits(parts: dict[str, bytes], manifest: Any) -> None:
        del parts["forge.pack"]

    def bad_ref(parts: dict[str, bytes], manifest: Any) -> None:
        manifest["repositories"]["forge"]["refs"]["refs/x\ndelete refs/heads/main"] = "0" * 40

    def bad_settings(parts: dict[str, bytes], manifest: Any) -> None:
        parts["config.yml"] = b"parallel: many\n"

    for change in (newer, newer_ledger, no_trigger, no_commits, bad_ref, bad_settings):
        bad = made_of(home_copy.good, home_copy.root / "bad.tar", change)
        answer = home_copy.caloron("restore", str(bad))
        assert answer.code in (2, 8), (change, answer)
        assert ("newer" in answer.error["message"]) == (change in (newer, newer_ledger))
        assert not (home_copy.home / "projects" / "demo").exists()
        assert not list((home_copy.home / "kv").glob("*")), change
    made_of(home_copy.good, home_copy.root / "fine.tar", lambda parts, manifest: None)
    assert home_copy.caloron("restore", str(home_copy.root / "fine.tar")).code == 0


def test_a_killed_backup_leaves_nothing_or_the_whole(home_copy: HomeCopy) -> None:
    before = tree(home_copy.project)
    for point in ("backup.view", "backup.staged", "file.temp", "file.fsync", "file.rename"):
        (out := home_copy.root / point).mkdir()
        home_copy.killed_at(f"{point}|1", "backup", str(out / "caloron-b.tar"))
        assert (out / "caloron-b.tar").exists() == (point == "file.rename")
        # The next restore clears away the remains.
        assert home_copy.caloron("backup", str(out / "caloron-c.tar")).code == 0
        rest = {f.name for f in out.iterdir()}
        assert rest - {"caloron-b.tar"} == {"caloron-c.tar"}, point
        for made in out.iterdir():
            assert home_copy.caloron("restore", str(made), "--force", "--dry-run").code == 9
    assert tree(home_copy.project) == before


@pytest.mark.parametrize("there", [False, True])
def test_a_killed_restore_leaves_the_old_or_the_new_project(
    home_copy: HomeCopy, there: bool
) -> None:
    force = ["--force"] if there else []
    home_copy.ledger("INSERT INTO kv VALUES ('old', 'yes')")
    points = {"file.fsync|1": False, "file.fsync|2": False, "restore.prepared|1": False,
              "restore.aside|1": False, "restore.renamed|1": True,
              "file.fsync|3": True}  # fmt: skip
    for point, is_new in points.items():
        if not there:
            shutil.rmtree(home_copy.home)
        home_copy.killed_at(point, "restore", str(home_copy.good), *force)
        if there or is_new:
            assert _is_old(home_copy) != is_new, point
            assert home_copy.verify("--repair", "--project", "demo")["deviations"] == []
        else:
            assert not home_copy.project.exists()
        assert home_copy.caloron("restore", str(home_copy.good), "--force").code == 0
        home_copy.ledger("INSERT INTO kv VALUES ('old', 'yes')")
        assert not list(home_copy.project.parent.glob(".restore-*"))
        for kept in home_copy.project.parent.glob(".replaced-*"):
            assert (kept / "ledger.sqlite").exists()


def _is_old(home_copy: HomeCopy) -> bool:
    with closing(sqlite3.connect(home_copy.project / "ledger.sqlite")) as connection:
        return connection.execute("SELECT 1 FROM kv WHERE key = 'old'").fetchone() is not None


def test_a_backup_holds_no_secret(home_copy: HomeCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "hunter2hunter2hunter2"
    monkeypatch.setenv("MY_API_KEY", secret)
    out = home_copy.root / "with.tar"
    assert home_copy.caloron("backup", str(out)).code == 0
    assert secret.encode() not in out.read_bytes()
    config = home_copy.project / "config.yml"
    config.write_text(config.read_text() + f"note_of_mine: {secret}\n")
    assert home_copy.caloron("backup", str(home_copy.root / "no.tar")).code == 8
    assert not (home_copy.root / "no.tar").exists()


def test_backups_of_a_running_sprint_resume_to_the_same_end(home: Home) -> None:
    gate = home.gate("half")
    names = ("a", "b", "c")
    home.script(writes("a"), writes("b", run=gate.line), writes("c"))
    sprint = home.start_sprint(task("a"), task("b"), task("c", "a"))
    made: list[Path] = []

    def back_up() -> None:
        made.append(home.root / f"{len(made)}.tar")
        assert home.caloron("state", "backup", str(made[-1])).code == 0

    gate.wait_for_agent()
    back_up()
    gate.open()
    home.wait_for_status("b", "InReview")
    back_up()
    assert sprint.wait().code == 0
    for backup in made:
        shutil.rmtree(home.path)
        restored = home.caloron("state", "restore", str(backup))
        assert restored.code == 0, restored
        ended = home.caloron("resume")
        assert ended.statuses == dict.fromkeys(names, "Done"), ended
        assert sorted(home.files()) == [f"{name}.txt" for name in names]
        assert sorted(i["title"] for i in home.issues()) == [f"Task {name}" for name in names]
        assert sorted(p["task"] for p in home.pulls("merged")) == list(names)
        assert len(home.pulls()) == len(names)
        assert home.caloron("state", "verify").data["deviations"] == []
