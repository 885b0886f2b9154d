"""Commands that are killed at any moment leave nothing half-written, no process, and go on."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest

from chop.base.files import digests
from chop.base.hub import cache_folder
from chop.base.native import is_whole
from chop.errors import CheckpointError, UnavailableError
from chop.hardware.costs.place import check_device
from chop.runs import Artifact, read_manifest
from tests import programs

PROGRAM = Path(__file__).parent / "killed_programs.py"
KILLS = 6
"""Kills of each command in the long tests."""
END_SECONDS = 20
SEEDED = ("kernels-*.so*", "verilator-*.o*", "trained/mlp-*")
COMMANDS = {
    "compress": "compress --model mlp --formats mxint --qat-epochs 0 --keep-best --bench-seconds 0",
    "compress by block": "compress --by-block --model MODEL --dataset stories --max-length 32 "
    "--calibration-rows 6 --method gptq --formats mxint:width=4 --qat-epochs 0 --limit 6",
    "sweep": "sweep quantize --model mlp --widths 4:8:2 --qat-epochs 0",
    "search": "search precision --model mlp --trials 4 --workers 2",
    "export": "export MODEL --format mxint8 --to compressed-tensors,gguf --no-tokenizer "
    "--seconds 0.02",
}
LIMITED = {"compress": ("--force",), "sweep": ("--force",), "search": ()}
"""Commands that read few rows, and what else they are given."""
PROGRAMS = ("emit", "build", "docs", "sphinx", "place", "nextpnr")
"""Names in `PROGRAM`: `docs` and `place` have stand-ins for what `sphinx` and `nextpnr` run."""
GROWING = (".jsonl", ".db")
"""Ends of files that a later run adds to."""


@pytest.fixture
def surroundings(tmp_path, monkeypatch):
    """A cache and a place for temporary files of a test's own.

    What is compiled and trained for all is in the cache: that takes longer than the commands.
    """
    for path in [path for pattern in SEEDED for path in cache_folder().glob(pattern)]:
        if path.suffix in (".so", ".o") and not is_whole(path):
            continue
        place = tmp_path / "cache" / path.relative_to(cache_folder())
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
    for name, variable in (("cache", "CHOP_CACHE"), ("temporary", "TMPDIR")):
        (tmp_path / name).mkdir(exist_ok=True)
        monkeypatch.setenv(variable, str(tmp_path / name))
    monkeypatch.delenv("CHOP_SHARED_TEMPORARY", raising=False)
    return tmp_path


def decoder(folder):
    import transformers

    from chop.data import get_tokenizer

    tokenizer = get_tokenizer("gpt-tiny")
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "vocab_size": len(tokenizer)}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads)).save_pretrained(
        folder
    )
    return folder


def arguments(name, folder):
    """Program and command line, without the folder of its output."""
    if name not in COMMANDS:
        return PROGRAM, [name]
    given = COMMANDS[name].split()
    if "MODEL" in given:
        given[given.index("MODEL")] = str(decoder(folder / "decoder"))
    if name in LIMITED:
        given += ["--limit", "200", *LIMITED[name]]
    return programs.COMMAND, [*given, *(["--force"] * ("--by-block" in given)), "--out"]


def kill_after(seconds, program, given):
    """Kills a program; all that it has started ends as well. False: it had ended before."""
    family = []
    with programs.started(program, *given) as process:
        process.join(seconds)
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(process.pid).children(recursive=True)
    assert process.exitcode in (0, -signal.SIGKILL)
    end = time.monotonic() + END_SECONDS
    while living := [each for each in family if lives(each)]:
        assert time.monotonic() < end, f"orphans: {living}"
        time.sleep(0.05)
    return process.exitcode != 0


def lives(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def check_results(out):
    """Checks that results are whole, and of one run."""
    folders = [out, *(path.parent for path in out.rglob("manifest.json"))]
    for folder in {path for path in folders if path.is_dir()}:
        try:
            results = read_manifest(folder).results
        except CheckpointError as error:
            assert "has no manifest" in str(error)
            continue
        for artifact in results.artifacts if results else ():
            if not artifact.path.endswith(GROWING):
                assert Artifact.of(folder / artifact.path, folder) == artifact


def check_cache(cache):
    """Compiled code, and what was placed, is used if it is whole."""
    for path in cache.iterdir():
        if path.suffix in (".so", ".o", ".bit", ".json", ".config"):
            assert is_whole(path), path
            assert digests.digest_beside(path).exists()


def check_end(out, folder):
    """Checks that a run that was not killed has left its results, and nothing else."""
    check_results(out)
    left = [path for path in folder.rglob("*") if path.suffix in (".part", ".new", ".old")]
    assert not left
    assert not [path for path in (folder / "temporary").iterdir() if path.name.startswith("chop-")]


def forget(name, folder):
    """Lets a command do all of its work again."""
    for path in (folder / "cache").iterdir():
        if path.name.startswith(("killed-", "place-", "simulation-")):
            path.unlink()
    shutil.rmtree(folder / "out", ignore_errors=True)


def killed_often(name, folder, kills):
    """Kills a command until it was killed so often, then lets it end."""
    program, given = arguments(name, folder)
    programs.run(PROGRAM, "nothing", folder)  # starts the server of programs
    for _ in range(2):  # the first one also trains and compiles what is kept for others
        forget(name, folder)
        began = time.monotonic()
        done = programs.run(program, *given, folder / "whole")
        assert done.returncode == 0, done.stdout + done.stderr
    whole, draw = time.monotonic() - began, random.Random(name)
    out, killed = folder / "out", 0
    forget(name, folder)
    for _ in range(3 * kills):
        is_killed = kill_after(whole * draw.uniform(0.1, 1.0), program, [*given, out])
        check_results(out)
        check_cache(folder / "cache")
        killed += is_killed
        if not is_killed:
            forget(name, folder)
        if killed == kills:
            break
    done = programs.run(program, *given, out)
    assert done.returncode == 0, done.stdout + done.stderr
    check_cache(folder / "cache")
    check_end(out, folder)
    return killed


def require(name):
    """Skips where a program that does the work is not installed."""
    if name == "sphinx":
        for module in ("sphinx", "myst_parser", "furo"):
            pytest.importorskip(module, reason="pip install -e '.[docs]'")
    if name == "nextpnr":
        if not shutil.which("yosys"):
            pytest.skip("yosys is not installed: apt-get install yosys")
        try:
            check_device("ecp5-25")
        except UnavailableError as error:
            pytest.skip(str(error))


@pytest.mark.long
@pytest.mark.parametrize("name", [*COMMANDS, *PROGRAMS])
def test_a_command_that_is_killed_leaves_nothing_half_written(name, surroundings):
    require(name)
    assert killed_often(name, surroundings, KILLS) == KILLS


@pytest.mark.parametrize("name", ["place"])
def test_a_command_that_is_killed_once_goes_on(name, surroundings):
    assert killed_often(name, surroundings, 1) == 1
