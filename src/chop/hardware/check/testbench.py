"""Self-checking SystemVerilog testbenches for modules with stream ports, run in Icarus."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from chop.errors import ChopError
from chop.hardware.check.profiles import PROFILES, Profile
from chop.hardware.design.axis import bench_instance
from chop.hardware.design.load import WEIGHTS, WORDS_FILE
from chop.hardware.design.plan import Memory
from chop.hardware.design.port import Port
from chop.hardware.design.verilog import FOLDER, FileIn, Name, instance, sources
from chop.hardware.templates import render
from chop.hardware.tools import run, tool_path

VECTORS = "vectors"
"""Folder of the sent and expected beats, one `NAME.hex` per port."""
DRAIN_CYCLES = 64
"""Cycles after the last expected beat in which surplus beats are detected."""
IDLE_CYCLES = 10_000
"""Cycles without a beat after which the testbench gives up."""
SLOWEST = 32
"""Maximum intervals per sample. Stalls lengthen an interval fourfold, a short one eightfold."""
MOST_CYCLES = 2**31 - 1
"""Largest value of an `int`."""
RUN_SECONDS = 1800


def testbench(
    top: str,
    ports: Sequence[Port],
    samples: int,
    timeout: int = IDLE_CYCLES,
    interval: int = 1,
    memories: Sequence[str] = (),
    is_beat_by_beat: bool = False,
    wrapper: str = "",
    load: Port | None = None,
) -> str:
    """Returns the text of the module `testbench`.

    It prints each sample's last cycle, the first difference of each output, and PASS or FAIL.

    Args:
        top: name of the module under test, with clock `clk_i` and reset `rst_ni`.
        ports: its streams.
        samples: number of samples in the files of the folder `VECTORS`.
        timeout: cycles without a beat, in addition to pauses, after which it fails.
        interval: cycles between two samples of the design. Stalls scale with it, and the testbench
            fails if samples take `SLOWEST` intervals each.
        memories: paths of the files that the module under test reads, if it has a parameter
            `FOLDER` as their base folder. The testbench gets the same parameter and reports
            missing files.
        is_beat_by_beat: prints the cycle of each beat, and counts beats instead of samples.
        wrapper: name of the module with AXI ports around `top`, which is tested with it;
            empty for none.
        load: port that takes the words in `WORDS_FILE` before the samples. Cycles are counted from
            the end of the loading, when the design leaves its reset.
    """
    ends = list(ports) if load is None else [*ports, load]
    longest = max(profile.pause_cycles(interval) for profile in PROFILES)
    timeout += 10 * (interval + longest)
    is_endless = not any(port.is_input for port in ports)
    parameters = {FOLDER: Name(FOLDER)} if memories else {}
    return render(
        "testbench.sv",
        top=wrapper or top,
        faults="(|failed) || (|axis_failed)" if wrapper else "|failed",
        samples=samples,
        profiles=", ".join(f"{number} {profile.name}" for number, profile in enumerate(PROFILES)),
        last_profile=len(PROFILES) - 1,
        shares=", ".join(f"share_{number}" for number in range(len(ends))),
        cases="\n".join(
            f"      {k}: {_case(profile, ends, interval)}" for k, profile in enumerate(PROFILES)
        ),
        timeout=timeout,
        most=min(10 * timeout + SLOWEST * samples * interval, MOST_CYCLES),
        drain=DRAIN_CYCLES,
        last=len(ends) - 1,
        ports=ends,
        load_end=None if load is None else f"done[{len(ports)}]",
        folder=FOLDER,
        files=[*memories, *map(_file, ends)],
        moves=" || ".join("({1} && {2})".format(*port.signals) for port in ends),
        instances="\n".join(
            [bench_instance(top, ends, wrapper, ("clk", "rst_n"), parameters)]
            + [
                _source(port, number, 1 if port is load else samples)
                if port.is_input
                else _sink(port, number, samples, is_endless, is_beat_by_beat)
                for number, port in enumerate(ends)
            ]
        ),
    )


def testbench_files(
    top: str,
    ports: Sequence[Port],
    samples: int,
    interval: int,
    memories: Sequence[str] = (),
    wrapper: str = "",
    load: Port | None = None,
) -> dict[str, str]:
    """Returns the testbench and the library modules that it uses, by file name.

    Args:
        top: name of the module under test.
        ports: its streams.
        samples: number of samples in the files of the folder `VECTORS`.
        interval: cycles between two samples of the design.
        memories: see `testbench`.
        wrapper: see `testbench`.
        load: see `testbench`.
    """
    text = testbench(
        top, ports, samples, interval=interval, memories=memories, wrapper=wrapper, load=load
    )
    parts = {name: path.read_text() for name, path in sources(text).items()}
    return {"testbench.sv": text, **parts}


def _case(profile: Profile, ports: Sequence[Port], interval: int) -> str:
    values = {
        "pause_every": profile.pause_every(interval),
        "pause_cycles": profile.pause_cycles(interval),
    }
    values |= {f"share_{k}": profile.share(port, interval) for k, port in enumerate(ports)}
    return "begin " + " ".join(f"{name} = {value};" for name, value in values.items()) + " end"


def _source(port: Port, number: int, samples: int) -> str:
    data, valid, ready = port.signals
    wires = {"data_o": data, "valid_o": valid, "ready_i": ready}
    text = _end("source", port, number, samples, {"W": port.bits}, wires)
    # A source cannot fail, but the vector has a bit for every port.
    return f"{text}  assign failed[{number}] = 1'b0;\n"


def _sink(port: Port, number: int, samples: int, is_endless: bool, is_beat_by_beat: bool) -> str:
    data, valid, ready = port.signals
    parameters: dict[str, int | str] = {"W": port.width, "LANES": port.lanes, "NAME": port.name}
    period = 1 if is_beat_by_beat else port.beats
    parameters |= {"PERIOD": period, "ENDLESS": int(is_endless)}
    wires = {"data_i": data, "valid_i": valid, "ready_o": ready}
    wires |= {"cycle_i": "cycle", "failed_o": f"failed[{number}]"}
    return _end("sink", port, number, samples, parameters, wires)


def _end(
    kind: str,
    port: Port,
    number: int,
    samples: int,
    parameters: Mapping[str, int | str],
    wires: Mapping[str, str],
) -> str:
    """Returns the text that a stream source and a stream sink share."""
    file = {"FILE": FileIn(_file(port))}
    counts = {"BEATS": samples * port.beats, "STREAM": number}
    clocked = {"clk_i": "clk", "rst_ni": "rst_n", "seed_i": "seed", "done_o": f"done[{number}]"}
    pauses = {"pause_every_i": "pause_every", "pause_cycles_i": "pause_cycles"}
    pauses |= {"share_i": f"share_{number}"}
    return instance(
        f"chop_stream_{kind}",
        f"u_{number}",
        {**file, **counts, **parameters},
        {**clocked, **pauses, **wires},
    )


def _file(port: Port) -> str:
    """Returns the project path of a port's beats."""
    return WORDS_FILE if port.name == WEIGHTS else f"{VECTORS}/{port.name}.hex"


