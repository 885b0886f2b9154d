"""The kernels on a machine without a GPU: in Triton's interpreter, and through its compiler."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from chop.formats import MXFP, Integer, MXInt
from chop.kernels.triton.rules import code_rule, element_rule, scale_rule

HERE = Path(__file__).parent
FLOAT32_MAX = torch.finfo(torch.float32).max
SIZES = {"count": "i32", "row_size": "i32", "blocks_per_row": "i32", "block_size": "i32"}


def test_kernels_in_the_interpreter(triton):
    if os.environ.get("TRITON_INTERPRET") == "1" or torch.cuda.is_available():
        pytest.skip("the kernels are tested in this process")
    files = [HERE / f"test_{name}.py" for name in ("fake_quantize", "dequantize", "linear")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", *map(str, files)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=HERE.parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 100
    assert "2 skipped" in done.stdout  # the operators themselves need a GPU


def test_importing_chop_does_not_import_triton():
    script = "import chop.nn, sys; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


@pytest.fixture
def assembly(triton, monkeypatch, tmp_path):
    """The instructions of a kernel for NVIDIA's compute capability 9.0, compiled without a GPU."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("the interpreter compiles nothing")
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))

    def compiled(kernel, tensors, sizes, constants):
        names = kernel.arg_names
        signature = {**tensors, **sizes, **dict.fromkeys(constants, "constexpr")}
        aligned = [name for name in names if name in signature and name not in constants]
        attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
        ordered = {name: signature[name] for name in names}
        source = ASTSource(kernel, ordered, constants, attributes)
        options = {"enable_fp_fusion": False}
        return triton.compile(source, GPUTarget("cuda", 90, 32), options).asm["ptx"]

    return compiled


def test_fake_quantisers_move_sixteen_bytes_at_a_time(assembly):
    from chop.kernels.triton.fake_quantize import round_blocks, round_elements

    tensors = {"x": "*i16", "y": "*i16"}
    constants = {"ELEMENT": element_rule(Integer(8, 4)), "LIMIT": FLOAT32_MAX, "TILE": 2048}
    elements = assembly(round_elements, tensors, {"count": "i32"}, constants)
    constants = {
        "ELEMENT": element_rule(MXFP(4, 2)),
        "SCALE": scale_rule(MXFP(4, 2)),
        "LIMIT": FLOAT32_MAX,
        "BLOCKS": 64,
        "LANES": 32,
        "blocks_per_row": 1,
    }
    sizes = {name: dtype for name, dtype in SIZES.items() if name != "blocks_per_row"}
    for ptx in (elements, assembly(round_blocks, tensors, sizes, constants)):
        assert "ld.global.v4.b32" in ptx and "st.global.v4.b32" in ptx
        assert "ld.global.b16" not in ptx and "st.global.b16" not in ptx
        assert ".ftz" not in ptx  # subnormal numbers count


def test_packed_products_read_whole_words_and_use_matrix_units(assembly):
    from chop.kernels.triton.linear import matrix_product, vector_product

    tensors = {"x": "*i16", "codes": "*u8", "scales": "*u8", "y": "*i16"}
    sizes = {"outputs": "i32", "columns": "i32", "blocks_per_row": "i32", "block_size": "i32"}
    rule = code_rule(MXInt(4))._replace(alignment=16, is_paired=True)
    constants = {"bias": None, "RULE": rule, "OUTPUTS": 4, "BLOCKS": 16, "LANES": 32}
    ptx = assembly(vector_product, tensors, sizes, constants)
    assert "ld.global.v2.b32" in ptx and ".ftz" not in ptx
    constants = {**constants, "IN_BFLOAT16": True, "ROWS": 64, "OUTPUTS": 64, "BLOCKS": 2}
    ptx = assembly(matrix_product, tensors, {**sizes, "rows": "i32"}, constants)
    assert "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16" in ptx
    assert "cp.async" in ptx
