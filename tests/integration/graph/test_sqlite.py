"""The cache file: any number of processes share it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_SOURCES = Path(__file__).parents[3] / "src"


def test_several_processes_share_a_cache_file(tmp_path):
    code = """
import sys
from pathlib import Path
from caloron.graph.storage.cache import SqliteCache
from caloron.graph.runtime.protocols import CacheKey
cache = SqliteCache(Path(sys.argv[1]), most_bytes=100_000)
for number in range(300):
    key = CacheKey("s", "c", str(number))
    known = cache.get(key)
    assert known in (None, f"[{number}]"), known
    cache.put(key, f"[{number}]")
assert not cache.trouble, cache.trouble
"""
    command = [sys.executable, "-c", code, str(tmp_path / "cache.db")]
    environ = {"PYTHONPATH": str(_SOURCES)}
    several = [subprocess.Popen(command, env=environ) for _ in range(3)]
    assert [process.wait() for process in several] == [0, 0, 0]
