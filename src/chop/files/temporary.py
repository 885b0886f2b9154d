"""Temporary names that say whose they are, so that what a killed process has left is removed.

A name has the process of its owner: a digest of the machine's boot and its PID namespace, the
number, and when it started. A file of another machine, on a shared disk, is left alone: whether its
owner lives cannot be known here.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import secrets
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

OWNER = re.compile(r"([0-9a-f]{8})-(\d{1,9})-(\d+)-[0-9a-f]{8}")
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
    """Whether a name has the mark of a process of this machine that has ended."""
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
