"""Emitted circuit in its folder: writing, verification, and the same checks repeated."""

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
from chop.errors import CheckpointError, ChopError, VerificationError
from chop.hardware.check.project import (
    DESIGN,
    Project,
    describe_project,
    read_project,
    write_design,
)
from chop.hardware.check.testbench import VECTORS, testbench_files
from chop.hardware.check.vectors import get_codes, write_vectors
from chop.hardware.check.verify import Check, Codes, Verification, check_sources, checks, run_check
from chop.hardware.design.design import Design, with_fifo_depths
from chop.hardware.design.emit import UNFOLDED
from chop.hardware.design.emit import emit as emit_design
from chop.hardware.folds.foldable import Folding
from chop.hardware.harness import verilate
from chop.integer.golden import GOLDEN, Golden, golden_values
from chop.ir.graph import MaseGraph
from chop.ir.storage.tensor_store import read_file

KIND = "emit"
"""Of the manifest."""
INPUTS = "inputs."
MEASURED = ("equal", "cycles", "latency", "interval", "planned")
"""What a simulation finds again, whatever the version of the simulator."""
BENCH = "testbench"
FOLDS = "folds.json"
"""Of a circuit that was folded for a device: cycles of each node, and of the others."""
FOLDERS = ("rtl", "memory", VECTORS, BENCH)


def check_emitted(folder: Path) -> list[Verification]:
    """Repeats every check of an emitted circuit, and runs nothing that the folder brings.

    Hashes of all files and the golden values by the graph of integers. Then the circuit is emitted
    again, of the model in the folder, which is data; where its files are those of the folder, byte
    for byte, it is linted, and simulated as the manifest says, with its samples, stalls and seed.

    Args:
        folder: of `chop emit`.
    Raises:
        CheckpointError: there is no finished circuit in it.
        VerificationError: a check fails.
        UnavailableError: a tool is not installed.
    """
    manifest = runs.read_manifest(folder)
    if manifest.kind != KIND or manifest.state != "finished":
        raise CheckpointError(
            f"'{folder}' holds a run of '{manifest.kind}', {manifest.state}: expected one of "
            f"chop {KIND} that finished."
        )
    with shown_step("comparing hashes"):
        _check_files(folder, manifest)
    with shown_step("computing the graph of integers"):
        mg = MaseGraph.from_checkpoint(folder / "model")
        golden = _check_golden(folder, mg)
    with scratch_folder("emit") as own:
        with shown_step("emitting the circuit again"):
            design = _emitted_again(folder, mg, manifest)
            project = describe_project(design)
            codes = get_codes(project, golden)
            write_circuit(design, codes, own)
            check_circuit(folder, own, manifest)
        found = verify(own, project, codes, _planned(manifest, codes))
    for row, again in zip(manifest.rows, found, strict=True):
        recorded = {name: row.get(name) for name in MEASURED}
        if recorded != {name: getattr(again, name) for name in MEASURED}:
            raise VerificationError(
                f"'{folder}': the manifest tells {recorded} of {again.simulator}, stalls: "
                f"{again.profile}; the simulation measures others."
            )
    return found


def write_circuit(design: Design, codes: Codes, folder: Path) -> None:
    """Writes all that is simulated: a design, its vectors and its testbench.

    Args:
        design: the circuit.
        codes: of its ports.
        folder: of the project; made if missing.
    Raises:
        WriteError: the disk is full or read-only.
    """
    write_design(design, folder)
    write_vectors(design, codes, folder)
    make_folder(folder / BENCH)
    samples = len(next(iter(codes.values())))
    bench = testbench_files(design.top, design.ports, samples, design.interval, design.memories)
    for name, text in bench.items():
        write_text(folder / BENCH / name, text)


def check_circuit(folder: Path, own: Path, manifest: runs.Manifest) -> None:
    """Compares the circuit of a folder with the one that was emitted again, byte for byte.

    Args:
        folder: to check.
        own: what `write_circuit` wrote.
        manifest: of the folder.
    Raises:
        VerificationError: a file differs, or only one of them has it.
    """
    expected, found = _circuit_files(own), _circuit_files(folder)
    for name in sorted(expected | found):
        is_in_both = name in expected and name in found
        if is_in_both and _content(own / name) == _content(folder / name):
            continue
        by = f" (version {manifest.version} wrote it)" * (manifest.version != __version__)
        raise VerificationError(
            f"'{folder / name}' is not what chop {__version__} emits of the model in the "
            f"folder{by}; nothing of the folder was run. Emit it again with chop {KIND}."
        )


def _content(path: Path) -> bytes:
    with library_errors(path, error=VerificationError):
        return read_bytes(path, "vectors")


def _circuit_files(folder: Path) -> set[str]:
    """Paths in a project of the files that simulations read."""
    files = {DESIGN} if (folder / DESIGN).exists() else set()
    for name in FOLDERS:
        for path in (folder / name).rglob("*"):
            if not path.is_dir():
                files.add(path.relative_to(folder).as_posix())
    return files


def _emitted_again(folder: Path, mg: MaseGraph, manifest: runs.Manifest) -> Design:
    fold, folds, soft = manifest.settings.get("fold"), None, frozenset[str]()
    if not isinstance(fold, int):
        raise VerificationError(f"the manifest of '{folder}' has no number of cycles, 'fold'.")
    try:
        if manifest.settings.get("device"):
            fold, folds, soft = read_folds(folder)
        design = emit_design(mg, fold, folds=folds, soft=soft)
    except ChopError as error:
        raise VerificationError(f"the model of '{folder}' has no circuit: {error}") from None
    return _with_depths(design, folder) if manifest.settings.get("shrink_fifos") else design


