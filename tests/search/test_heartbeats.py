"""Signs of life: which workers count as alive, by their process here or by their heartbeats."""

import math
import os
import signal
import time

import psutil
import pytest

from chop.runs.process import start_time
from chop.search import workers
from chop.search.ledger import Ledger, make_tables
from chop.search.location import storage_url
from chop.search.storage import open_engine
from chop.search.workers import (
    HEARTBEAT_SECONDS,
    RUNNING_SECONDS,
    SILENT_SECONDS,
    HeartbeatMonitor,
    heartbeat,
    heartbeat_timeout,
    new_worker,
)
from tests.search.killing import in_a_process

FAR = "elsewhere:17:1:1"
LOOKS = int(SILENT_SECONDS / HEARTBEAT_SECONDS)


def test_workers_are_told_apart():
    me, parent = new_worker(), os.getppid()
    system = me.rsplit(":", 3)[0]
    assert me != new_worker()
    assert heartbeat_timeout(f"{system}:{parent}:{start_time(parent)}:1") == RUNNING_SECONDS
    assert heartbeat_timeout(f"{system}:{parent}:1:1") == heartbeat_timeout(me) == 0
    assert heartbeat_timeout(f"elsewhere:{parent}:1:1") == SILENT_SECONDS
    with heartbeat(None, me, HeartbeatMonitor(), is_shared=False):
        assert heartbeat_timeout(me) == math.inf
    assert heartbeat_timeout(me) == 0
    process = in_a_process(lambda: None)
    while process.exitcode is None:
        time.sleep(0.01)
    assert heartbeat_timeout(me.replace(f":{os.getpid()}:", f":{process.pid}:")) == 0


def test_a_stopped_worker_has_the_patience_of_a_far_one():
    process = in_a_process(lambda: time.sleep(60))
    worker = f"{new_worker().rsplit(':', 3)[0]}:{process.pid}:{start_time(process.pid)}:1"
    os.kill(process.pid, signal.SIGSTOP)
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    assert heartbeat_timeout(worker) == SILENT_SECONDS
    os.kill(process.pid, signal.SIGCONT)
    while psutil.Process(process.pid).status() == psutil.STATUS_STOPPED:
        time.sleep(0.01)
    assert heartbeat_timeout(worker) == RUNNING_SECONDS
    process.kill()
    process.join()


class Beats:
    """A ledger that has these signs of life, and may take no new ones."""

    def __init__(self, beats, takes_writes=True):
        self.counts, self.takes_writes = beats, takes_writes

    def heartbeat(self, worker):
        if not self.takes_writes:
            raise OSError("database is locked")

    def heartbeats(self):
        return self.counts


class Clock:
    """Lets a monitor look at beats, as if so many seconds had passed since its last look."""

    def __init__(self, monkeypatch):
        self.now, self.monitor = 1000.0, HeartbeatMonitor()
        monkeypatch.setattr(workers.time, "monotonic", lambda: self.now)

    def look(self, beat, after=HEARTBEAT_SECONDS, times=1):
        for _ in range(times):
            self.now += after
            self.monitor.poll(Beats({} if beat is None else {FAR: beat}), "me")
        return self.monitor.is_dead(FAR)


def test_a_far_worker_is_gone_when_its_heartbeats_stood_still_while_they_were_watched(monkeypatch):
    clock = Clock(monkeypatch)
    assert not clock.monitor.is_dead(FAR)  # nobody has looked yet
    assert not clock.look(7)
    assert not clock.look(7, times=LOOKS - 1)
    assert clock.look(7)
    assert not clock.look(8)
    assert clock.look(None)  # it has said that it ends


def test_a_stall_of_the_watching_process_makes_nobody_look_dead(monkeypatch):
    clock = Clock(monkeypatch)
    clock.look(7)
    assert not clock.look(7, after=3600)
    assert not clock.look(8)
    assert not clock.look(8, after=3600, times=LOOKS // 2 - 1)


def test_where_no_beat_can_be_written_nobody_looks_dead(monkeypatch):
    clock = Clock(monkeypatch)
    clock.look(7)
    for _ in range(2 * LOOKS):
        clock.now += HEARTBEAT_SECONDS
        with pytest.raises(OSError, match="locked"):
            clock.monitor.poll(Beats({FAR: 7}, takes_writes=False), "me")
    assert not clock.monitor.is_dead(FAR) and not clock.look(8)


def test_a_jump_of_the_wall_clock_makes_nobody_look_dead(monkeypatch, tmp_path):
    ledger = Ledger(open_engine(storage_url(None, tmp_path)), "study")
    make_tables(ledger.engine)
    monitor = HeartbeatMonitor()
    ledger.heartbeat(FAR)
    monitor.poll(ledger, "me")
    monkeypatch.setattr(time, "time", lambda: 2e12)
    ledger.heartbeat(FAR)
    monitor.poll(ledger, "me")
    ledger.engine.dispose()
    assert not monitor.is_dead(FAR)


def test_a_worker_of_another_pid_namespace_is_known_by_its_heartbeats(tmp_path):
    """A container of the same host: there is a process of that number here, or none."""
    me = new_worker()
    inside = me.replace(f":{os.getpid()}:", f"0:{os.getpid()}:")
    monitor = HeartbeatMonitor()
    with heartbeat(None, me, monitor, is_shared=False):
        monitor.poll(Beats({inside: 1}), "me")
        assert not monitor.is_dead(inside) and not monitor.is_dead(me)
    assert monitor.is_dead(me)
