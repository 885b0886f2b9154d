"""Searches in namespaces, on stopped servers, on full disks, and where clocks jump."""

import ctypes
import datetime
import os
import shutil
import signal
import subprocess
import time
import uuid

import psutil
import pytest

from chop.runs.process import system_id
from chop.search import workers
from tests.search.killing import (
    FORK,
    Journal,
    Killed,
    ended,
    in_a_group,
    make,
    score,
    table,
    wait_until,
)

CLONE_NEWNS, CLONE_NEWPID = 0x20000, 0x20000000
MAY_MOUNT = shutil.which("unshare") is not None and (
    subprocess.run(["unshare", "-mpf", "mount", "-t", "proc", "proc", "/proc"]).returncode == 0
)
mounts = pytest.mark.skipif(not MAY_MOUNT, reason="namespaces cannot be made here")


def unshare(kinds):
    assert ctypes.CDLL(None).unshare(kinds) == 0
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


def in_a_pid_namespace(work):
    """Runs `work` as the first process of a container; it ends with the process returned."""

    def outside():
        unshare(CLONE_NEWNS)
        ctypes.CDLL(None).unshare(CLONE_NEWPID)
        inside = FORK.Process(target=first)
        inside.start()
        inside.join()

    def first():
        assert os.getpid() == 1
        subprocess.run(["mount", "-t", "proc", "proc", "/proc"], check=True)
        system_id.cache_clear()
        work()

    return in_a_group(outside)


@mounts
@pytest.mark.parametrize("count", [2, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.sampled(1)
def test_two_pid_namespaces_of_one_host(is_killed, count, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(workers, "SILENT_SECONDS", 1.0)
    journal = Journal(tmp_path / "journal")

    def measure(config, report):
        journal.note("begin", config)
        wait_until((tmp_path / "go").exists)
        journal.note("end", config)
        return {"score": score(config)}

    def inside():
        search = make(tmp_path, journal)
        search.measure = measure
        search.run(until=1, progress=False)

    container = in_a_pid_namespace(inside)
    wait_until(lambda: journal.count("begin").total() == 1)
    if is_killed:
        os.killpg(container.pid, signal.SIGKILL)
    runs = in_a_group(lambda: make(tmp_path, journal).run(3, workers=count, progress=False))
    wait_until(lambda: journal.count("end").total() >= 2)
    time.sleep(0.0 if is_killed else 1.6)  # longer than a silence
    (tmp_path / "go").touch()
    assert ended(runs) == 0
    ended(container)
    result = make(tmp_path, journal).result()
    assert len(result.measured) == 3 and result.trials[0].begun == 1 + is_killed
    assert set(journal.count("end").values()) == {1}


def server_processes(postgres):
    pid = int((postgres.data / "postmaster.pid").read_text().split()[0])
    return [psutil.Process(pid), *psutil.Process(pid).children()]


def stall(postgres):
    processes = server_processes(postgres)
    for process in processes:
        process.suspend()
    time.sleep(0.5)
    for process in processes:
        process.resume()


def restart(postgres):
    postgres.call("pg_ctl", "-D", postgres.data, "-m", "fast", "-w", "stop")
    postgres.start()


@pytest.mark.parametrize("stop, count", [(stall, 2), (restart, 1)])
@pytest.mark.long
def test_a_server_that_stops_for_a_while(stop, count, postgres, tmp_path):
    killed = Killed(tmp_path, postgres.url, name=f"study {time.time_ns()}", pause=0.05)
    process = in_a_group(lambda: killed.make().run(20, workers=count, progress=True))
    for ends in (2, 8):
        wait_until(lambda ends=ends: killed.journal.count("end").total() >= ends)
        stop(postgres)
    assert ended(process) == 0
    killed.total = 20
    killed.check_end()
    assert set(killed.journal.count("begin").values()) == {1}


@pytest.mark.long
def test_workers_that_begin_together_in_an_empty_database(postgres, tmp_path):
    import psycopg

    for _ in range(2):
        name = f"d{uuid.uuid4().hex}"
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        url = postgres.url.replace("/postgres?", f"/{name}?")
        barrier = FORK.Barrier(6)

        def begins(url=url, barrier=barrier):
            search = make(tmp_path, Journal(tmp_path / "journal"), url)
            barrier.wait()
            search.run(until=6, progress=False)

        processes = [in_a_group(begins) for _ in range(6)]
        assert [ended(process) for process in processes] == [0] * 6
        assert len(make(tmp_path, Journal(tmp_path / "journal"), url).result().measured) == 6


def test_clocks_that_jump_change_nothing(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "journal")
    unbroken = table(make(tmp_path, journal, name="a").run(until=12, progress=False))

    class Jumps(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2000 + 7 * (journal.count("begin").total() % 5), 1, 1)

    monkeypatch.setattr("optuna.storages._in_memory.datetime", Jumps)
    monkeypatch.setattr(time, "time", lambda: 1e9 * (journal.count("begin").total() % 4))
    journal.path.unlink()
    result = make(tmp_path, journal, name="b").run(until=12, progress=False)
    assert table(result) == unbroken
    assert make(tmp_path, journal, name="b").run(until=12, progress=False) == result


@mounts
def test_a_model_that_finds_no_room(tmp_path):
    """The second model takes more than the disk has; then the search goes on."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def works():
        unshare(CLONE_NEWNS)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], check=True)
        journal = Journal(tmp_path / "journal")

        def save(config, folder):
            if journal.count("end").total() == 2:
                with (folder / "weights").open("wb") as file:
                    file.write(bytes(2_000_000))
            journal.save(config, folder)

        search = make(disk, journal, save=save)
        with pytest.raises(OSError, match="(?i)full|no space"):
            search.run(until=8, progress=False)
        assert len(make(disk, journal).result().measured) == 1
        result = search.run(until=8, progress=False)
        assert len(result.measured) == 8 and result.trials[1].begun == 2
        assert {p.name for p in (disk / "study" / "best").iterdir()} == {
            trial.key for trial in result.ranked[:2]
        }

    assert ended(in_a_group(works)) == 0
