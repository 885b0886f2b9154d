import dataclasses
import math

import pytest
import torch
from torch import nn

from chop.bench.subprocess import in_subprocess
from chop.formats import MXInt
from chop.studies.decoding import (
    COPY,
    FORMATS,
    IN_PLACE,
    LOOP,
    TORCH,
    compare_decoding,
    decode_in_a_loop,
)
from chop.studies.dequantize import BenchDequantizeConfig, bench_dequantize
from chop.studies.packed_product import DECODED, FLOAT_WAY, FUSED, compare_products
from chop.studies.weight_memory import (
    SMALL,
    KindRow,
    MemoryRow,
    demo_model,
    format_memory,
    get_total,
    predicted,
    resident_by,
)

HOW = {"seconds": 0.01, "threads": 1}


@pytest.mark.parametrize("name", FORMATS)
def test_the_loop_is_the_definition(name):
    fmt = FORMATS[name]
    encoded = fmt.encode(torch.zeros(9, 70))
    codes, scales = (torch.randint(0, 256, t.shape).byte() for t in (encoded.codes, encoded.scales))
    scales[:2] = torch.tensor([0, 255])
    for dtype in (torch.float32, torch.bfloat16):
        encoded = dataclasses.replace(encoded, codes=codes, scales=scales, dtype=dtype)
        y, expected = decode_in_a_loop(encoded, fmt), fmt.decode(encoded)
        assert y.dtype == dtype and y.isnan().any()
        assert torch.equal(y.isnan(), expected.isnan())
        assert torch.equal(y.nan_to_num(0.0), expected.nan_to_num(0.0))


@pytest.mark.long
def test_decoding_is_exact_and_counted():
    weight = torch.randn(64, 1024)
    found, rows = compare_decoding(weight, "mxint4", **HOW)
    by_way = {row.measured.name: row for row in rows}
    assert all(by_way[way].is_exact for way in (TORCH, "C++", IN_PLACE, LOOP))
    read, written = 64 * 1024 // 2 + 64 * 1024 // 32, 4 * 64 * 1024
    assert by_way["C++"].moved_bytes == read + written
    assert by_way[COPY].moved_bytes == 2 * written and by_way[COPY].share_of_copy == 1
    assert by_way[LOOP].moved_bytes == pytest.approx(read + written, rel=0.01)
    assert by_way[LOOP].seconds > 10 * found.decisive_seconds(TORCH)
    assert by_way[LOOP].timed_on == 32 * 1024


def test_products_say_what_packing_loses():
    weight = torch.randn(128, 512)
    found, rows = compare_products(weight, ["mxint8", "mxint4"], 3, 1e10, **HOW)
    assert [row.way for row in rows] == [FLOAT_WAY, FUSED, DECODED, FUSED, DECODED]
    assert len(found.variants) == 5 and rows[0].noise_db is None
    for name, fused, first in (("mxint8", *rows[1:3]), ("mxint4", *rows[3:])):
        noise = (FORMATS[name].round(weight) - weight).norm() / weight.norm()
        assert first.noise_db == pytest.approx(-20 * math.log10(noise), abs=1)
        assert fused.noise_db == pytest.approx(first.noise_db, abs=1)
        assert first.weight_bytes == fused.weight_bytes + 2 * weight.nbytes
    assert rows[1].weight_bytes == 128 * 512 * 33 // 32


def test_predictions_need_no_memory_and_count_what_is_shared_once():
    with torch.device("meta"):
        shared = nn.Embedding(100, 64)
        model = nn.Sequential(shared, nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 100))
    rows = {row.kind: row for row in predicted(model, MXInt(8))}
    weights = 64 * 64 + 64 * 100
    assert rows["Linear weights"].elements == weights
    assert rows["Linear weights"].bytes == weights * 33 // 32
    assert rows["Embedding, float"].bytes == 4 * 6400
    assert rows["Linear, float"].elements == 164
    model[3].weight = shared.weight  # tied: both use the same numbers
    total = sum(row.elements for row in predicted(model, MXInt(8)))
    assert total == sum(p.numel() for p in model.parameters())


def test_the_formula_stands_with_its_numbers():
    rows = [
        MemoryRow("float", 32, 1000, 1010, 1020, None),
        MemoryRow("mxint8", 8.25, 500, 510, 510, None),
        MemoryRow("mxint4", 4.25, 400, 410, None, None),
    ]
    exact, eight, four = format_memory(rows)
    assert exact["theory, per weight"] == "32 bits"
    assert eight["theory, per weight"] == "1 - (8 + 8/32)/32 = 74.2% saved, 8.25 bits"
    assert four["theory, per weight"].startswith("1 - (4 + 8/32)/32 = 86.7% saved")
    saved = [eight[name] for name in ("predicted before loading", "in the file", "in memory")]
    assert [cell.split("(")[1] for cell in saved] == [
        "50.0% saved)",
        "49.5% saved)",
        "50.0% saved)",
    ]
    kinds = [KindRow("Linear weights", 32, 128, 33), KindRow("Embedding, float", 32, 128, 128)]
    whole = get_total(kinds)
    assert (whole.elements, whole.float_bytes, whole.bytes) == (64, 256, 161)
    assert "50.0% of the bytes" in whole.kind and whole.formatted()["saved"] == "37.1%"


@pytest.mark.slow
@pytest.mark.long
def test_predictions_and_files_agree():
    found = bench_dequantize(
        BenchDequantizeConfig(quick=True, formats=("mxint8", "mxfp8"), rows=(2,))
    )
    exact, packed = found.memory
    assert (exact.format, packed.format, packed.bits) == ("float", "mxint8", 8.25)
    header = exact.file_bytes - exact.predicted_bytes
    assert 0 < header < 15_000
    assert packed.file_bytes - packed.predicted_bytes == pytest.approx(header, abs=3000)
    assert exact.predicted_bytes == sum(4 * p.numel() for p in demo_model(SMALL).parameters())
    assert exact.loaded_bytes < 5e6  # what any model needs is there before
    assert len(found.tables()) == 4 and "CUDA" in next(iter(found.tables()))
    assert set(found.comparisons) == {"decode-mxint8", "decode-mxfp8", "product-2-rows"}
    assert sum(row.format == "" for row in found.decoding) == 2


@pytest.mark.long
def test_a_missing_checkpoint_is_told_by_the_process_that_wanted_it(tmp_path):
    with pytest.raises(RuntimeError, match="resident_by failed in a process of its own"):
        in_subprocess(resident_by, str(tmp_path), "float")
