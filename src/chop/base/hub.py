"""User cache folder, and the Hugging Face hub."""

from __future__ import annotations

import atexit
import errno
import functools
import os
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from chop.errors import WriteError

PROBE_SECONDS = 3.0


def cache_folder() -> Path:
    """Returns the folder for trained weights and compiled code, created if missing.

    It is `CHOP_CACHE` or `~/.cache/chop`. If that is not writable, a folder among the temporary
    files is used, with one warning.

    Raises:
        WriteError: if `CHOP_CACHE` cannot be created, or no temporary folder is writable.
    """
    named = os.environ.get("CHOP_CACHE")
    try:
        if named:
            return _made(Path(named).expanduser())
        try:
            return _made(Path.home() / ".cache" / "chop", is_ours=True)
        except (OSError, RuntimeError) as error:
            return _temporary_cache(os.environ.get("HOME"), str(error))
    except (OSError, RuntimeError) as error:
        raise WriteError(
            f"the cache folder cannot be created: {error}; set CHOP_CACHE to another folder."
        ) from error


def _made(folder: Path, is_ours: bool = False) -> Path:
    folder.mkdir(
        mode=0o755, parents=True, exist_ok=True
    )  # not writable for others, because it contains code
    if is_ours and not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    return folder


@functools.lru_cache
def _temporary_cache(home: str | None, reason: str) -> Path:
    """Returns this user's cache folder among the temporary files, always the same one.

    Args:
        home: regular location of the cache.
        reason: reason why it is not usable.
    """
    user = os.geteuid() if hasattr(os, "geteuid") else ""
    # A command's temporary folder is removed at its end, so the original one is used.
    shared = os.environ.get("CHOP_SHARED_TEMPORARY", tempfile.gettempdir())
    folder = Path(shared) / f"chop-cache-{user}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    is_private = stat.S_ISDIR(status.st_mode) and user in (status.st_uid, "")
    if not is_private or (
        user != "" and status.st_mode & 0o077
    ):  # owned by or open to another user
        folder = Path(tempfile.mkdtemp(prefix="chop-cache-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    warnings.warn(
        f"the cache in the home folder cannot be used ({reason}): using '{folder}'. Set "
        "CHOP_CACHE to a permanent folder.",
        stacklevel=2,
    )
    return folder


@functools.lru_cache(maxsize=1)
def _endpoint_answers(endpoint: str, minute: int) -> bool:
    from huggingface_hub import get_session

    try:
        get_session().head(endpoint, timeout=PROBE_SECONDS)
    except Exception:  # the session's error classes differ between releases of the hub client
        return False
    return True


def hub_is_reachable() -> bool:
    """Returns whether the hub is enabled (`HF_HUB_OFFLINE`) and reachable.

    The client library retries a dead network for 23 seconds per file. A probe of at most three
    seconds avoids that; its result is cached for a minute.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    return _endpoint_answers(constants.ENDPOINT, int(time.monotonic() // 60))


@contextmanager
def offline_errors() -> Iterator[None]:
    """Context manager in which `datasets` does not access an unreachable hub.

    Its loader has no such argument, only a setting that is read at import.
    """
    import datasets
    from huggingface_hub import constants

    saved = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    if not hub_is_reachable():
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = saved


def hub_file(repo: str, name: str) -> Path | None:
    """Returns a hub file from the local cache, downloaded if possible, or None.

    Args:
        repo: repository, such as "org/model".
        name: name of the file.
    """
    import huggingface_hub

    try:
        cached = huggingface_hub.try_to_load_from_cache(repo, name)
        if isinstance(cached, str):
            return Path(cached)
        is_there = hub_is_reachable()
        return Path(huggingface_hub.hf_hub_download(repo, name)) if is_there else None
    except (OSError, ValueError):  # there is no such file or name
        return None


def hub_folder(repo: str, fetched: Sequence[str] = ()) -> Path | None:
    """Returns the folder of a model in the hub's local cache, or None.

    Args:
        repo: repository, such as "org/model".
        fetched: patterns of files to download if the hub is reachable.
    """
    import huggingface_hub

    is_local = not fetched or not hub_is_reachable()
    try:
        return Path(
            huggingface_hub.snapshot_download(
                repo, local_files_only=is_local, allow_patterns=list(fetched) or None
            )
        )
    except (OSError, ValueError):
        return None
