"""A PostgreSQL server of its own, and a search that nothing interrupts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.search.killing import SPACE, Journal, make, table

FOLDERS = ["/usr/local/bin", "/usr/bin", *map(str, Path("/usr/lib/postgresql").glob("*/bin"))]


class Server:
    """A PostgreSQL that listens on a socket only."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, folder / "data"
        self.url = f"postgresql://postgres@/postgres?host={folder}"

    def call(self, program: str, *arguments: object) -> None:
        path = shutil.which(program, path=os.pathsep.join(FOLDERS))
        command = [path, *map(str, arguments)]
        if os.getuid() == 0:  # the server refuses to run as root
            command = ["runuser", "-u", "postgres", "--", *command]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder, timeout=60)

    def start(self) -> None:
        options = f"-c listen_addresses='' -c unix_socket_directories='{self.folder}' -c fsync=off"
        self.call(
            "pg_ctl", "-D", self.data, "-w", "-l", self.folder / "log", "-o", options, "start"
        )

    def kill(self) -> None:
        """SIGKILL of the server; its own processes end when they notice, which is waited for."""
        pid = int((self.data / "postmaster.pid").read_text().split()[0])
        processes = [psutil.Process(pid), *psutil.Process(pid).children()]
        os.kill(pid, signal.SIGKILL)
        psutil.wait_procs(processes, timeout=30)


@pytest.fixture(scope="session")
def postgres():
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    if any(
        shutil.which(name, path=os.pathsep.join(FOLDERS)) is None for name in ("initdb", "pg_ctl")
    ):
        pytest.skip("PostgreSQL is not installed")
    with tempfile.TemporaryDirectory(prefix="chop-pg-", dir="/tmp") as name:
        folder = Path(name)
        if os.getuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
        server = Server(folder)
        server.call("initdb", "-D", server.data, "-U", "postgres", "-A", "trust", "-N")
        server.start()
        yield server
        server.call("pg_ctl", "-D", server.data, "-m", "immediate", "stop")


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory):
    """Configurations and values of a search of the whole space, in order."""
    folder = tmp_path_factory.mktemp("unbroken")
    return table(make(folder, Journal(folder / "journal")).run(until=SPACE.size, progress=False))
