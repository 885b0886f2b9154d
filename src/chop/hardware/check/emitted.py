"""Folder of an emitted circuit: writing, verification, and repetition of its checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich import get_console

from chop import runs
from chop.base.files import make_folder, write_json, write_text
from chop.base.files.documents import read_json
from chop.base.files.library_errors import library_errors
from chop.base.files.reading import read_bytes
from chop.base.files.temporary import scratch_folder
from chop.base.installed import __version__
from chop.base.native import cores
from chop.config import with_checked_arguments
from chop.errors import CheckpointError, ChopError, VerificationError
from chop.hardware.check.project import (
    BOARD,
    BUILD,
    DESIGN,
    Project,
    describe_project,
    read_project,
    write_design,
)
from chop.hardware.check.testbench import VECTORS, testbench_files
from chop.hardware.check.vectors import get_codes, write_vectors
from chop.hardware.check.verify import Check, Codes, Verification, check_sources, checks, run_check
from chop.hardware.design.axis import SUFFIXES, with_axi_ports
from chop.hardware.design.design import Design, with_fifo_depths
from chop.hardware.design.emit import UNFOLDED
from chop.hardware.design.emit import emit as emit_design
from chop.hardware.design.load import WEIGHTS
from chop.hardware.design.verilog import code_lines
from chop.hardware.folds.foldable import Folding
from chop.hardware.harness import verilate
from chop.integer.golden import GOLDEN, Golden, golden_values
from chop.ir.graph import MaseGraph
from chop.ir.storage.tensor_store import read_file

KIND = "emit"
"""Kind of run in the manifest."""
INPUTS = "inputs."
MEASURED = ("equal", "cycles", "latency", "interval", "planned")
"""Results of a simulation that do not depend on the simulator's version."""
BENCH = "testbench"
FOLDS = "folds.json"
"""File with the folds of a circuit that was folded for a device."""
FOLDERS = ("rtl", "memory", VECTORS, BENCH, WEIGHTS)
NO_WRAPPER = b',\n  "wrapper": ""'
"""Field of `DESIGN` that versions without wrappers did not write."""
EXCERPT = 60
"""Maximum number of characters of a line that a message quotes."""


@with_checked_arguments
def check_emitted(folder: Path) -> list[Verification]:
    """Repeats every check of an emitted circuit without running anything from its folder.

    The checks compare the hashes of all files and recompute the golden values with the integer
    graph. The circuit is then emitted again from the model in the folder, which is data. If its
    files equal those in the folder, apart from SystemVerilog comments, it is linted and simulated
    with the samples, stall profiles and seeds in the manifest.

    Args:
        folder: output folder of `chop emit`.
    Raises:
        CheckpointError: if the folder has no finished circuit.
        VerificationError: if a check fails.
        UnavailableError: if a tool is not installed.
    """
    manifest = runs.read_manifest(folder)
    if manifest.kind != KIND or manifest.state != "finished":
        advice = " To emit the circuit of its model, leave out --check-only."
        raise CheckpointError(
            f"'{folder}' contains a run of '{manifest.kind}', {manifest.state}: expected a "
            f"finished run of chop {KIND}.{advice * (manifest.kind == 'compress')}"
        )
    with display_step("comparing hashes"):
        _check_files(folder, manifest)
    with display_step("recomputing the golden values"):
        mg = MaseGraph.from_checkpoint(folder / "model")
        golden = _check_golden(folder, mg)
    # Simulations run on the newly emitted copy, because SystemVerilog in the folder could run
    # commands.
    with scratch_folder("emit") as own:
        with display_step("emitting the circuit again"):
            design = emitted_again(folder, mg, manifest)
            project = describe_project(design)
            codes = get_codes(project, golden)
            write_circuit(design, codes, own)
            check_circuit(folder, own, manifest)
        results = verify(own, project, codes, _planned(manifest, codes))
    for row, again in zip(manifest.rows, results, strict=True):
        recorded = {name: row.get(name) for name in MEASURED}
        if recorded != {name: getattr(again, name) for name in MEASURED}:
            raise VerificationError(
                f"'{folder}': the manifest records {recorded} for {again.simulator}, stalls: "
                f"{again.profile}, but the simulation measures other values."
            )
    return results


