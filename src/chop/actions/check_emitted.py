"""Checks of an emitted circuit, repeated from its manifest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from rich import get_console

from chop import runs
from chop.errors import CheckpointError, VerificationError
from chop.hardware.harness import verilate
from chop.hardware.project import Project, read_project
from chop.hardware.vectors import codes_of, read_vectors
from chop.hardware.verify import Check, Codes, Verification, check_sources, checks, run_check
from chop.integer.golden import golden_values
from chop.ir.graph import MaseGraph
from chop.native import cores

KIND = "emit"
"""Of the manifest."""
GOLDEN = "golden.safetensors"
"""What the graph of integers computes, of `chop.integer.golden`."""
INPUTS = "inputs."
MEASURED = ("equal", "cycles", "interval", "planned")
"""What a simulation finds again, whatever the version of the simulator."""
FOLDERS = ("rtl", "memory", "vectors", "testbench")


def check_emitted(folder: Path) -> list[Verification]:
    """Repeats every check of an emitted circuit.

    Hashes of all files, the golden values by the graph of integers, lint, and every simulation of
    the manifest with its samples, stalls and seed.

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
        check_files(folder, manifest)
    project = read_project(folder)
    with shown_step("computing the graph of integers"):
        codes = check_golden(folder, project)
    planned = _planned(manifest, codes)
    found = verify(folder, project, codes, planned)
    for row, again in zip(manifest.rows, found, strict=True):
        recorded = {name: row.get(name) for name in MEASURED}
        if recorded != {name: getattr(again, name) for name in MEASURED}:
            raise VerificationError(
                f"'{folder}': the manifest tells {recorded} of {again.simulator}, stalls: "
                f"{again.profile}; the simulation measures others."
            )
    return found


def _planned(manifest: runs.Manifest, codes: Codes) -> list[Check]:
    """The simulations of a manifest.

    Raises:
        VerificationError: they are not all that a circuit has to pass.
    """
    samples = len(next(iter(codes.values())))
    icarus = [row["samples"] for row in manifest.rows if row.get("simulator") == "icarus"]
    seed = manifest.rows[0]["seed"] if manifest.rows else 0
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


def check_files(folder: Path, manifest: runs.Manifest) -> None:
    """Compares all files with the manifest.

    Raises:
        VerificationError: one is missing, another one, or not in the manifest.
    """
    known = {artifact.path: artifact for artifact in manifest.artifacts}
    for path, artifact in known.items():
        if not (folder / path).is_file():
            raise VerificationError(f"'{folder / path}' is missing.")
        if runs.Artifact.of(folder / path, folder) != artifact:
            raise VerificationError(f"'{folder / path}' is not the file of the manifest.")
    for name in FOLDERS:
        for file in sorted((folder / name).rglob("*")):
            if file.is_file() and file.relative_to(folder).as_posix() not in known:
                raise VerificationError(f"'{file}' is not in the manifest.")


def check_golden(folder: Path, project: Project) -> Codes:
    """Computes the golden values again; returns the codes of all ports.

    Raises:
        VerificationError: the graph computes others.
    """
    from safetensors.torch import load_file

    golden = load_file(folder / GOLDEN)
    inputs = {k.removeprefix(INPUTS): x for k, x in golden.items() if k.startswith(INPUTS)}
    again = golden_values(MaseGraph.from_checkpoint(folder / "model"), inputs)
    for name in sorted(golden.keys() | again.keys()):
        if not (name in golden and name in again and again[name].equal(golden[name])):
            raise VerificationError(f"'{folder / GOLDEN}': {name} is not what the graph computes.")
    codes = codes_of(project, golden)
    for name, vectors in read_vectors(folder, project).items():
        if not vectors.equal(codes[name]):
            raise VerificationError(f"the vectors of '{name}' are not what the graph computes.")
    return codes


def verify(
    folder: Path, project: Project, codes: Codes, planned: Sequence[Check]
) -> list[Verification]:
    """Lints a project and runs simulations of it, one on each core, with what goes on shown.

    Raises:
        VerificationError: one fails.
    """
    with shown_step("linting with Verilator and Yosys"):
        check_sources(folder, project)
    with shown_step("compiling the simulation"):
        verilate(folder, project)
    console, found = get_console(), []
    with console.status("simulating"), ThreadPoolExecutor(cores()) as pool:
        jobs = [pool.submit(run_check, folder, project, codes, check) for check in planned]
        try:
            for job, check in zip(jobs, planned, strict=True):
                found.append(job.result())
                console.print(f"{check.title}: equal", highlight=False)
        finally:
            pool.shutdown(cancel_futures=True)
    return found


@contextmanager
def shown_step(name: str) -> Iterator[None]:
    """Shows what is going on, and afterwards that it is done."""
    console = get_console()
    with console.status(name):
        yield
    console.print(f"{name}: done", highlight=False)
