"""What importing costs, and that nothing heavy comes along."""

import os
import subprocess
import sys

import pytest

from tests.fresh import printed_by

HEAVY = (
    *("transformers", "datasets", "optuna", "matplotlib", "scipy", "sklearn", "pandas", "sympy"),
    *("torch._dynamo", "torch.fx.experimental.symbolic_shapes"),
)
USE = "from chop import MaseGraph, passes, formats"
ROOMS = (
    "import chop.data, chop.models, chop.train, chop.tools.get_input, chop.tools.checkpoint_load, "
    "chop.dataset, chop.pipelines, chop.passes.graph.utils, chop.nn.modules"
)


def run(code: str, environment: dict[str, str] | None = None) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment
    ).stdout.strip()


@pytest.mark.parametrize("use", [USE, ROOMS], ids=["chop", "rooms"])
def test_heavy_libraries_are_imported_only_when_used(use):
    loaded = printed_by(f"import sys; {use}; print([m for m in {HEAVY} if m in sys.modules])")
    assert loaded == "[]\n"


@pytest.mark.long
def test_import_costs_little_more_than_torch():
    # CPU time, the least of several runs taken in turn: the machine is noisy. Bytecode is kept
    # where an installation has it and completed by the first runs: without it the test would
    # time the compilation of our sources against that of none of torch's. Further turns
    # are for machines that disturbed the first.
    off = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")
    environment = {name: value for name, value in os.environ.items() if name not in off}
    clock = "import time; t = time.process_time(); {}; print(time.process_time() - t)"
    costs = {"import torch": [], USE: []}
    for _ in range(3):
        for statement, seconds in costs.items():
            seconds.append(float(run(clock.format(statement), environment)))
        is_cheap = min(costs[USE]) < 1.3 * min(costs["import torch"])
        if is_cheap:
            break
    assert is_cheap


def test_unknown_names_are_attribute_errors():
    told, names = printed_by(
        "import chop\ntry: chop.nothing\nexcept AttributeError as e: print(e)\nprint(dir(chop))"
    ).splitlines()
    assert told == "module 'chop' has no attribute 'nothing'"
    assert "MaseGraph" in names


def test_transformers_that_is_there_already_knows_our_folders():
    known = (
        "from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING as M; print('chop' in M)"
    )
    width = "print(chop.ChopConfig('mxint4').format)"
    told = printed_by(f"import transformers.quantizers, chop; {known}; {width}")
    assert told.splitlines() == ["True", "mxint:width=4"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("module", "name", "near"),
    [
        ("chop", "quantise", "quantize"),
        ("chop.passes", "prune_transform_pas", "prune_transform_pass"),
    ],
)
def test_python_suggests_the_nearest_name_of_a_module(module, name, near):
    code = f"import {module}; {module}.{name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"Did you mean: '{near}'?" in done.stderr
