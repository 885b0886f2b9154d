"""Opens the browser at an address that has a secret in it."""

from __future__ import annotations

import os
import sys
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager

from chop.base.files.temporary import scratch_folder
from chop.report.ui.access import page_to

DESKTOPS = ("darwin", "win32")
DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")


def has_desktop() -> bool:
    """Returns whether somebody at this machine started the command and can be shown a window."""
    if not sys.stdout.isatty() or "SSH_CONNECTION" in os.environ:
        return False
    return sys.platform in DESKTOPS or any(map(os.environ.get, DISPLAYS))


@contextmanager
def opened(address: str) -> Iterator[None]:
    """Inside, the browser shows an address.

    The browser is given a file of this user's that leads to the address: every user of a machine
    can read the arguments of its programs.
    """
    with scratch_folder("ui") as folder:  # of this user alone
        page = folder / "open.html"
        page.write_text(page_to(address), encoding="utf-8")
        # A browser in the terminal returns when it is left.
        threading.Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True).start()
        yield
