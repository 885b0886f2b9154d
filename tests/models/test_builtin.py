import pytest
import torch

from chop.models import BUILTIN_MODELS, load_model


def example(name, batch=3):
    if name == "bert-tiny":
        return {"input_ids": torch.randint(1, 100, (batch, 7))}
    return {"pixel_values": torch.randn(batch, 1, 8, 8)}


@pytest.mark.parametrize("name", BUILTIN_MODELS)
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


@pytest.mark.parametrize("name", BUILTIN_MODELS)
def test_the_seed_decides_the_weights_and_leaves_the_generator_alone(name):
    before = torch.get_rng_state()
    first, same, other = (load_model(name, seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[key], same[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", BUILTIN_MODELS)
def test_the_number_of_labels_can_be_chosen(name):
    assert load_model(name, num_labels=4)(**example(name)).logits.shape == (3, 4)


def test_sizes_are_the_published_ones():
    sizes = {
        name: sum(parameter.numel() for parameter in load_model(name).parameters())
        for name in ("mlp", "vit")
    }
    assert sizes == {"mlp": 2 * (64 * 64 + 64) + 64 * 10 + 10, "vit": 58_234}


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_the_example_input_fits(name):
    model = load_model(name)
    assert model(**model.dummy_inputs).logits.shape == (3, 10)