def vectors(port: Port, beats: Tensor) -> str:
    """Returns the text of a port's file in the folder `VECTORS`.

    Args:
        port: the port.
        beats: int64 (beats, lanes).
    """
    return Memory.of(beats.tolist(), port.width).hex()


@dataclass(frozen=True)
class BenchRun:
    """Output of a testbench run.

    Attributes:
        passed: True if all outputs were as expected.
        ends: for each output, the cycle of the last beat of each sample.
        log: all lines.
    """

    passed: bool
    ends: Mapping[str, Sequence[int]]
    log: str


def compile_testbench(folder: Path, files: Sequence[Path | str], program: str) -> None:
    """Compiles a testbench and its design for Icarus.

    Args:
        folder: working folder; relative paths start there.
        files: SystemVerilog sources.
        program: name of the output file.
    Raises:
        UnavailableError: if Icarus is not installed or takes longer than `RUN_SECONDS`.
        ChopError: if a source has an error.
    """
    command = [tool_path("iverilog"), "-g2012", "-s", "testbench", "-o", program, *map(str, files)]
    done = run(command, folder, RUN_SECONDS)
    # Warnings count as errors: the design and the testbench compile without any.
    if done.returncode or done.stderr:
        raise ChopError(f"iverilog: {done.stderr or done.stdout}")


def run_testbench(
    folder: Path,
    program: str,
    profile: str = "none",
    seed: int = 1,
    plusargs: Sequence[str] = (),
) -> BenchRun:
    """Runs a compiled testbench.

    Args:
        folder: folder of the vectors and memories.
        program: output file of `compile_testbench`.
        profile: stall profile, by its name in `chop.hardware.check.profiles`.
        seed: seed of the stalls.
        plusargs: further arguments of the simulation, `+NAME=VALUE`.
    Raises:
        UnavailableError: if Icarus is not installed or takes longer than `RUN_SECONDS`.
    """
    names = [each.name for each in PROFILES]
    command = [tool_path("vvp"), "-n", program, f"+profile={names.index(profile)}"]
    command += [f"+seed={seed}", *plusargs]
    done = run(command, folder, RUN_SECONDS)
    log = done.stdout + done.stderr
    ends: dict[str, list[int]] = {}
    for name, cycle in re.findall(r"^(\w+): sample \d+ left in cycle (\d+)$", log, re.MULTILINE):
        ends.setdefault(name, []).append(int(cycle))
    return BenchRun(done.returncode == 0 and log.endswith("PASS\n"), ends, log)
