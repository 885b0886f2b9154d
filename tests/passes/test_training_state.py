"""Passes and exports of graphs with nodes that only training runs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chop.errors import ConfigError, GuardError
from chop.ir import MaseGraph
from chop.nn.packed import PackedOperator
from chop.passes import (
    awq_transform_pass,
    calculate_avg_bits_mg_analysis_pass,
    export_onnx_interface_pass,
    gptq_transform_pass,
    insert_lora_adapter_transform_pass,
    lower_to_integer_transform_pass,
    pack_transform_pass,
    prune_transform_pass,
)
from tests.capture.test_merge_branches import assert_trains_alike, made, quantized
from tests.capture.training_state import (
    WIDTH,
    Auxiliary,
    CenteredTeacher,
    EmaTeacher,
    Normed,
    Queue,
)

pytestmark = pytest.mark.filterwarnings("ignore:capture of .* writes to its parameters")


def graph_of(cls: type[nn.Module]) -> tuple[MaseGraph, nn.Module, Tensor]:
    model, x = made(cls)
    return MaseGraph(copy.deepcopy(model), dummy_in={"x": x}), model, x


@pytest.mark.long
@pytest.mark.parametrize("cls", [Normed, Queue, CenteredTeacher])
def test_files_have_the_program_of_evaluation(cls: type[nn.Module], tmp_path: Path) -> None:
    mg, _, x = graph_of(cls)
    mg = quantized(mg)
    # The export compares its file with the graph.
    _, info = export_onnx_interface_pass(mg, {"path": tmp_path / "model.onnx"})
    assert Path(info["path"]).exists()
    mg.draw(tmp_path / "picture.svg")
    assert mg.model.train()(x) is not None


def test_an_integer_graph_runs_in_evaluation_only() -> None:
    mg, _, x = graph_of(Auxiliary)
    mg = quantized(mg)
    lowered, _ = lower_to_integer_transform_pass(mg, {"batches": [{"x": x}]})
    torch.testing.assert_close(lowered.model.eval()(x), mg.model.eval()(x))
    with pytest.raises(GuardError, match="nodes of eval"):
        lowered.model.train()(x)


def test_packed_weights_that_training_reads_are_those_of_evaluation() -> None:
    mg, _, x = graph_of(Queue)
    mg = quantized(mg)
    packed, _ = pack_transform_pass(mg, {})
    assert isinstance(packed.model.get_submodule("query"), PackedOperator)
    torch.testing.assert_close(packed.model.eval()(x), mg.model.eval()(x))
    with pytest.raises(GuardError, match="packed"):
        packed.model.train()(x)
    _, info = calculate_avg_bits_mg_analysis_pass(mg, {})
    mg.keep_evaluation("")
    _, alone = calculate_avg_bits_mg_analysis_pass(mg, {})
    assert info == alone


def test_masks_of_a_student_leave_its_teacher() -> None:
    mg, model, x = graph_of(EmaTeacher)
    scope = {"scope": "local", "granularity": "elementwise"}
    weight = {"method": "l1-norm", "sparsity": 0.5, **scope}
    activation = {"method": "random", "sparsity": 0.0, **scope}
    pruned, _ = prune_transform_pass(mg, {"weight": weight, "activation": activation})
    student: Any = pruned.model.get_submodule("student")
    assert (student.weight == 0).sum() == 8
    teacher = model.get_submodule("teacher").weight.detach().clone()
    pruned.model.train()(x)
    found = pruned.model.get_submodule("teacher").weight
    torch.testing.assert_close(found, teacher * 0.99 + student.weight.detach() * 0.01)
    with pytest.raises(ConfigError, match="cannot carry a mask"):
        prune_transform_pass(
            mg, {"weight": weight, "activation": activation, "include": ["teacher"]}
        )


def test_an_adapter_trains_beside_a_moving_teacher() -> None:
    mg, model, _ = graph_of(CenteredTeacher)
    mg, _ = insert_lora_adapter_transform_pass(mg, {"rank": 2, "alpha": 1.0, "dropout": 0.0})
    x = torch.randn(4, WIDTH)
    torch.testing.assert_close(mg.model.train()(x), model.train()(x))
    mg.model(x).sum().backward()
    trained = [n for n, p in mg.model.named_parameters() if p.grad is not None]
    assert trained
    assert all("lora" in name for name in trained)
    torch.testing.assert_close(
        mg.model.state_dict()["center"], model.state_dict()["center"], atol=1, rtol=1
    )


@pytest.mark.parametrize("cls", [EmaTeacher, CenteredTeacher, Auxiliary])
@pytest.mark.sampled(1)
def test_weights_are_corrected_where_evaluation_calls_them(cls: type[nn.Module]) -> None:
    mg, _, x = graph_of(cls)
    mg = quantized(mg, "mxint")
    corrected, _ = gptq_transform_pass(mg, {"batches": [{"x": x}]})
    only = {EmaTeacher: "teacher", CenteredTeacher: "teacher.0", Auxiliary: "aux.0"}[cls]
    before, after = (g.model.get_parameter(f"{only}.weight") for g in (mg, corrected))
    assert torch.equal(before, after)
    assert not torch.equal(mg.model.eval()(x), corrected.model.eval()(x))


def test_folded_scales_leave_what_training_computes() -> None:
    mg, model, x = graph_of(Auxiliary)
    weight = {"name": "integer", "width": 8, "frac_width": 6}
    folded, _ = awq_transform_pass(mg, {"batches": [{"x": x}], "weight": weight})
    assert_trains_alike(copy.deepcopy(mg.model), copy.deepcopy(model), "10")
    torch.manual_seed(2)
    expected = model.train()(x)
    torch.manual_seed(2)
    torch.testing.assert_close(folded.model.train()(x), expected)
