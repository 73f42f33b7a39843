"""Cached answers equal uncached answers, and the cache has a bounded size."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from caloron.graph.errors import GraphError, StageFailed
from caloron.graph.runners.functions import FunctionRunner
from caloron.graph.runtime.protocols import CacheKey
from caloron.graph.runtime.run import RunLimits
from caloron.graph.stage import FALLIBLE, PURE, Effect
from caloron.graph.storage.cache import MemoryCache, SqliteCache
from tests.support.bench import Bench, stage
from tests.support.graphs import CONSTANTS, nodes, stages


def _key(number: int) -> CacheKey:
    return CacheKey("stage", "code", f"input {number}")


def _bench() -> Bench:
    bench = Bench()
    bench.add("double", lambda value: [value, value])
    bench.add("is_five", lambda value: value == 5)
    bench.add("dice", lambda value: value, Effect("NonDeterministic"))
    return bench


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_pure_stage_runs_once_for_one_input(kind, tmp_path):
    cache: Any = MemoryCache() if kind == "memory" else SqliteCache(tmp_path / "cache.db")
    bench = _bench()
    first = bench.run(stage("double"), 1, cache=cache)
    again = bench.run(stage("double"), 1, cache=cache)
    bench.run(stage("double"), 1.0, cache=cache)
    assert first.output == again.output == [1, 1]
    assert bench.calls == {"double": 2}
    assert (first.cache_hits, first.cache_misses) == (0, 1)
    assert (again.cache_hits, again.cache_misses) == (1, 0)
    assert [entry.source for entry in again.trace.stages] == ["cache"]
    assert first.trace.stages[0].output_hash == again.trace.stages[0].output_hash


@pytest.mark.parametrize("effects", [(Effect("NonDeterministic"),), (PURE, Effect("Process"))])
def test_only_a_stage_without_other_effects_is_pure(effects):
    bench, cache = Bench(), MemoryCache()
    bench.add("dice", lambda value: value, *effects)
    for _ in range(2):
        bench.run(stage("dice"), 1, cache=cache)
    assert bench.calls == {"dice": 2}


def test_a_failure_is_not_cached():
    bench, cache, answers = _bench(), MemoryCache(), [ValueError("first"), 7]

    def once(_given: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    bench.add("once", once, PURE, FALLIBLE)
    with pytest.raises(StageFailed):
        bench.run(stage("once"), 1, cache=cache)
    assert bench.run(stage("once"), 1, cache=cache).output == 7
    assert bench.run(stage("once"), 1, cache=cache).output == 7


def test_new_code_runs_again():
    bench, cache = _bench(), MemoryCache()
    bench.run(stage("double"), 1, cache=cache)
    functions, double = FunctionRunner(version="2"), bench.catalogue.by_name("double")[0]
    functions.add(double, lambda value: "new answer")
    bench.functions = functions
    assert bench.run(stage("double"), 1, cache=cache).output == "new answer"


def test_a_pure_stage_that_calls_an_impure_stage_is_not_cached():
    bench, cache = _bench(), MemoryCache()
    bench.add("each", lambda names, call: [call.stage(name, 1) for name in names])
    for names in (["dice", "double"], ["dice", "double"], ["double"], ["double"]):
        bench.run(stage("each"), names, cache=cache)
    assert bench.calls == {"each": 3, "dice": 2, "double": 1}


def test_a_cache_in_memory_keeps_the_most_recently_used():
    cache = MemoryCache(most_entries=3)
    for number in range(3):
        cache.put(_key(number), str(number))
    assert cache.get(_key(0)) == "0"
    cache.put(_key(3), "3")
    assert [cache.get(_key(number)) for number in range(4)] == ["0", None, "2", "3"]
    small = MemoryCache(most_characters=10)
    for number in range(10):
        small.put(_key(number), "xxxx")
    assert len(small) == 2
    small.put(_key(99), "x" * 11)
    assert small.get(_key(99)) is None


def test_a_full_cache_file_evicts_the_longest_unused_entry(tmp_path):
    clock = [0.0]
    cache = SqliteCache(tmp_path / "c.db", most_bytes=100_000, now=lambda: clock[0])
    for number in range(100):
        clock[0] += 100
        cache.put(_key(number), "x" * 2000)
        assert cache.get(_key(0)) is not None
    kept = [number for number in range(100) if cache.get(_key(number)) is not None]
    assert 10 <= len(kept) <= 50
    assert kept == [0, *range(101 - len(kept), 100)]
    cache.put(_key(100), "x" * 10_001)
    assert cache.get(_key(100)) is None
    assert cache.trouble == ""


def test_a_cache_in_a_file_outlives_its_process_and_serves_threads(tmp_path):
    path = tmp_path / "made" / "c.db"
    SqliteCache(path).put(_key(1), '{"é":1.0}')
    cache = SqliteCache(path)
    assert cache.get(_key(1)) == '{"é":1.0}'
    threads = [threading.Thread(target=cache.put, args=(_key(n), str(n))) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [cache.get(_key(number)) for number in range(2, 20)] == [str(n) for n in range(2, 20)]


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
    environ = {"PYTHONPATH": os.pathsep.join(sys.path)}
    several = [subprocess.Popen(command, env=environ) for _ in range(3)]
    assert [process.wait() for process in several] == [0, 0, 0]


def test_a_damaged_cache_file_is_replaced(tmp_path):
    path = tmp_path / "c.db"
    path.write_bytes(b"this is no database" * 100)
    cache = SqliteCache(path)
    assert "not a database" in cache.trouble
    cache.put(_key(1), "1")
    assert cache.get(_key(1)) == "1"


def test_without_a_readable_cache_file_the_run_is_uncached(tmp_path):
    path = tmp_path / "c.db"
    path.mkdir()
    cache = SqliteCache(path)
    cache.put(_key(1), "1")
    assert cache.get(_key(1)) is None
    assert cache.trouble
    assert _bench().run(stage("double"), 1, cache=cache).output == [1, 1]


_LEAVES = stages("double", "is_five", "boom") | CONSTANTS


def _result(bench: Bench, root: Any, **options: Any) -> Any:
    """Return the visible result of a run, including its failure."""
    try:
        # With several threads either of two failing branches may be reported.
        outcome = bench.run(root, {"a": 5}, limits=RunLimits(threads=0), **options)
    except GraphError as error:
        return type(error), str(error)
    return outcome.output, [(e.path, e.input_hash, e.output_hash) for e in outcome.trace.stages]


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(nodes(_LEAVES, most_leaves=8, empty=False))
def test_cached_is_uncached(root):
    bench = _bench()

    def boom(value: Any) -> Any:
        if value == 5:
            raise ValueError("five")
        return value

    bench.add("boom", boom, PURE, FALLIBLE)
    cache = MemoryCache()
    plain = _result(bench, root)
    for _ in range(2):
        assert _result(bench, root, cache=cache) == plain
