"""Graphs from inputs that nobody gave, in MASE's order: graph first, `dummy_in` with metadata."""

from __future__ import annotations

import copy
import functools
import logging

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from chop import MaseGraph, passes
from chop.capture.inputs import dummy_inputs
from chop.errors import CaptureError, ConfigError, GraphError, GuardError
from chop.ir.graph import node_metadata
from chop.passes.analysis.add_common_metadata import _warn_guessed


def pictures(side: int) -> nn.Module:
    """A CNN for pictures of one size."""
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2 * ((side - 2) // 2) ** 2, 3)
    )


class Flattening(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(48, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.view(x.shape[0], -1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 2)
        self.lstm = nn.LSTM(4, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Fixed1d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(3, 2, 5)
        self.head = nn.Linear(2 * 20, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.convolution(x).flatten(1))


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(6, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.left(a) + self.right(b)


class Integers(nn.Module):
    """Its first layer says floats; its input is tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.embed = nn.Embedding(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embed(x)).sum(1)


MODELS = {
    "28 pixels": (pictures(28), {"input": torch.randn(2, 1, 28, 28)}),
    "64 pixels": (pictures(64), {"input": torch.randn(2, 1, 64, 64)}),
    "mlp": (Flattening(), {"x": torch.randn(2, 3, 4, 4)}),
    "lstm": (Recurrent(), {"x": torch.randn(2, 5, 4)}),
    "conv1d": (Fixed1d(), {"x": torch.randn(2, 3, 24)}),
    "two inputs": (Two(), {"a": torch.randn(2, 4), "b": torch.randn(2, 6)}),
    "integers": (Integers(), {"x": torch.randint(0, 10, (2, 7))}),
    "a batch of one": (pictures(28), {"input": torch.randn(1, 1, 28, 28)}),
}


@pytest.mark.filterwarnings("ignore::chop.ir.unreached.UnreachedWarning")
@pytest.mark.parametrize(("model", "inputs"), MODELS.values(), ids=MODELS)
@pytest.mark.sampled(3)
def test_metadata_makes_the_graph_from_its_example(model, inputs) -> None:
    model.eval()
    mg = MaseGraph(model)
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(mg, {"dummy_in": inputs})
    assert torch.equal(mg.model(**inputs), model(**inputs))
    for node in mg.nodes:
        if node.op == "placeholder":
            shape = node_metadata(node).common.results["data_out_0"].shape
            assert tuple(shape) == tuple(inputs[node.target].shape)
    assert [step.name for step in mg.provenance] == [
        "init_metadata_analysis_pass",
        "add_common_metadata_analysis_pass",
    ]
    config = {"by": "type", "linear": {"config": {"name": "integer", "width": 8, "frac_width": 4}}}
    small, info = passes.quantize_transform_pass(mg, config)
    assert info["quantized"] >= 1 and not torch.equal(small.model(**inputs), model(**inputs))


def test_until_then_what_needs_the_graph_asks_for_an_example() -> None:
    mg = MaseGraph(pictures(28))
    assert not mg.is_captured and "no example inputs yet" in repr(mg)
    ways = (
        lambda: mg.model,
        lambda: mg.nodes,
        lambda: passes.add_common_metadata_analysis_pass(mg),
        lambda: passes.quantize_transform_pass(mg, {"by": "type", "default": {"config": {}}}),
        lambda: mg.export("nowhere"),
    )
    for need in ways:
        with pytest.raises(
            CaptureError, match=r"were guessed \(input \(3, 1, 32, 32\)\)"
        ) as caught:
            need()
        assert "MaseGraph(model, dummy_in={...})" in str(caught.value)
    with pytest.raises(CaptureError, match=r"cannot guess the inputs a, b of Two; pass .*dummy_in"):
        _ = MaseGraph(Two()).model


def test_a_copy_waits_too() -> None:
    model, inputs = MODELS["28 pixels"]
    mg = MaseGraph(model)
    twin = copy.deepcopy(mg)
    twin.fit(inputs)
    assert twin.is_captured and not mg.is_captured
    assert torch.equal(twin.model(**inputs), model(**inputs))


def test_a_model_that_runs_on_the_guess_and_cannot_be_captured_fails_at_once() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) if x.sum() > 0 else x

    with pytest.raises(CaptureError, match="cannot be captured"):
        MaseGraph(Branching(), strict=True)


def test_an_example_that_fits_keeps_the_graph_and_its_metadata() -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
    mg, _ = passes.init_metadata_analysis_pass(MaseGraph(model))
    before, graph = mg.model, mg.fx_graph
    mg, _ = passes.add_common_metadata_analysis_pass(mg, {"dummy_in": {"input": torch.ones(7, 4)}})
    assert mg.model is before and mg.fx_graph is graph
    assert mg.fit({"input": torch.ones(2, 4)}) is False
    mg.erase(mg.node("_1"))
    assert mg.fit({"input": torch.ones(2, 4)}) is False
    x = torch.randn(2, 4)
    assert torch.equal(mg.model(x), model[0](x)) and not torch.equal(mg.model(x), model(x))


def test_modes_survive() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 4), nn.Dropout(0.5))
    mg = MaseGraph(model.train())
    mg.model.eval()
    assert mg.fit({"input": torch.ones(2, 3, 4, 4)}) is True
    assert not any(module.training for module in mg.model.modules())


@pytest.mark.parametrize("change", ["module", "node", "hook"])
def test_a_changed_graph_is_not_captured_again(change) -> None:
    mg, _ = passes.init_metadata_analysis_pass(MaseGraph(Flattening()))
    layer = mg.node("layer")
    if change == "module":
        mg.replace(layer, nn.Linear(48, 5))
    elif change == "node":
        with mg.fx_graph.inserting_after(layer):
            relu = mg.fx_graph.call_function(torch.relu, (layer,))
        layer.replace_all_uses_with(relu, lambda user: user is not relu)
    else:
        mg.model.layer.register_forward_hook(lambda *_: None)
    with pytest.raises(GraphError, match=r"guessed inputs, dummy_in does not fit .* been changed"):
        mg.fit({"x": torch.randn(2, 3, 4, 4)})
    assert mg.fit({"x": torch.randn(2, 48)}) is False


def test_a_copy_of_a_guessed_graph_and_a_given_one_refuse_what_does_not_fit() -> None:
    config = {"by": "type", "linear": {"config": {"name": "integer", "width": 8, "frac_width": 4}}}
    small, _ = passes.quantize_transform_pass(MaseGraph(Flattening()), config)
    pixels = {"x": torch.randn(2, 3, 4, 4)}
    with pytest.raises(GraphError, match="does not fit the graph, captured from guessed inputs"):
        passes.add_common_metadata_analysis_pass(small, {"dummy_in": pixels})
    given = MaseGraph(Flattening(), dummy_in={"x": torch.randn(2, 48)})
    with pytest.raises(
        GraphError, match="does not fit the graph, captured: the graph was captured for x as"
    ):
        given.fit(pixels)
    with pytest.raises(
        GuardError, match="the inputs of this graph were guessed: the graph was captured for x"
    ):
        MaseGraph(Flattening()).model(pixels["x"])


def test_a_guess_that_is_relied_on_is_said_once(caplog) -> None:
    _warn_guessed.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            mg, _ = passes.init_metadata_analysis_pass(MaseGraph(Flattening()))
            passes.add_common_metadata_analysis_pass(mg)
            passes.add_common_metadata_analysis_pass(mg, {"dummy_in": {"x": torch.ones(2, 48)}})
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "the inputs of the graph were guessed: {'x': (3, 48)}"
    ]


@pytest.mark.long
def test_names_of_the_example_choose_the_inputs_unless_the_user_did() -> None:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        vocab_size=20,
    )
    model = BertForSequenceClassification(config).eval()
    inputs = {"input_ids": torch.ones(2, 4, dtype=torch.long), "labels": torch.tensor([0, 1])}
    mg = MaseGraph(model)
    mg.fit(inputs)
    assert torch.equal(mg.model(**inputs).loss, model(**inputs).loss)
    with pytest.raises(GraphError, match="the graph has no input 'lables': did you mean 'labels'"):
        mg.fit({"input_ids": inputs["input_ids"], "lables": inputs["labels"]})
    chosen = MaseGraph(model, hf_input_names=["input_ids"])
    assert chosen.fit(inputs) is False


def test_a_configuration_that_says_nonsense_waits_for_an_example() -> None:
    class Settings:
        main_input_name, image_size = "pixel_values", {"height": "tall"}

        def to_dict(self) -> dict[str, object]:
            return {}

    class Pictures(Flattening):
        main_input_name = "pixel_values"

        def __init__(self) -> None:
            super().__init__()
            self.config = Settings()

        def forward(self, pixel_values: Tensor) -> Tensor:
            return super().forward(pixel_values)

    mg = MaseGraph(Pictures())
    with pytest.raises(CaptureError, match="cannot guess the inputs pixel_values of Pictures"):
        _ = mg.model
    assert mg.fit({"pixel_values": torch.randn(2, 3, 4, 4)}) is True


# --- where inputs are made -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_guessed_floats_have_the_dtype_of_the_parameters(dtype) -> None:
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU()).to(dtype)
    assert dummy_inputs(model)["input"].dtype == dtype
    assert MaseGraph(model).model(torch.ones(2, 3, 32, 32, dtype=dtype)).dtype == dtype


@functools.cache
def meta_models() -> dict[str, nn.Module]:
    from transformers import (
        BertConfig,
        BertModel,
        ViTConfig,
        ViTModel,
        Wav2Vec2Config,
        Wav2Vec2Model,
    )

    text = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    sound = {"conv_dim": (4, 4), "conv_kernel": (4, 4), "conv_stride": (4, 4)}
    with torch.device("meta"):
        return {
            "vit": ViTModel(ViTConfig(image_size=8, patch_size=4, intermediate_size=8, **text)),
            "wav2vec2": Wav2Vec2Model(
                Wav2Vec2Config(
                    intermediate_size=8,
                    num_conv_pos_embeddings=4,
                    num_conv_pos_embedding_groups=2,
                    mask_time_prob=0.0,
                    layerdrop=0.0,
                    **text,
                    **sound,
                )
            ),
            "bert": BertModel(BertConfig(intermediate_size=8, vocab_size=20, **text)),
            "mlp": nn.Sequential(nn.Linear(4, 2)),
        }


@pytest.mark.parametrize("name", ["vit", "wav2vec2", "bert", "mlp"])
@pytest.mark.long
def test_models_on_the_meta_device_are_raised_on_it(name) -> None:
    model = meta_models()[name].eval()
    mg = MaseGraph(model)
    assert all(parameter.is_meta for parameter in mg.model.parameters())
    mg, _ = passes.init_metadata_analysis_pass(mg)
    mg, _ = passes.add_common_metadata_analysis_pass(mg)
    assert all(node_metadata(node).common.mase_op for node in mg.nodes)


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (torch.ones(2, 4), "expected a mapping of inputs .* got Tensor"),
        ([torch.ones(2, 4)], "expected a mapping of inputs .* got list"),
        ({"input": np.ones((2, 4))}, r"dummy_in\['input'\]: expected a tensor, got a NumPy array"),
    ],
)
def test_an_example_that_is_no_mapping_of_tensors_is_one_sentence(example, message):
    net = nn.Sequential(nn.Linear(4, 2))
    for use in (lambda: MaseGraph(net, dummy_in=example), lambda: MaseGraph(net).fit(example)):
        with pytest.raises(ConfigError, match=message):
            use()
