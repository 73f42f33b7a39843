"""People and agents call the program hundreds of times: what is heavy is not imported to look."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAVY = ("yaml", "msgspec", "rich", "caloron.forge", "caloron.engine", "caloron.agents")


def _modules_after(code: str, home: str) -> set[str]:
    script = f"import sys\n{code}\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    ran = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "CALORON_HOME": home, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return set(ran.stderr.splitlines())


@pytest.mark.parametrize(
    "code",
    [
        "import caloron.cli.main",
        "from caloron.cli.main import main; main(['--help'])",
        "from caloron.cli.main import main; main(['--version'])",
        "from caloron.cli.main import main; assert main(['status', '--help']) == 0",
        "import caloron.ledger.locate, caloron.store.lock, caloron.ledger.wake",
    ],
)
def test_looking_imports_nothing_heavy(code, tmp_path):
    modules = _modules_after(code, str(tmp_path))
    assert "caloron.errors" in modules
    assert modules.isdisjoint(HEAVY)