def _with_depths(design: Design, folder: Path) -> Design:
    """The same with the depths of a project's FIFOs, where they are less."""
    planned = {fifo.name: fifo.parameters["DEPTH"] for fifo in design.fifos}
    depths = {
        fifo.name: min(fifo.depth, planned[fifo.name])
        for fifo in read_project(folder).fifos
        if fifo.name in planned
    }
    return with_fifo_depths(design, depths)


def write_folds(folding: Folding, folder: Path) -> None:
    """Writes `FOLDS`.

    Raises:
        WriteError: the disk is full or read-only.
    """
    folds = {"fold": folding.fold, "folds": dict(folding.folds), "soft": sorted(folding.soft)}
    write_json(folder / FOLDS, folds)


def read_folds(folder: Path) -> tuple[int, dict[str, int], frozenset[str]]:
    """Of `FOLDS`: cycles of nodes without a choice, by name those of the others, and the names of
    nodes whose products are made of lookup tables.

    Raises:
        VerificationError: it cannot be read, or has something else than cycles.
    """
    try:
        document = read_json(folder / FOLDS, "design")
        fold, folds = document["fold"], document["folds"]
        soft = frozenset(document.get("soft", ()))
        numbers = [fold, *folds.values()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise VerificationError(f"'{folder / FOLDS}' cannot be read: {error}") from None
    if not all(isinstance(number, int) and 0 < number <= UNFOLDED for number in numbers):
        raise VerificationError(f"'{folder / FOLDS}' has something else than numbers of cycles.")
    if not soft <= folds.keys():
        raise VerificationError(
            f"'{folder / FOLDS}' has soft nodes without cycles: "
            f"{sorted(map(str, soft - folds.keys()))}."
        )
    return fold, folds, soft


def _planned(manifest: runs.Manifest, codes: Codes) -> list[Check]:
    """The simulations of a manifest.

    Raises:
        VerificationError: they are not all that a circuit has to pass.
    """
    samples = len(next(iter(codes.values())))
    seed: Any = manifest.rows[0].get("seed") if manifest.rows else 0
    icarus: list[Any] = [
        row.get("samples") for row in manifest.rows if row.get("simulator") == "icarus"
    ]
    if not all(isinstance(number, int) for number in (seed, *icarus)):
        raise VerificationError("the manifest has simulations without a seed or samples.")
    planned = checks(samples, max(icarus, default=0), seed)
    recorded = [
        (row.get("simulator"), row.get("profile"), row.get("samples")) for row in manifest.rows
    ]
    if recorded != [(check.simulator, check.profile.name, check.samples) for check in planned]:
        raise VerificationError(
            f"the manifest has {len(recorded)} simulations, which are not all of a circuit of "
            f"{samples} samples."
        )
    return planned


def _check_files(folder: Path, manifest: runs.Manifest) -> None:
    """Compares all files with the manifest.

    Raises:
        VerificationError: one is missing, another one, or not in the manifest.
    """
    known = {artifact.path: artifact for artifact in manifest.artifacts}
    for path, artifact in known.items():
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise VerificationError(f"'{path}', of the manifest, is outside '{folder}'.")
        if not (folder / path).is_file():
            raise VerificationError(f"'{folder / path}' is missing.")
        if runs.Artifact.of(folder / path, folder) != artifact:
            raise VerificationError(
                f"'{folder / path}' is not the file of the manifest: it was "
                "changed since. Emit the circuit again, or run a changed one by its testbench."
            )
    for name in FOLDERS:
        for file in sorted((folder / name).rglob("*")):
            if file.is_file() and file.relative_to(folder).as_posix() not in known:
                raise VerificationError(f"'{file}' is not in the manifest.")


def _check_golden(folder: Path, mg: MaseGraph) -> Golden:
    """Computes the golden values again, of the inputs in the folder; returns them.

    Raises:
        VerificationError: the graph computes others, or there is no sample.
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
            f"'{folder / GOLDEN}': the model cannot compute its inputs: {error}"
        ) from None
    for name in sorted(golden.keys() | again.keys()):
        if not (name in golden and name in again and again[name].equal(golden[name])):
            raise VerificationError(f"'{folder / GOLDEN}': {name} is not what the graph computes.")
    return again


def _read_golden(folder: Path) -> Golden:
    try:
        return read_file(folder / GOLDEN)
    except CheckpointError as error:
        raise VerificationError(str(error)) from None


def verify(
    folder: Path, project: Project, codes: Codes, planned: Sequence[Check]
) -> list[Verification]:
    """Lints a project and runs simulations of it, with what goes on shown.

    Raises:
        VerificationError: one fails.
    """
    with shown_step("linting with Verilator and Yosys"):
        check_sources(folder, project)
    return run_checks(folder, project, codes, planned)


def run_checks(
    folder: Path, project: Project, codes: Codes, planned: Sequence[Check]
) -> list[Verification]:
    """Runs simulations of a project, one on each core, with what goes on shown.

    Raises:
        VerificationError: one fails.
    """
    with shown_step("compiling the simulation"):
        verilate(folder, project)
    console, found = get_console(), []
    with console.status("simulating"), ThreadPoolExecutor(cores()) as pool:
        jobs = [pool.submit(run_check, folder, project, codes, check) for check in planned]
        try:
            for job, check in zip(jobs, planned, strict=True):
                found.append(job.result())
                console.print(f"{check.title}: equal", highlight=False, markup=False)
        finally:
            pool.shutdown(cancel_futures=True)
    return found


@contextmanager
def shown_step(name: str) -> Iterator[None]:
    """Shows what is going on, and afterwards that it is done."""
    console = get_console()
    with console.status(name):
        yield
    console.print(f"{name}: done", highlight=False, markup=False)
