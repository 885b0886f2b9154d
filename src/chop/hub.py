"""The two places outside the process: the user's cache folder and the Hugging Face hub."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROBE_SECONDS = 3.0


def cache_folder() -> Path:
    """Where trained weights are kept: `CHOP_CACHE`, or `~/.cache/chop`; made when missing."""
    folder = Path(os.environ.get("CHOP_CACHE") or Path.home() / ".cache" / "chop").expanduser()
    folder.mkdir(parents=True, exist_ok=True)
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
