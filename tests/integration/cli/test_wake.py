"""The engine sleeps until an agent or a command wakes it."""

from __future__ import annotations

import threading

import pytest

from caloron.store.wake import Wake


@pytest.fixture
def wake(tmp_path):
    wake = Wake(tmp_path / "shop" / "wake")
    wake.create()
    yield wake
    wake.close()


def test_a_poke_ends_the_wait(wake):
    threading.Timer(0.05, Wake(wake.path).poke).start()
    assert wake.wait(60)


def test_without_a_poke_the_wait_ends_by_itself(wake):
    assert not wake.wait(0.01)


def test_a_poke_before_the_wait_is_not_lost(wake):
    Wake(wake.path).poke()
    assert wake.wait(0)


def test_a_full_fifo_blocks_no_agent_and_is_one_wake_up(wake):
    for _ in range(70_000):
        wake.poke()
    assert wake.wait(0)
    assert not wake.wait(0)


def test_a_poke_without_a_listener_does_nothing(tmp_path):
    absent = Wake(tmp_path / "absent")
    absent.poke()
    assert not absent.path.exists()
    gone = Wake(tmp_path / "wake")
    gone.create()
    gone.close()
    gone.poke()


def test_the_fifo_replaces_a_file_at_its_path(tmp_path):
    path = tmp_path / "wake"
    path.write_text("")
    Wake(path).poke()
    assert path.read_text() == ""
    wake = Wake(path)
    wake.create()
    Wake(path).poke()
    assert wake.wait(0)
    wake.close()


def test_the_fifo_of_an_earlier_engine_serves_the_next(wake):
    again = Wake(wake.path)
    again.create()
    wake.close()
    again.poke()
    assert again.wait(0)
    again.close()
