"""GPTQ and SmoothQuant against rounding to nearest, on trained models and held-out rows."""

import pytest
import torch
import torch.nn.functional as F

from chop import MaseGraph, passes
from chop.data import get_tokenized_dataset, load_dataset
from chop.formats import Integer, QuantSpec
from chop.models import load_model
from chop.train import calibration_batches, default_dataset, load_trained, read_rows

from .conftest import with_metadata


class Subject:
    """A trained float graph, training rows to look at, and test rows to judge by."""

    def __init__(self, model, dataset, rows):
        self.graph = with_metadata(MaseGraph(model))
        self.batches = list(calibration_batches(model, dataset, rows=rows))
        self.test = list(read_rows(dataset["test"]).batches(64))
        self.labels = torch.cat([batch["labels"] for batch in self.test])
        self.exact = self.logits(self.graph)

    @torch.no_grad()
    def logits(self, mg):
        names = [name for name in mg.model.example_inputs if name != "labels"]
        return torch.cat(
            [mg.model(**{n: batch[n] for n in names})["logits"] for batch in self.test]
        )

    def judge(self, mg):
        """(accuracy, KL divergence to float)."""
        logits = self.logits(mg)
        divergence = F.kl_div(
            logits.log_softmax(-1),
            self.exact.log_softmax(-1),
            log_target=True,
            reduction="batchmean",
        )
        return (logits.argmax(-1) == self.labels).double().mean().item(), divergence.item()

    def nearest(self, mg, data_in, weight):
        spec = {"config": QuantSpec(data_in=data_in, weight=weight)}
        mg, _ = passes.quantize_transform_pass(mg, {"by": "type", "linear": spec})
        return passes.calibrate_transform_pass(mg, {"batches": self.batches})[0]

    def gptq(self, mg):
        return passes.gptq_transform_pass(mg, {"batches": self.batches})[0]

    def smooth(self, **settings):
        settings = {"batches": self.batches, **settings}
        return passes.smoothquant_transform_pass(self.graph, settings)[0]


@pytest.fixture(scope="module")
def mlp():
    return Subject(load_trained("mlp"), default_dataset("mlp"), rows=256)


@pytest.fixture(scope="module")
def vit():
    return Subject(load_trained("vit"), default_dataset("vit"), rows=256)


def test_gptq_wins_back_what_three_bits_cost_an_mlp(mlp):
    nearest = mlp.nearest(mlp.graph, Integer(8, "minmax"), Integer(3, "minmax"))
    accuracy, divergence = mlp.judge(nearest)
    better_accuracy, better_divergence = mlp.judge(mlp.gptq(nearest))
    assert better_divergence < divergence / 4
    assert better_accuracy > accuracy + 0.01
    assert better_accuracy > mlp.judge(mlp.graph)[0] - 0.02


def test_smoothing_helps_three_bit_inputs_and_weights_of_an_mlp(mlp):
    formats = Integer(3, "mse"), Integer(3, "mse")
    _, divergence = mlp.judge(mlp.nearest(mlp.graph, *formats))
    smooth = mlp.smooth()
    assert mlp.judge(smooth)[1] < 1e-8
    assert mlp.judge(mlp.nearest(smooth, *formats))[1] < divergence * 0.85


@pytest.mark.slow
def test_both_help_a_vision_transformer_at_four_bits(vit):
    formats = Integer(4, "minmax"), Integer(4, "minmax")
    accuracy, divergence = vit.judge(vit.nearest(vit.graph, *formats))
    smooth_accuracy, smooth_divergence = vit.judge(vit.nearest(vit.smooth(), *formats))
    assert smooth_divergence < divergence / 2
    assert smooth_accuracy > accuracy + 0.02
    weights_only = vit.nearest(vit.graph, Integer(8, "minmax"), Integer(4, "minmax"))
    assert vit.judge(vit.gptq(weights_only))[1] < vit.judge(weights_only)[1] / 2


@pytest.fixture(scope="module")
def bert(data_folder):
    folder = str(data_folder / "bert-tiny-imdb")
    splits = load_dataset(data_folder / "imdb", limit=200)
    dataset = get_tokenized_dataset(splits, checkpoint=folder, max_length=128)
    return Subject(load_model(folder), dataset, rows=64)


@pytest.mark.data
@pytest.mark.slow
def test_both_help_bert_on_reviews_at_three_bits(bert):
    formats = Integer(8, "minmax"), Integer(3, "minmax")
    nearest = bert.nearest(bert.graph, *formats)
    _, divergence = bert.judge(nearest)
    assert bert.judge(bert.gptq(nearest))[1] < divergence / 4
    # BERT's norms feed residual sums too: without rescaling these, nothing can be folded
    settings = {"batches": bert.batches}
    _, info = passes.smoothquant_transform_pass(bert.graph, settings)
    assert info["smoothed"] == {}
    smooth = bert.smooth(migration_strength=0.3, rescale_other_readers=True)
    assert bert.judge(smooth)[1] < 1e-8
    assert bert.judge(bert.nearest(smooth, *formats))[1] < divergence * 0.75
