"""The circuits of dot products that the page on hardware compares: simulated, and made gates of."""

import runpy
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[3] / "benchmarks/dot_products.py"


@pytest.fixture(scope="module")
def bench():
    return runpy.run_path(str(BENCHMARK))


@pytest.mark.long
@pytest.mark.tools("iverilog")
def test_every_circuit_computes_the_dot_product(bench):
    errors = {circuit.name: bench["check"](circuit, 10) for circuit in bench["CIRCUITS"]}
    exact = {"int8", "mxint8", "mxint4", "mxfp8 e4m3"}
    assert {name for name, error in errors.items() if error == 0} == exact
    assert 0 < errors["float32"] < errors["bfloat16"] < 1e-2


@pytest.mark.tools("iverilog", "yosys")
@pytest.mark.long
def test_a_block_exponent_is_nearly_free(bench):
    circuits = {circuit.name: circuit for circuit in bench["CIRCUITS"]}
    area = bench["area"](circuits["mxint4"])
    total = sum(area.values())
    assert area["alignment"] == 0 and 0 < area["exponents"] < 0.02 * total
    assert area["multipliers"] > 0.4 * total