def write_circuit(design: Design, codes: Codes, folder: Path) -> None:
    """Writes everything that a simulation reads: a design, its vectors and its testbench.

    Args:
        design: the circuit.
        codes: codes of its ports.
        folder: project folder, created if missing.
    Raises:
        WriteError: if the disk is full or read-only.
    """
    write_design(design, folder)
    write_vectors(design, codes, folder)
    make_folder(folder / BENCH)
    samples = len(next(iter(codes.values())))
    bench = testbench_files(
        design.top,
        design.ports,
        samples,
        design.interval,
        design.memories,
        design.wrapper,
        None if design.load is None else design.load.port,
    )
    for name, text in bench.items():
        write_text(folder / BENCH / name, text)


def check_circuit(folder: Path, own: Path, manifest: runs.Manifest) -> None:
    """Compares the circuit in a folder with a newly emitted one.

    SystemVerilog is compared without its comments, and every other file byte for byte. `DESIGN`
    may lack `NO_WRAPPER`.

    Args:
        folder: folder to check.
        own: folder written by `write_circuit`.
        manifest: manifest of `folder`.
    Raises:
        VerificationError: if a file differs, is missing or is extra.
    """
    expected, actual = _circuit_files(own), _circuit_files(folder)
    for name in sorted(expected | actual):
        if name not in actual:
            difference = "it is missing"
        elif name not in expected:
            difference = "the circuit has no such file"
        else:
            difference = _first_difference(own / name, folder / name)
        if not difference:
            continue
        by = f" (version {manifest.version} wrote it)" * (manifest.version != __version__)
        raise VerificationError(
            f"'{folder / name}' differs from the file that chop {__version__} emits for the model "
            f"in the folder{by}: {difference}. No file of the folder was run. Emit it again with "
            f"chop {KIND}."
        )


def _first_difference(expected: Path, actual: Path) -> str:
    """Describes the first line that differs in two files, empty if none does."""
    contents = []
    for path in (expected, actual):
        with library_errors(path, error=VerificationError):
            contents.append(read_bytes(path, "vectors"))
    if contents[1] in (contents[0], contents[0].replace(NO_WRAPPER, b"")):
        return ""
    texts = [content.decode("utf-8", "surrogateescape") for content in contents]
    pages = [text.split("\n") for text in texts]
    codes = [
        code_lines(text) if expected.suffix == ".sv" else list(enumerate(lines, 1))
        for text, lines in zip(texts, pages, strict=True)
    ]
    for (wanted, wanted_code), (number, code) in zip(*codes, strict=False):
        if wanted_code != code:
            lines = pages[0][wanted - 1].strip(), pages[1][number - 1].strip()
            return f"line {number} is {_excerpt(*lines[::-1])} instead of {_excerpt(*lines)}"
    wanted_count, count = map(len, codes)
    if count > wanted_count:
        number, code = codes[1][wanted_count]
        return f"line {number}, {_excerpt(code)}, is not in the emitted file"
    return f"it ends before {_excerpt(codes[0][count][1])}" if count < wanted_count else ""


