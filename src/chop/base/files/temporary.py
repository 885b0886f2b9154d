"""Temporary names that identify their owner, so that files of killed processes are removed.

A name contains the owner's process: a digest of the machine's boot and PID namespace, the PID, and
the start time. Files of other machines on a shared disk are not touched, because the liveness of
their owners is unknown.
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
"""Prefix of temporary folders."""
SHARED = "CHOP_SHARED_TEMPORARY"
"""Environment variable with the original folder of temporary files, for the processes of a command.

It contains the cache folder that replaces one in the home folder, see `chop.base.hub`.
"""
PATH_BYTES = 72
"""Maximum length of the path of a temporary folder; socket paths in it have at most 104 bytes."""
TEMPORARY = r"\..*\.part"
"""Pattern of folders whose files are not yet in place."""


def temporary_beside(path: Path) -> Path:
    """Returns a unique name next to `path` that `TEMPORARY` matches."""
    return path.with_name(f".{path.name}.{owner_mark()}.part")


def owner_mark() -> str:
    """Returns a unique part of a file name that identifies this process."""
    pid = os.getpid()
    return f"{_digest()}-{pid}-{started(pid)}-{secrets.token_hex(4)}"


def is_orphan(name: str) -> bool:
    """Returns whether a name has the mark of an ended process on this machine."""
    match = OWNER.search(name)
    if match is None or match[1] != _digest():
        return False
    try:
        return started(int(match[2])) != match[3]
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:  # a live process of another user
        return False


def remove_orphans(paths: Iterable[Path]) -> None:
    """Removes this user's files and folders whose owner has ended, if possible."""
    for path in paths:
        if is_orphan(path.name) and _is_own(path):
            with suppress(OSError):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()


def _is_own(path: Path) -> bool:
    """Returns whether this user owns a file, because any user may choose a name."""
    if not hasattr(os, "geteuid"):  # Windows has no numeric owners
        return True
    with suppress(OSError):
        return path.lstat().st_uid == os.geteuid()
    return False


@functools.cache
def system_id() -> str:
    """Returns host, boot id (random(4)) and PID namespace (pid_namespaces(7), Linux only)."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    return ":".join(parts)


def _digest() -> str:
    return hashlib.sha256(system_id().encode()).hexdigest()[:8]


def started(pid: int) -> str:
    """Returns the start time of a process in clock ticks (proc(5), field 22); 0 on other systems.

    Raises:
        FileNotFoundError, ProcessLookupError: if no process has that number.
        PermissionError: if the process is running, but hidden from this user.
    """
    if not Path("/proc/self/stat").exists():
        if os.name == "posix":  # on Windows 0 is Ctrl-C
            os.kill(pid, 0)
        return "0"
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except FileNotFoundError:
        # With hidepid=2, /proc does not list processes of other users.
        os.kill(pid, 0)
        raise PermissionError(pid) from None
    fields = text.rpartition(")")[2].split()
    if fields[0] in "ZX":
        raise ProcessLookupError(pid)
    return fields[19]


@contextmanager
def scratch_folder(kind: str) -> Iterator[Path]:
    """Context manager with a temporary folder, which a later process removes after a kill.

    Raises:
        WriteError: if it cannot be created: the disk is full or read-only.
    """
    try:
        made = tempfile.TemporaryDirectory(prefix=scratch_prefix(kind), ignore_cleanup_errors=True)
    except OSError as error:
        raise WriteError(
            f"no temporary folder can be created: {error.strerror}; set TMPDIR to another folder."
        ) from error
    with made as name:
        yield Path(name)


def scratch_prefix(kind: str) -> str:
    """Returns the prefix by which a later process removes a temporary folder after a kill."""
    remove_old_scratch(tempfile.gettempdir())
    return f"{SCRATCH}{kind}-{owner_mark()}-"


@functools.cache
def remove_old_scratch(folder: str) -> None:
    """Removes temporary folders of killed processes, once per process."""
    with suppress(OSError):
        remove_orphans(Path(folder).glob(f"{SCRATCH}*"))


@contextmanager
def own_temporary_files() -> Iterator[None]:
    """Context manager that puts temporary files of libraries and children into one folder.

    The folder is removed at the end or, after a kill, by a later process. Caches that libraries
    such as inductor store among temporary files stay where they are.
    """
    with ExitStack() as stack:
        with suppress(OSError):  # commands without temporary files work on a full disk
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
