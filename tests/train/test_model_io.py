import pytest
import torch
from torch import nn
from transformers.modeling_outputs import SequenceClassifierOutput

from chop import MaseGraph
from chop.errors import ConfigError
from chop.models import load_model
from chop.train.model_io import input_columns, loss_and_logits


class OfOneInput(nn.Module):
    def forward(self, x):
        return x


class OfAnything(nn.Module):
    def forward(self, *args, **kwargs):
        return kwargs


def test_columns_that_the_model_does_not_take_are_left_out():
    columns = ["pixel_values", "token_type_ids", "labels"]
    assert input_columns(load_model("mlp"), columns) == {
        "pixel_values": "pixel_values",
        "labels": "labels",
    }


def test_one_input_feeds_the_first_parameter_whatever_its_name():
    assert input_columns(OfOneInput(), ["pixel_values", "labels"]) == {"x": "pixel_values"}
    assert input_columns(OfAnything(), ["a", "labels"]) == {"a": "a", "labels": "labels"}


def test_a_model_that_cannot_be_fed_is_refused():
    with pytest.raises(ConfigError, match=r"DigitsMLP.forward takes .* has \['input_ids', 'lab"):
        input_columns(load_model("mlp"), ["input_ids", "labels"])
    with pytest.raises(ConfigError, match="at least one input in common"):
        input_columns(OfOneInput(), ["a", "b", "labels"])


@pytest.mark.parametrize(
    ("names", "lost"),
    [(["input_ids"], ["attention_mask"]), (["input_ids", "attention_mask"], [])],
)
@pytest.mark.sampled(1)
def test_a_graph_that_leaves_out_what_its_model_reads_says_so(names, lost, recwarn):
    graph = MaseGraph(load_model("bert-tiny"), hf_input_names=names).model
    columns = ["input_ids", "attention_mask", "token_type_ids", "labels"]
    assert list(input_columns(graph, columns)) == names
    said = [str(warning.message) for warning in recwarn]
    assert len(said) == len(lost)
    assert all(f"without {name}, which the data set has" in said[0] for name in lost)


LOGITS, LABELS = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])


@pytest.mark.parametrize(
    "output",
    [
        LOGITS,
        (LOGITS,),
        (LOGITS, torch.zeros(2, 3)),
        {"logits": LOGITS},
        SequenceClassifierOutput(logits=LOGITS),
    ],
    ids=["tensor", "tuple", "tuple with more", "dict", "output"],
)
def test_the_loss_is_the_mean_cross_entropy_where_the_model_gives_none(output):
    loss, logits = loss_and_logits(output, LABELS)
    expected = -(LOGITS.softmax(-1)[:, 0].log()).mean()
    torch.testing.assert_close(loss, expected)
    assert logits is LOGITS


@pytest.mark.parametrize(
    "output",
    [
        (torch.tensor(3.0), LOGITS),
        {"loss": torch.tensor(3.0), "logits": LOGITS},
        SequenceClassifierOutput(loss=torch.tensor(3.0), logits=LOGITS),
    ],
    ids=["tuple", "dict", "output"],
)
def test_the_models_own_loss_is_kept(output):
    loss, logits = loss_and_logits(output, LABELS)
    assert loss.item() == 3.0 and logits is LOGITS


@pytest.mark.parametrize("output", [{"hidden": LOGITS}, None, ()], ids=["dict", "None", "empty"])
def test_an_output_without_logits_is_refused(output):
    shown = "a dict with 'hidden'" if output else "a (NoneType|tuple)"
    with pytest.raises(ConfigError, match=f"expected a model that returns logits.* got {shown}"):
        loss_and_logits(output, LABELS)
