"""Cache folder of the user, and the Hugging Face hub."""

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
    """Where trained weights and compiled code are kept; made when missing.

    It is `CHOP_CACHE`, or `~/.cache/chop`. Where that cannot be written, one in the folder of
    temporary files takes its place, which a warning says once.

    Raises:
        WriteError: `CHOP_CACHE` cannot be made, or no folder of temporary files can be written.
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
            f"the cache folder cannot be made: {error}; CHOP_CACHE names another one."
        ) from error


def _made(folder: Path, is_ours: bool = False) -> Path:
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)  # compiled code is loaded from it
    if is_ours and not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    return folder


@functools.lru_cache
def _temporary_cache(home: str | None, reason: str) -> Path:
    """A folder of this user among the temporary files, the same one each time.

    Args:
        home: where the cache would be.
        reason: why it is not there.
    """
    user = os.geteuid() if hasattr(os, "geteuid") else ""
    # A command has temporary files in a folder of its own, which goes when it ends.
    shared = os.environ.get("CHOP_SHARED_TEMPORARY", tempfile.gettempdir())
    folder = Path(shared) / f"chop-cache-{user}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    is_private = stat.S_ISDIR(status.st_mode) and user in (status.st_uid, "")
    if not is_private or (user != "" and status.st_mode & 0o077):  # it is of somebody else
        folder = Path(tempfile.mkdtemp(prefix="chop-cache-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    warnings.warn(
        f"no cache below the home folder ({reason}): '{folder}' is used. CHOP_CACHE names a folder "
        "that stays.",
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
    """True when the hub may be asked: not switched off by `HF_HUB_OFFLINE`, and it answers.

    The client library retries a dead network for 23 seconds a file, so one probe of at most
    three seconds is made first; its result holds for a minute.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    return _endpoint_answers(constants.ENDPOINT, int(time.monotonic() // 60))


@contextmanager
def offline_errors() -> Iterator[None]:
    """Inside, `datasets` does not try the hub when it cannot be reached.

    Its loader takes no such argument, only a setting that is read when it is imported.
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
    """A file of the hub in its local cache, fetched where the hub can be reached; None: neither.

    Args:
        repo: such as "org/model".
        name: of the file.
    """
    import huggingface_hub

    try:
        found = huggingface_hub.try_to_load_from_cache(repo, name)
        if isinstance(found, str):
            return Path(found)
        is_there = hub_is_reachable()
        return Path(huggingface_hub.hf_hub_download(repo, name)) if is_there else None
    except (OSError, ValueError):  # there is no such file or name
        return None


def hub_folder(repo: str, fetched: Sequence[str] = ()) -> Path | None:
    """The folder of a model in the hub's local cache; None: there is none.

    Args:
        repo: such as "org/model".
        fetched: patterns of files that are fetched where the hub can be reached.
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
