"""`chop.save`, and what the text of a quantized model says of it."""

import copy
import gc
import io
import weakref

import pytest
import torch
from torch import nn

import chop
from chop.errors import CaptureError, ConfigError
from chop.models import load_model
from chop.quantization.described import Summary, describe


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))


X = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))


class Two(nn.Module):
    """Takes two inputs that nobody can guess."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 8), nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, image, numbers):
        return self.c(self.a(image).relu() + self.b(numbers))

    def extra_repr(self):
        return "own text"


ROWS = {
    "image": torch.randn(9, 5, generator=torch.Generator().manual_seed(2)),
    "numbers": torch.randn(9, 3, generator=torch.Generator().manual_seed(3)),
}


def lines(model):
    return [line.strip() for line in str(model).splitlines()]


def test_a_quantized_model_is_as_large_as_before_and_says_so():
    model = load_model("bert-tiny")
    quantized = chop.quantize(model, "8.auto")
    assert type(quantized) is type(model)
    count = sum(p.numel() for p in model.parameters())
    assert sum(p.numel() * p.element_size() for p in quantized.parameters()) == 4 * count
    _, said, *rest = lines(quantized)
    assert said.startswith("integer 8.") and f"of {count:,} parameters; 2.2 MB as floats" in said
    assert said.endswith("kB when packed (chop.save)") and rest == lines(model_text(quantized))[1:]


def model_text(model):
    plain = copy.deepcopy(model)
    del plain.extra_repr
    return plain


@pytest.mark.sampled(3)
@pytest.mark.parametrize("format", ["8.auto", "4.auto", "mxint:width=4", "scale_integer:width=4"])
@pytest.mark.parametrize("trains", [False, True])
def test_what_is_saved_is_small_and_answers_alike(format, trains, tmp_path):
    quantized = chop.quantize(net(), format, X).train(trains)
    if trains:
        optimizer = torch.optim.SGD(quantized.parameters(), 0.01)
        quantized(X).square().mean().backward()
        optimizer.step()
    found = chop.save(quantized, tmp_path / "deep" / "small")
    assert quantized.training == trains
    read = chop.MaseGraph.from_checkpoint(tmp_path / "deep" / "small").to_module(like=quantized)
    torch.testing.assert_close(read.eval()(X), quantized.eval()(X), rtol=1e-5, atol=1e-5)
    assert type(read) is nn.Sequential and [f.name for f in found["files"]] == [
        "small.pt",
        "small.mz",
    ]
    assert found["packed_share"] == 1 and found["bytes"] < found["float_bytes"] / 3
    assert "packed, " in describe(read)


def test_bytes_of_the_text_are_those_that_are_saved(tmp_path):
    quantized = chop.quantize(load_model("mlp"), "8.auto")
    found = chop.save(quantized, tmp_path / "small")
    assert f" {found['bytes'] / 1000:.1f} kB when packed" in lines(quantized)[1]
    torch.save(quantized.state_dict(), tmp_path / "float.pt")
    sizes = [file.stat().st_size for file in (found["files"][0], tmp_path / "float.pt")]
    assert sizes[0] < sizes[1] / 3


def test_inputs_are_those_of_the_call_in_copies_too(tmp_path):
    quantized = chop.quantize(Two(), "mxint:width=4", ROWS)
    for model in (quantized, copy.deepcopy(quantized), copy.deepcopy(copy.copy(quantized))):
        assert chop.save(model, tmp_path / "two")["packed_share"] == 1
    read = chop.MaseGraph.from_checkpoint(tmp_path / "two").to_module(like=Two())
    torch.testing.assert_close(read(**ROWS), quantized(**ROWS))
    assert lines(quantized)[1] == "own text" and lines(quantized)[2].startswith("mxint(width=4): ")


def test_the_text_goes_through_copies_and_pickles_and_says_what_is_true_of_them(tmp_path):
    quantized = chop.quantize(net(), "8.auto", X)
    file = io.BytesIO()
    torch.save(quantized, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert lines(loaded) == lines(quantized) == lines(copy.deepcopy(quantized))
    assert loaded.extra_repr._model() is loaded
    halved = copy.deepcopy(quantized).bfloat16()
    assert " 0.9 kB as floats" in lines(halved)[1] and " 1.8 kB as floats" in lines(quantized)[1]
    assert chop.save(loaded, tmp_path / "loaded", data=X)["packed_share"] == 1
    assert quantized.state_dict().keys() == net().state_dict().keys()


def test_a_text_does_not_keep_its_model_alive():
    model = nn.Linear(2, 2)
    summary, alive = Summary(model), weakref.ref(model)
    gc.collect()
    del model
    assert alive() is None and summary() == ""


def test_layers_with_fractions_of_their_own_share_a_name():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with torch.no_grad():
        model[1].weight *= 40
    quantized = chop.quantize(model, "8.auto", X)
    assert lines(quantized)[1].startswith("integer 8.*: 100.0% of 40 parameters")


@pytest.mark.parametrize("wrong, says", [(net(), "call chop.quantize first"), (3, "got int")])
def test_what_is_not_quantized_is_not_saved(wrong, says, tmp_path):
    with pytest.raises(ConfigError, match=says):
        chop.save(wrong, tmp_path / "x")
    assert not any(tmp_path.iterdir())


def test_a_loaded_model_whose_inputs_nobody_guesses_needs_rows(tmp_path):
    chop.save(chop.quantize(Two(), "8.auto", data=ROWS), tmp_path / "a")
    loaded = chop.MaseGraph.from_checkpoint(tmp_path / "a").to_module(like=Two())
    with pytest.raises(CaptureError, match=r"of Two cannot be guessed: pass .*data=\(inputs"):
        chop.save(loaded, tmp_path / "b")
    assert chop.save(loaded, tmp_path / "b", data=ROWS)["packed_share"] > 0.9


def test_a_compressed_model_says_that_it_is_packed_and_is_saved_as_it_is(tmp_path):
    y = (X[:, 0] > 0).long()
    settings = {"formats": ("8.auto",), "bench_seconds": 0, "qat_epochs": 0, "keep_best": True}
    model = chop.compress(net(), (X, y), out=tmp_path / "run", force=True, **settings).model
    assert ", packed, " in lines(model)[1] and type(model) is nn.Sequential
    assert chop.save(model, tmp_path / "again", data=X)["packed_share"] == 1
