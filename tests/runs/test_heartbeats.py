"""Failure detection by heartbeats: what counts as silence."""

from __future__ import annotations

import pytest

from chop.distributed import peers
from chop.runs import heartbeats
from chop.runs.heartbeats import SilenceCounter


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(heartbeats.time, "monotonic", lambda: self.now)

    def observe(self, counter, entries, after=1.0):
        self.now += after
        counter.observe(entries, longest_s=2.0)
        return counter.seconds


def test_silence_is_counted_from_the_last_change_of_an_entry(monkeypatch):
    clock, counter = Clock(monkeypatch), SilenceCounter()
    assert clock.observe(counter, {"a": 1, "b": 1}) == {"a": 0, "b": 0}
    assert clock.observe(counter, {"a": 1, "b": 2}) == {"a": 1, "b": 0}
    assert clock.observe(counter, {"a": 1, "b": 3}) == {"a": 2, "b": 0}
    assert clock.observe(counter, {"a": 2, "c": 1}) == {"a": 0, "c": 0}
    assert clock.observe(counter, {"b": 3}) == {"b": 0}


def test_a_long_pause_of_the_observer_counts_as_a_short_one(monkeypatch):
    clock, counter = Clock(monkeypatch), SilenceCounter()
    clock.observe(counter, {"a": 1})
    assert clock.observe(counter, {"a": 1}, after=3600) == {"a": 2}


def test_a_process_that_joined_between_observations_begins_at_zero(monkeypatch):
    clock, counter = Clock(monkeypatch), SilenceCounter()
    clock.observe(counter, {"a": 1})
    clock.observe(counter, {"a": 1})
    counter.include(["a", "b"])
    assert counter.seconds == {"a": 1, "b": 0}


class Peers:
    """Three processes of which this one has rank 0."""

    processes = 3

    def __init__(self):
        self.found = {1: b"7 1", 2: peers.AWAY}

    def entries(self):
        return self.found


@pytest.fixture
def sharded_run(monkeypatch):
    clock, run = Clock(monkeypatch), peers.Heartbeat(Peers(), "the sum")

    def after(seconds):
        clock.now += seconds
        return run._silent()

    assert not after(0.0)
    return after


def test_a_sharded_run_that_was_stopped_as_a_whole_goes_on(sharded_run):
    """Ctrl-Z and `fg`: no process could beat meanwhile."""
    assert not sharded_run(3600.0)
    assert not sharded_run(peers.PERIOD_S)


def test_a_process_of_a_sharded_run_that_hangs_is_named_and_one_that_left_is_not(sharded_run):
    polls = int(peers.SILENCE_S / peers.PERIOD_S)
    assert not any(sharded_run(peers.PERIOD_S) for _ in range(polls))
    assert sharded_run(peers.PERIOD_S) == "process 1 of 3"
