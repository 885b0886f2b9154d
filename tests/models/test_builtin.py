import pytest
import torch

from chop.data import TEXT_DATASETS, get_tokenizer
from chop.errors import ConfigError
from chop.models import BUILTIN_MODELS, load_model


def example(name, batch=3):
    if BUILTIN_MODELS[name].dataset in TEXT_DATASETS:
        return {"input_ids": torch.randint(1, 100, (batch, 7))}
    return {"pixel_values": torch.randn(batch, 1, 8, 8)}


CLASSIFIERS = [name for name, row in BUILTIN_MODELS.items() if row.task == "classification"]


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_every_built_in_is_called_as_a_hugging_face_classifier(name):
    model = load_model(name)
    classes = BUILTIN_MODELS[name].num_labels
    labels = torch.tensor([0, 1, 1])
    plain, labeled = model(**example(name)), model(**example(name), labels=labels)
    assert plain.logits.shape == (3, classes)
    assert plain.loss is None and not model.training
    expected = torch.nn.functional.cross_entropy(labeled.logits, labels)
    torch.testing.assert_close(labeled.loss, expected)
    assert labeled["logits"] is labeled.logits
    assert load_model(name, num_labels=4)(**example(name)).logits.shape == (3, 4)
    if name in ("mlp", "cnn"):
        assert model(**model.dummy_inputs).logits.shape == (3, 10)


@pytest.mark.parametrize("name", BUILTIN_MODELS)
def test_the_seed_decides_the_weights_and_leaves_the_generator_alone(name):
    before = torch.get_rng_state()
    first, same, other = (load_model(name, seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[key], same[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_the_built_in_decoder_answers_with_the_next_token():
    model, tokenizer = load_model("gpt-tiny"), get_tokenizer("gpt-tiny")
    ids = tokenizer("Anna has a red kite.", return_tensors="pt")
    output = model(**ids, labels=ids["input_ids"])
    assert output.logits.shape == (1, 7, len(tokenizer))
    shifted = torch.nn.functional.cross_entropy(output.logits[0, :-1], ids["input_ids"][0, 1:])
    torch.testing.assert_close(output.loss, shifted)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.generate(**ids, max_new_tokens=3, min_new_tokens=3).shape == (1, 10)
    own = (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id)
    config = model.config
    assert own == (config.pad_token_id, config.bos_token_id, config.eos_token_id)
    with pytest.raises(ConfigError, match="num_labels: 'gpt-tiny' predicts the next token"):
        load_model("gpt-tiny", num_labels=4)


def test_sizes_are_the_published_ones():
    sizes = {
        name: sum(parameter.numel() for parameter in load_model(name).parameters())
        for name in ("mlp", "vit")
    }
    assert sizes == {"mlp": 2 * (64 * 64 + 64) + 64 * 10 + 10, "vit": 58_234}
