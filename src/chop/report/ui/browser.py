"""Opening of the browser at an address that contains a secret."""

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
    """Returns whether the command runs in a desktop session of this user."""
    if not sys.stdout.isatty() or "SSH_CONNECTION" in os.environ:
        return False
    return sys.platform in DESKTOPS or any(map(os.environ.get, DISPLAYS))


@contextmanager
def opened(address: str) -> Iterator[None]:
    """Context manager that opens the browser at an address.

    The browser opens a private file that redirects to the address, because every user of a machine
    can read the arguments of processes.
    """
    with scratch_folder("ui") as folder:  # private to this user
        page = folder / "open.html"
        page.write_text(page_to(address), encoding="utf-8")
        # A text browser in the terminal blocks until the user quits it.
        threading.Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True).start()
        yield
