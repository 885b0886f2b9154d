"""Freed memory goes back to the system."""

import pytest

from chop import memory
from chop.bench.peak_memory import resident_bytes


@pytest.mark.skipif(memory._trim() is None, reason="the C library has no malloc_trim")
@pytest.mark.skipif(resident_bytes() is None, reason="the system does not tell what is resident")
def test_freed_memory_between_what_lives_is_released():
    large, kept = [], []
    for _ in range(1000):  # below what is mapped by itself, each with something small behind it
        large.append(bytearray(b"x" * 100_000))
        kept.append(bytearray(1000))
    del large
    before = resident_bytes()
    assert memory.release_freed()
    assert before - resident_bytes() > 50_000_000
    assert len(kept) == 1000


def test_other_allocators_are_left_alone(monkeypatch):
    monkeypatch.setattr(memory, "_trim", lambda: None)
    assert not memory.release_freed()
