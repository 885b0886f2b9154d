"""Standard error is held back while libraries read, and is the process's own again afterwards."""

import os
import subprocess
import sys
import tempfile
import threading

import pytest

from chop.base.files.library_errors import without_panic_report

PANIC = """
import os, sys
from chop.base.files.library_errors import without_panic_report
Panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
for error in (Panic, ValueError):
    try:
        with without_panic_report():
            os.write(2, error.__name__.encode())
            raise error
    except error:
        pass
"""


def test_the_report_of_a_panic_alone_is_left_out():
    done = subprocess.run([sys.executable, "-c", PANIC], capture_output=True, text=True, check=True)
    assert done.stderr == "ValueError"


def test_threads_that_read_at_once_leave_standard_error_as_it_was(capfd):
    first, second = threading.Event(), threading.Event()

    def one():
        with without_panic_report():
            first.set()
            second.wait(10)

    def other():
        first.wait(10)
        with without_panic_report():
            second.set()
            thread.join(10)

    thread, last = threading.Thread(target=one), threading.Thread(target=other)
    before = os.fstat(2)
    for each in (thread, last):
        each.start()
    last.join(10)
    assert os.path.samestat(os.fstat(2), before)
    os.write(2, b"seen")
    assert capfd.readouterr().err == "seen"


@pytest.mark.parametrize("missing", ["a folder of temporary files", "standard error"])
def test_what_is_missing_stops_nothing(missing, monkeypatch, capfd):
    def fails(*args):
        raise FileNotFoundError("no usable temporary directory")

    if missing == "standard error":
        monkeypatch.setattr(sys, "stderr", None)
    else:
        monkeypatch.setattr(tempfile, "TemporaryFile", fails)
    with without_panic_report():
        os.write(2, b"seen")
    assert capfd.readouterr().err == "seen"
