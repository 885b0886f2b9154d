"""Runs code in interpreters that have imported torch, and nothing of ours.

Each is a fork of one that waits: what an import brings along is seen without importing torch anew.
"""

from __future__ import annotations

import atexit
import functools
import json
import subprocess
import sys
import tempfile

SERVER = """
import json, os, sys, traceback
import torch

for line in sys.stdin:
    code, out = json.loads(line)
    child = os.fork()
    if child == 0:
        for stream in (1, 2):
            os.dup2(os.open(out, os.O_WRONLY | os.O_APPEND), stream)
        status = 1
        try:
            exec(code, {"__name__": "__main__"})
            status = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@functools.cache
def _server() -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=pipe, stdout=pipe, text=True)

    def end() -> None:
        server.communicate()

    atexit.register(end)
    return server


def printed_by(code: str) -> str:
    """What `code` prints, messages included.

    Raises:
        AssertionError: it raised something.
    """
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    with tempfile.NamedTemporaryFile("r", suffix=".txt") as out:
        server.stdin.write(json.dumps([code, out.name]) + "\n")
        server.stdin.flush()
        status = server.stdout.readline().strip()
        told = out.read()
    assert status == "0", told
    return told
