import pytest
import torch

from chop.base.native import compiler
from chop.models.named import get_model
from chop.studies.compile import BenchCompileConfig, bench_compile, random_inputs


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("mlp", {"pixel_values": (5, 1, 8, 8)}),
        ("vit", {"pixel_values": (5, 1, 8, 8)}),
        ("resnet18", {"pixel_values": (5, 3, 32, 32)}),
        ("bert-tiny", {"input_ids": (5, 9), "attention_mask": (5, 9)}),
        ("toy", {"x": (5, 1, 28, 28)}),
    ],
)
def test_inputs_have_the_rows_that_are_asked_for(name, shapes):
    model = get_model(name)
    inputs = random_inputs(model, 5, 9, image_size=32)
    assert {key: tuple(x.shape) for key, x in inputs.items()} == shapes
    with torch.inference_mode():
        output = model(**inputs)
    assert len(output if isinstance(output, torch.Tensor) else output.logits) == 5
    assert not torch.equal(*next(iter(inputs.values()))[:2])


@pytest.mark.slow
@pytest.mark.long
def test_a_quick_run_has_all_that_the_tables_need():
    if compiler() is None:
        pytest.skip("needs a C++ compiler")
    found = bench_compile(BenchCompileConfig(quick=True))
    eager, compiled = found.rows
    assert (eager.model, eager.batch, eager.measured.name) == ("mlp", 2, "eager")
    assert compiled.measured.name == "default" and compiled.measured.largest_difference < 1e-5
    assert compiled.measured.prepare_seconds > 100 * compiled.measured.seconds
    assert found.start_seconds > 0 and [*found.comparisons] == ["mlp-batch-2"]
    assert [row.iterations for row in compiled.course[::4]] == [5, 50, 200]
    assert compiled.course[0].ratio < 0.1 * compiled.course[1].ratio
    assert found.graphs["mlp"].graphs == 1 and len(found.graphs["mlp"].recompiles) == 1
    speed, course, graphs = found.tables().items()
    assert "mlp, batch 2" in speed[0] and speed[1][0]["pays after"] is None
    assert "a run of 5 calls of default" in course[0] and len(course[1]) == 12
    assert graphs[1][0]["where"].startswith("images.py:")
