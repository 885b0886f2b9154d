"""Worker that runs a Verilated design in a separate process, started by path.

It imports only the standard library and starts in the project folder, which contains the design's
memories. Its argument is the path of a JSON file, see `chop.hardware.harness.run`.
"""

import ctypes
import json
import os
import sys
import threading
import time
from ctypes import POINTER, c_char_p, c_int64, c_void_p
from pathlib import Path
from typing import Any

STATUS = ("done", "timeout", "finished", "overdue")
POLL_SECONDS = 0.5
NEVER = -1
NOT_LOADED = 3
"""Exit status if the library cannot be loaded."""


class Run(ctypes.Structure):
    """Settings of a run, with the layout of `Run` in harness.cpp."""

    _fields_ = (
        ("pause_every", c_int64),
        ("pause_cycles", c_int64),
        ("seed", c_int64),
        ("idle_cycles", c_int64),
        ("most_cycles", c_int64),
        ("drain_cycles", c_int64),
        ("cycle", c_int64),
        ("wave", c_char_p),
    )


class Beats(ctypes.Structure):
    """Beats of a port, with the layout of `Beats` in harness.cpp."""

    _fields_ = (
        ("data", c_void_p),
        ("cycles", c_void_p),
        ("count", c_int64),
        ("bytes", c_int64),
        ("share", c_int64),
        ("pace_beats", c_int64),
        ("pace_cycles", c_int64),
        ("is_load", c_int64),
        ("moved", c_int64),
        ("violated", c_int64),
    )


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Runs a job, writes the output beats, and returns the rest of the outcome."""
    try:
        library = ctypes.CDLL(job["library"])
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(NOT_LOADED)
    library.chop_run.restype = c_int64
    given, buffer = POINTER(Beats), (c_void_p, c_int64)
    library.chop_run.argtypes = (POINTER(Run), given, given, *buffer, *buffer)
    wave = job["wave"].encode() if job["wave"] else None
    limits = (job["idle_cycles"], job["most_cycles"], job["drain_cycles"])
    settings = Run(*job["pauses"], job["seed"], *limits, 0, wave)
    buffers = []

    def ports(described: list[dict[str, Any]], is_input: bool) -> ctypes.Array[Beats]:
        beats = (Beats * len(described))()
        for port, row in zip(described, beats, strict=True):
            size = port["count"] * port["bytes"]
            data = (ctypes.c_char * size)()
            if is_input:
                with Path(port["file"]).open("rb") as file:
                    assert file.readinto(data) == size, port["file"]
            cycles = (c_int64 * (0 if is_input else port["count"]))()
            # The structure has only addresses; this reference keeps the memory alive.
            buffers.append((data, cycles))
            row.data, row.cycles = ctypes.addressof(data), ctypes.addressof(cycles)
            row.count, row.bytes, row.share = port["count"], port["bytes"], port["share"]
            row.pace_beats, row.pace_cycles = port["pace"]
            row.is_load, row.moved, row.violated = port["is_load"], 0, NEVER
        return beats

    inputs, outputs = ports(job["inputs"], True), ports(job["outputs"], False)
    violated = (ctypes.c_uint8 * job["violated_bytes"])()
    fills = (ctypes.c_uint32 * job["fills"])()
    ends = (violated, len(violated), fills, ctypes.sizeof(fills))
    status = library.chop_run(settings, inputs, outputs, *ends)
    for port, (data, cycles) in zip(job["outputs"], buffers[len(job["inputs"]) :], strict=True):
        Path(port["file"]).write_bytes(data)
        Path(port["cycles_file"]).write_bytes(cycles)
    return {
        "status": STATUS[status],
        "cycle": settings.cycle,
        "moved": [row.moved for row in (*inputs, *outputs)],
        "withdrawn": [row.violated for row in outputs],
        "violated": int.from_bytes(bytes(violated), "little"),
        "fills": list(fills),
    }


def end_with(parent: int) -> None:
    """Ends this process after its parent ends, like `chop.base.children.end_with`."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL_SECONDS)
        # The main thread is inside the library, where no exception can end it.
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    end_with(job["parent"])
    Path(job["result"]).write_text(json.dumps(run(job)), encoding="utf-8")
