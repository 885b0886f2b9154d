import dataclasses
import time

import pytest
import torch
from safetensors.torch import save_file

from chop.data import get_tokenizer, load_dataset
from chop.data.stories import END
from chop.errors import ConfigError
from chop.models import BUILTIN_MODELS
from chop.train import default_dataset, evaluate, load_trained


@pytest.fixture
def short(monkeypatch):
    """A recipe of two epochs: what is tested here is the cache."""
    builtin = BUILTIN_MODELS["mlp"]
    recipe = dataclasses.replace(builtin.recipe, epochs=2)
    monkeypatch.setitem(BUILTIN_MODELS, "mlp", dataclasses.replace(builtin, recipe=recipe))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CHOP_CACHE", str(tmp_path))
    return tmp_path


def weights(model):
    return torch.cat([value.flatten().float() for value in model.state_dict().values()])


def files(cache):
    return [path for path in cache.rglob("*") if path.is_file()]


@pytest.mark.long
def test_trained_once_then_read(cache):
    model = load_trained("mlp")
    assert evaluate(model, default_dataset("mlp")) > 0.95
    assert not model.training
    (file,) = files(cache)
    assert file.suffix == ".safetensors" and file.name.startswith("mlp-digits-seed0-")
    stamp, start = file.stat().st_mtime_ns, time.process_time()
    again = load_trained("mlp")
    assert time.process_time() - start < 0.5
    assert file.stat().st_mtime_ns == stamp
    assert torch.equal(weights(model), weights(again))


@pytest.mark.parametrize("damage", [b"", b"not safetensors at all", None])
@pytest.mark.sampled(1)
def test_a_corrupt_file_is_trained_again(cache, short, damage):
    model = load_trained("mlp")
    (file,) = files(cache)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    again = load_trained("mlp")
    assert torch.equal(weights(model), weights(again))
    assert files(cache) == [file] and file.read_bytes() == whole


def test_a_foreign_file_leaves_no_trace_in_the_weights(cache, short):
    model = load_trained("mlp")
    (file,) = files(cache)
    save_file({key: torch.ones_like(value) for key, value in model.fc1.state_dict().items()}, file)
    assert torch.equal(weights(model), weights(load_trained("mlp")))
    wrong = {key: torch.ones_like(value) for key, value in model.state_dict().items()}
    del wrong["fc3.bias"]
    save_file(wrong, file)
    assert torch.equal(weights(model), weights(load_trained("mlp")))


@pytest.mark.long
def test_another_seed_and_another_recipe_have_their_own_files(cache, short, monkeypatch):
    first, second = load_trained("mlp"), load_trained("mlp", seed=1)
    assert not torch.equal(weights(first), weights(second))
    assert len(files(cache)) == 2
    builtin = BUILTIN_MODELS["mlp"]
    shorter = dataclasses.replace(builtin, recipe=dataclasses.replace(builtin.recipe, epochs=1))
    monkeypatch.setitem(BUILTIN_MODELS, "mlp", shorter)
    load_trained("mlp")
    assert len(files(cache)) == 3


def test_only_built_in_models_are_trained(cache):
    with pytest.raises(ConfigError, match="no built-in model 'vits' to train: did you mean 'vit'"):
        load_trained("vits")
    with pytest.raises(ConfigError, match="unknown built-in model 'vits'"):
        default_dataset("vits")
    assert files(cache) == []


@pytest.mark.long
def test_the_built_in_decoder_learns_to_look_back():
    model, tokenizer = load_trained("gpt-tiny"), get_tokenizer("gpt-tiny")
    assert evaluate(model, default_dataset("gpt-tiny"), task="causal-lm") < 1.6  # words alone: 62
    texts = [text.removesuffix(END) for text in load_dataset("stories")["test"]["text"][:20]]
    asked = tokenizer(
        [text[: text.index("?") + 1] for text in texts], return_tensors="pt", padding=True
    )
    told = model.generate(**asked, max_new_tokens=20, do_sample=False)
    assert tokenizer.batch_decode(told, skip_special_tokens=True) == texts


BY_COMMANDS = 0.2
"""The share that commands hold out: what they train is in the cache that tests share."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "floor", "held_out"),
    [
        ("cnn", 0.97, BY_COMMANDS),
        *(
            pytest.param(name, floor, 0.0, marks=pytest.mark.long)
            for name, floor in (("cnn", 0.97), ("vit", 0.94), ("bert-tiny", 0.85))
        ),
    ],
)
def test_the_built_in_models_reach_their_usual_accuracy(name, floor, held_out):
    assert evaluate(load_trained(name, held_out=held_out), default_dataset(name)) > floor
