"""Freed memory goes back to the system."""

import subprocess
import sys

import pytest

from chop.base import memory
from chop.bench.peak_memory import resident_bytes

FREED = """
import resource, runpy, sys

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

release_freed = runpy.run_path(sys.argv[1])["release_freed"]
large, kept = [], []
for _ in range(1000):  # below what is mapped by itself, each with something small behind it
    large.append(bytearray(b"x" * 100_000))
    kept.append(bytearray(1000))
del large
before = resident()
assert release_freed()
print(before - resident())
"""
"""In a process of its own: the heap of this one has free memory of other tests."""


@pytest.mark.skipif(memory._trim() is None, reason="the C library has no malloc_trim")
@pytest.mark.skipif(resident_bytes() is None, reason="the system does not tell what is resident")
def test_freed_memory_between_what_lives_is_released():
    command = [sys.executable, "-I", "-c", FREED, memory.__file__]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 50_000_000


def test_other_allocators_are_left_alone(monkeypatch):
    monkeypatch.setattr(memory, "_trim", lambda: None)
    assert not memory.release_freed()
