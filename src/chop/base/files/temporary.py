"""Temporary names that say whose they are, so that what a killed process has left is removed.

A name has the process of its owner: a digest of the machine's boot and its PID namespace, the
number, and when it started. A file of another machine, on a shared disk, is left alone: whether its
owner lives cannot be known here.
"""

from __future__ import annotations

import functools
import getpass
import hashlib
import os
import platform
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from chop.errors import WriteError

OWNER = re.compile(r"([0-9a-f]{8})-(\d{1,9})-(\d+)-[0-9a-f]{8}")
SCRATCH = "chop-"
"""Begins the names of folders of temporary files."""
SHARED = "CHOP_SHARED_TEMPORARY"
"""Environment variable of a command's processes: the folder of temporary files before. The cache
folder that stands in for one below the home folder is there, see `chop.base.hub`."""
PATH_BYTES = 72
"""Longest path of a folder of temporary files: names of sockets below it have 104 bytes at most."""
TEMPORARY = r"\..*\.part"
"""Names of folders whose files are not in their places yet."""


def temporary_beside(path: Path) -> Path:
    """A name beside `path` that no other writer has; `TEMPORARY` matches it."""
    return path.with_name(f".{path.name}.{owner_mark()}.part")


def owner_mark() -> str:
    """Part of a file's name that no other file has, and that names this process."""
    pid = os.getpid()
    return f"{_digest()}-{pid}-{started(pid)}-{secrets.token_hex(4)}"


def is_orphan(name: str) -> bool:
    """Returns true if a name has the mark of a process of this machine that has ended."""
    found = OWNER.search(name)
    if found is None or found[1] != _digest():
        return False
    try:
        return started(int(found[2])) != found[3]
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:  # it lives, and is another user's
        return False


def remove_orphans(paths: Iterable[Path]) -> None:
    """Removes this user's files and folders whose owner has ended; what cannot be removed stays."""
    for path in paths:
        if is_orphan(path.name) and _is_own(path):
            with suppress(OSError):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()


def _is_own(path: Path) -> bool:
    """Whether this user owns a file: a name is no proof, which any user of a folder can choose."""
    if not hasattr(os, "geteuid"):  # Windows tells no owners by numbers
        return True
    with suppress(OSError):
        return path.lstat().st_uid == os.geteuid()
    return False


@functools.cache
def system_id() -> str:
    """The host, and on Linux its boot (random(4)) and PID namespace (pid_namespaces(7))."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    return ":".join(parts)


def _digest() -> str:
    return hashlib.sha256(system_id().encode()).hexdigest()[:8]


def started(pid: int) -> str:
    """When a process started, in clock ticks (proc(5), field 22); elsewhere 0 for one that lives.

    Raises:
        FileNotFoundError, ProcessLookupError: there is none of that number.
        PermissionError: it lives, and this user may not see more.
    """
    if not Path("/proc/self/stat").exists():
        if os.name == "posix":  # on Windows 0 is Ctrl-C
            os.kill(pid, 0)
        return "0"
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except FileNotFoundError:
        # Where /proc is mounted with hidepid=2, processes of other users are not in it.
        os.kill(pid, 0)
        raise PermissionError(pid) from None
    fields = text.rpartition(")")[2].split()
    if fields[0] in "ZX":
        raise ProcessLookupError(pid)
    return fields[19]


@contextmanager
def scratch_folder(kind: str) -> Iterator[Path]:
    """Temporary folder of this process, removed at the end; after a kill, by the next process.

    Raises:
        WriteError: none can be made: the disk is full or read-only.
    """
    try:
        made = tempfile.TemporaryDirectory(prefix=scratch_prefix(kind), ignore_cleanup_errors=True)
    except OSError as error:
        raise WriteError(
            f"no folder of temporary files can be made: {error.strerror}; TMPDIR names another "
            "place."
        ) from error
    with made as name:
        yield Path(name)


def scratch_prefix(kind: str) -> str:
    """Prefix of a temporary folder's name, by which the next process removes it after a kill."""
    remove_old_scratch(tempfile.gettempdir())
    return f"{SCRATCH}{kind}-{owner_mark()}-"


@functools.cache
def remove_old_scratch(folder: str) -> None:
    """Removes temporary folders of killed processes; once a process."""
    with suppress(OSError):
        remove_orphans(Path(folder).glob(f"{SCRATCH}*"))


@contextmanager
def own_temporary_files() -> Iterator[None]:
    """Inside, temporary files of libraries and child processes are in a folder of this process.

    It is removed at the end; after a kill, with what is in it, by the next process. Caches that
    libraries keep among temporary files, as inductor does, stay where they were.
    """
    with ExitStack() as stack:
        with suppress(OSError):  # what needs no temporary files works on a full disk
            shared = tempfile.gettempdir()
            if len(os.fsencode(Path(shared) / scratch_prefix("run"))) + 8 <= PATH_BYTES:
                folder = stack.enter_context(scratch_folder("run"))
                stack.enter_context(_temporary_files_in(folder, shared))
        yield


@contextmanager
def _temporary_files_in(folder: Path, shared: str) -> Iterator[None]:
    named = {"TMPDIR": str(folder), SHARED: os.environ.get(SHARED, shared)}
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        with suppress(KeyError, ImportError, OSError):  # a user without a name
            user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
            named["TORCHINDUCTOR_CACHE_DIR"] = str(Path(shared) / f"torchinductor_{user}")
    before = {name: os.environ.get(name) for name in named}, tempfile.tempdir
    os.environ.update(named)
    tempfile.tempdir = str(folder)
    try:
        yield
    finally:
        variables, tempfile.tempdir = before
        for name, value in variables.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
