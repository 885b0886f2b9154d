"""Arguments that were not captured: dropped where they carry nothing, refused otherwise."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from chop import MaseGraph
from chop.captured.module import CapturedModule
from chop.errors import ConfigError, GuardError


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 3)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        scale: float = 1.0,
        use_cache: bool = False,
        pooling: str = "mean",
    ) -> dict[str, Tensor]:
        x = self.embed(input_ids)
        if attention_mask is not None:
            x = x * attention_mask[..., None]
        if token_type_ids is not None:
            x = x + token_type_ids[..., None]
        x = x.mean(1) if pooling == "mean" else x.amax(1)
        logits = scale * self.head(x)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


IDS = torch.arange(21).reshape(3, 7)


@pytest.fixture(scope="module")
def captured() -> CapturedModule:
    return MaseGraph(Classifier().eval(), dummy_in={"input_ids": IDS}).model


@pytest.mark.parametrize(
    "nothing",
    [
        {"attention_mask": None, "labels": None, "token_type_ids": None},
        {"token_type_ids": torch.zeros(3, 7, dtype=torch.long)},
        {"use_cache": False, "scale": 1.0, "pooling": "mean"},
    ],
)
def test_arguments_that_carry_nothing_are_dropped(captured, nothing) -> None:
    expected = captured(IDS)["logits"]
    assert torch.equal(captured(IDS, **nothing)["logits"], expected)


def test_lists_of_a_tokenizer_are_refused(captured) -> None:
    with pytest.raises(GuardError, match="token_type_ids as a tensor, got a list; "):
        captured(IDS, token_type_ids=[0] * 7)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attention_mask", torch.ones(3, 7)),
        ("labels", torch.zeros(3, dtype=torch.long)),
        ("token_type_ids", torch.ones(3, 7, dtype=torch.long)),
        ("scale", 2.0),
        ("scale", True),
        ("use_cache", True),
        ("pooling", "max"),
    ],
)
def test_arguments_that_say_something_are_refused_by_name(captured, name, value) -> None:
    with pytest.raises(GuardError, match=f"captured without {name}, got {name}=") as caught:
        captured(IDS, **{name: value})
    way_out = "hf_input_names=['input_ids', '" if isinstance(value, Tensor) else "cf_args={'"
    assert f"{way_out}{name}'" in str(caught.value)


@pytest.mark.parametrize("name", ["labels", "attention_mask"])
def test_the_way_out_works(captured, name) -> None:
    model = Classifier().eval()
    value = torch.zeros(3, dtype=torch.long) if name == "labels" else torch.ones(3, 7)
    with pytest.raises(GuardError) as caught:
        captured(IDS, **{name: value})
    (names,) = re.findall(r"hf_input_names=\[(.*?)\]", str(caught.value))
    given = {"input_ids": IDS, name: value}
    chosen = [each.strip("' ") for each in names.split(",")]
    graph = MaseGraph(model, hf_input_names=chosen, dummy_in=given).model
    expected = model(**given)
    assert {key: x.tolist() for key, x in graph(**given).items()} == {
        key: x.tolist() for key, x in expected.items()
    }


@pytest.mark.long
def test_a_compiled_graph_drops_and_refuses_the_same() -> None:
    graph = MaseGraph(Classifier().eval(), dummy_in={"input_ids": IDS}).model
    compiled = torch.compile(graph, backend="eager")
    segments = torch.zeros(3, 7, dtype=torch.long)
    found = compiled(input_ids=IDS, token_type_ids=segments, labels=None, use_cache=False)
    torch.testing.assert_close(found["logits"], graph(IDS)["logits"], rtol=0, atol=0)
    with pytest.raises(GuardError, match="captured without labels"):
        compiled(input_ids=IDS, labels=torch.zeros(3, dtype=torch.long))


def test_a_reloaded_graph_refuses_the_same(captured, tmp_path) -> None:
    MaseGraph(captured).export(tmp_path / "graph")
    again = MaseGraph.from_checkpoint(tmp_path / "graph").model
    assert torch.equal(again(IDS, scale=1.0)["logits"], captured(IDS)["logits"])
    with pytest.raises(GuardError, match="captured without scale"):
        again(IDS, scale=0.5)


def test_an_argument_fixed_at_capture_takes_no_other_value() -> None:
    given = {"input_ids": IDS}
    graph = MaseGraph(Classifier().eval(), cf_args={"scale": 2.0}, dummy_in=given).model
    assert torch.equal(graph(IDS, scale=2.0)["logits"], graph(IDS)["logits"])
    for other in (3.0, torch.tensor(3.0)):
        with pytest.raises(GuardError, match="captured with scale=2.0, got scale="):
            graph(IDS, scale=other)


@pytest.fixture(scope="module")
def decoder() -> CapturedModule:
    torch.manual_seed(0)
    config = GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=32, n_positions=16)
    return MaseGraph(GPT2LMHeadModel(config).eval(), hf_input_names=["input_ids"]).model


@pytest.mark.parametrize("flag", [{"use_cache": False}, {"output_attentions": False}])
@pytest.mark.long
def test_flags_that_the_configuration_has_too_are_dropped(decoder, flag) -> None:
    assert torch.equal(decoder(IDS, **flag).logits, decoder(IDS).logits)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "value"),
    [("use_cache", True), ("output_attentions", True), ("return_dict", False), ("beam", 3)],
)
def test_what_came_by_keyword_alone_is_refused_by_name(decoder, name, value) -> None:
    with pytest.raises(GuardError, match=f"captured without {name}, got {name}={value}: .*cf_args"):
        decoder(IDS, **{name: value})


@pytest.mark.parametrize("names", [("x",), ("x", "mask")])
def test_an_example_in_place_of_fixed_arguments_is_told(names):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x, mask=None):
            return self.layer(x) if mask is None else self.layer(x) * mask

    given = {name: torch.randn(2, 4) for name in names}
    with pytest.raises(ConfigError, match=r"fixes every input of Masked \(x\).*dummy_in={"):
        MaseGraph(Masked(), given)
    with pytest.raises(ConfigError, match="fixes every input"):
        MaseGraph(Masked(), given, dummy_in={"x": torch.randn(2, 4)})


def test_an_argument_that_is_fixed_is_no_input():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x, mask):
            return self.layer(x) * mask

    model, mask, x = Scaled(), torch.randn(1, 4), torch.randn(3, 4)
    mg = MaseGraph(model, {"mask": mask}, dummy_in={"x": x, "mask": torch.ones(1, 4)})
    assert [node.name for node in mg.nodes if node.op == "placeholder"] == ["x"]
    torch.testing.assert_close(mg.model(x), model(x, mask))
    with pytest.raises((GuardError, TypeError), match="mask|position"):
        mg.model(x, torch.ones(1, 4))