def _excerpt(line: str, other: str = "") -> str:
    """Quotes a line, or the part of a long one where it differs from another line."""
    pairs = enumerate(zip(line, other, strict=False))
    common = next((k for k, (a, b) in pairs if a != b), min(len(line), len(other)))
    start = max(0, common - EXCERPT // 2)
    before, after = "..." * (start > 0), "..." * (len(line) > start + EXCERPT)
    return repr(f"{before}{line[start : start + EXCERPT]}{after}")


def _circuit_files(folder: Path) -> set[str]:
    """Returns the project paths of the files that simulations read."""
    files = {DESIGN} if (folder / DESIGN).exists() else set()
    for name in FOLDERS:
        for path in (folder / name).rglob("*"):
            if not path.is_dir():
                files.add(path.relative_to(folder).as_posix())
    return files


def emitted_again(folder: Path, mg: MaseGraph, manifest: runs.Manifest) -> Design:
    """Emits the circuit of a folder for an integer graph, with the folder's settings and depths.

    Args:
        folder: output folder of `chop emit`.
        mg: the graph in the folder, or one with other weights.
        manifest: manifest of the folder.
    Raises:
        VerificationError: if the graph has no circuit, or a file of the folder is broken.
    """
    fold, folds, soft = manifest.settings.get("fold"), None, frozenset[str]()
    if not isinstance(fold, int):
        raise VerificationError(f"the manifest of '{folder}' has no number of cycles 'fold'.")
    try:
        if manifest.settings.get("device"):
            fold, folds, soft = read_folds(folder)
        design = emit_design(mg, fold, folds=folds, soft=soft)
    except ChopError as error:
        raise VerificationError(f"the model of '{folder}' has no circuit: {error}") from None
    wrap = manifest.settings.get("wrap")
    if wrap in SUFFIXES:
        design = with_axi_ports(design, wrap)
    return _with_depths(design, folder) if manifest.settings.get("shrink_fifos") else design


def _with_depths(design: Design, folder: Path) -> Design:
    """Returns the design with the FIFO depths of a project, if these are smaller."""
    planned = {fifo.name: fifo.parameters["DEPTH"] for fifo in design.fifos}
    depths = {
        fifo.name: min(fifo.depth, planned[fifo.name])
        for fifo in read_project(folder).fifos
        if fifo.name in planned
    }
    return with_fifo_depths(design, depths)


def write_folds(folding: Folding, folder: Path) -> None:
    """Writes the folds of a design to `FOLDS`.

    Raises:
        WriteError: if the disk is full or read-only.
    """
    folds = {"fold": folding.fold, "folds": dict(folding.folds), "soft": sorted(folding.soft)}
    write_json(folder / FOLDS, folds)


def read_folds(folder: Path) -> tuple[int, dict[str, int], frozenset[str]]:
    """Reads `FOLDS`.

    Returns: the default fold, the fold of each node by name, and the names of nodes whose products
        are built from lookup tables.
    Raises:
        VerificationError: if the file cannot be read or its values are not cycle counts.
    """
    try:
        document = read_json(folder / FOLDS, "design")
        fold, folds = document["fold"], document["folds"]
        soft = frozenset(document.get("soft", ()))
        numbers = [fold, *folds.values()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise VerificationError(f"'{folder / FOLDS}' cannot be read: {error}") from None
    if not all(isinstance(number, int) and 0 < number <= UNFOLDED for number in numbers):
        raise VerificationError(f"'{folder / FOLDS}' has a value that is not a number of cycles.")
    if not soft <= folds.keys():
        raise VerificationError(
            f"'{folder / FOLDS}' lists soft nodes without a fold: "
            f"{sorted(map(str, soft - folds.keys()))}."
        )
    return fold, folds, soft


def _planned(manifest: runs.Manifest, codes: Codes) -> list[Check]:
    """Returns the simulations listed in a manifest.

    Raises:
        VerificationError: if the list is not complete for a circuit.
    """
    samples = len(next(iter(codes.values())))
    seed: Any = manifest.rows[0].get("seed") if manifest.rows else 0
    icarus: list[Any] = [
        row.get("samples") for row in manifest.rows if row.get("simulator") == "icarus"
    ]
    if not all(isinstance(number, int) for number in (seed, *icarus)):
        raise VerificationError("the manifest has a simulation without a seed or samples.")
    planned = checks(samples, max(icarus, default=0), seed)
    recorded = [
        (row.get("simulator"), row.get("profile"), row.get("samples")) for row in manifest.rows
    ]
    if recorded != [(check.simulator, check.profile.name, check.samples) for check in planned]:
        raise VerificationError(
            f"the manifest lists {len(recorded)} simulations, which is incomplete for a circuit "
            f"with {samples} samples."
        )
    return planned


def _check_files(folder: Path, manifest: runs.Manifest) -> None:
    """Compares all files with the manifest.

    Raises:
        VerificationError: if a file is missing, differs, or is not in the manifest.
    """
    known = {artifact.path: artifact for artifact in manifest.artifacts}
    for path, artifact in known.items():
        # A path in a manifest from elsewhere must not lead out of the folder.
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise VerificationError(f"the manifest lists '{path}', which is outside '{folder}'.")
        if not (folder / path).is_file():
            raise VerificationError(f"'{folder / path}' is missing.")
        if runs.Artifact.of(folder / path, folder) != artifact:
            raise VerificationError(
                f"'{folder / path}' was changed after the manifest was written. Emit the circuit "
                "again, or run the changed one with its testbench."
            )
    for name in (*FOLDERS, BOARD):
        for file in sorted((folder / name).rglob("*")):
            path = file.relative_to(folder).as_posix()
            if file.is_file() and path not in known and not path.startswith(f"{BUILD}/"):
                raise VerificationError(f"'{file}' is not in the manifest.")


def _check_golden(folder: Path, mg: MaseGraph) -> Golden:
    """Recomputes the golden values from the inputs in the folder and returns them.

    Raises:
        VerificationError: if the graph computes other values, or there is no sample.
    """
    golden = _read_golden(folder)
    inputs = {k.removeprefix(INPUTS): x for k, x in golden.items() if k.startswith(INPUTS)}
    if any(x.numel() == 0 for x in inputs.values()):
        raise VerificationError(
            f"'{folder / GOLDEN}': the golden values have no sample. Emit the circuit again with "
            f"chop {KIND}."
        )
    try:
        again = golden_values(mg, inputs)
    except (ChopError, RuntimeError, TypeError, ValueError, IndexError) as error:
        raise VerificationError(
            f"'{folder / GOLDEN}': the model cannot run on these inputs: {error}"
        ) from None
    for name in sorted(golden.keys() | again.keys()):
        if not (name in golden and name in again and again[name].equal(golden[name])):
            raise VerificationError(f"'{folder / GOLDEN}': the graph computes another {name}.")
    return again


def _read_golden(folder: Path) -> Golden:
    try:
        return read_file(folder / GOLDEN)
    except CheckpointError as error:
        raise VerificationError(str(error)) from None


def verify(
    folder: Path, project: Project, codes: Codes, planned: Sequence[Check]
) -> list[Verification]:
    """Lints a project and runs its simulations, with progress display.

    Raises:
        VerificationError: if one fails.
    """
    with display_step("linting with Verilator, Yosys and, if installed, slang"):
        check_sources(folder, project)
    return run_checks(folder, project, codes, planned)


def run_checks(
    folder: Path, project: Project, codes: Codes, planned: Sequence[Check]
) -> list[Verification]:
    """Runs simulations of a project, one per core, with progress display.

    Raises:
        VerificationError: if one fails.
    """
    with display_step("compiling the simulation"):
        verilate(folder, project)
    console, results = get_console(), []
    with console.status("simulating"), ThreadPoolExecutor(cores()) as pool:
        jobs = [pool.submit(run_check, folder, project, codes, check) for check in planned]
        try:
            for job, check in zip(jobs, planned, strict=True):
                results.append(job.result())
                console.print(f"{check.title}: equal", highlight=False, markup=False)
        finally:
            pool.shutdown(cancel_futures=True)
    return results


@contextmanager
def display_step(name: str) -> Iterator[None]:
    """Displays a step while it runs and marks it as done afterwards."""
    console = get_console()
    with console.status(name):
        yield
    console.print(f"{name}: done", highlight=False, markup=False)
