import pytest
import torch

from chop import MaseGraph
from chop.data import get_dataset_info
from chop.errors import ConfigError, UnavailableError
from chop.models import MODELS, get_model, get_model_info, get_tokenizer, load_model

# Parameters in millions, with 1,000 classes for pictures and 2 for texts, as published for the
# pretrained models (torchvision and timm model tables, model cards; heads counted from the widths).
PUBLISHED = {
    "resnet18": 11.69,
    "resnet34": 21.80,
    "resnet50": 25.56,
    "mobilenet-v2": 3.50,
    "vit-tiny-patch16-224": 5.72,
    "vit-base-patch16-224": 86.57,
    "deit-tiny-patch16-224": 5.72,
    "deit-small-patch16-224": 22.05,
    "deit-base-patch16-224": 86.57,
    "swin-tiny": 28.29,
    "bert-base-uncased": 109.48,
    "bert-large-uncased": 335.14,
    "prajjwal1/bert-tiny": 4.39,
    "distilbert-base-uncased": 66.96,
    "roberta-base": 124.65,
    "opt-125m": 125.24,
    "opt-350m": 331.20,
    "opt-1.3b": 1315.76,
    "llama-7b": 6738.42,
}


@pytest.mark.parametrize(("name", "millions"), PUBLISHED.items())
@pytest.mark.sampled(3)
def test_sizes_are_the_published_ones(name, millions):
    info = get_model_info(name)
    task = "lm" if name == "llama-7b" else "cls"
    classes = get_dataset_info("sst2") if info.is_nlp_model else None
    with torch.device("meta"):
        model = get_model(name, task=task, dataset_info=classes)
    count = sum(p.numel() for p in model.parameters())
    if info.is_vision_model:  # two classes by default
        width = model.get_parameter(
            [n for n, p in model.named_parameters() if p.dim() > 1][-1]
        ).shape[1]
        count += (1000 - 2) * (width + 1)
    assert round(count / 1e6, 2) == pytest.approx(millions, abs=0.011)


def test_every_published_row_is_in_the_table():
    hub = {name for name, row in MODELS.items() if row.hub}
    assert hub == PUBLISHED.keys()
    assert get_model_info("facebook/opt-125m") is MODELS["opt-125m"]
    assert get_model_info("vit_tiny_patch16_224") is MODELS["vit-tiny-patch16-224"]


@pytest.mark.parametrize(
    ("name", "dataset"),
    [
        ("toy", "mnist"),
        ("toy-tiny", "digits"),
        ("toy", "toy"),
        ("jsc-tiny", "jsc"),
        ("jsc-toy", "jsc"),
        ("jsc-s", "jsc"),
        ("jsc-m", "jsc"),
        ("mnist", "mnist"),
        ("vgg7", "cifar10"),
    ],
)
@pytest.mark.sampled(1)
def test_plain_models_fit_their_data(name, dataset):
    info = get_dataset_info(dataset)
    model = get_model(name, pretrained=False, task="cls", dataset_info=info)
    shape = info.image_size or (info.num_features,)
    x = torch.randn(2, *shape)
    logits = model(x)
    assert logits.shape == (2, info.num_classes) and not model.training
    mg = MaseGraph(model)
    torch.testing.assert_close(mg.model(x), logits)
    again = get_model(name, dataset_info=info)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)
    )


def test_vgg7_is_that_of_the_paper():
    model = get_model("vgg7")
    widths = [m.out_channels for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    assert widths == [128, 128, 256, 256, 512, 512]
    assert [m.out_features for m in model.modules() if isinstance(m, torch.nn.Linear)] == [1024, 10]


def test_drawing_weights_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    get_model("toy")
    assert torch.equal(torch.get_rng_state(), before)


def test_tasks_choose_the_head():
    with torch.device("meta"):
        assert type(get_model("opt-125m", task="lm")).__name__ == "OPTForCausalLM"
        assert type(get_model("bert-base-uncased", task="lm")).__name__ == "BertForMaskedLM"
        classifier = get_model("bert-base-uncased", dataset_info=get_dataset_info("ag_news"))
    assert classifier.config.num_labels == 4
    with pytest.raises(ConfigError, match="task 'lm' does not apply to a vision model"):
        get_model("resnet18", task="lm")
    with pytest.raises(ConfigError, match="unknown task 'clss': did you mean 'cls'"):
        get_model("opt-125m", task="clss")


def test_built_in_models_and_folders_are_reached_too(tmp_path):
    info = get_dataset_info("reviews")
    model = get_model("bert-tiny", dataset_info=info)
    assert model.config.num_labels == 2
    assert model.config.hidden_size == load_model("bert-tiny").config.hidden_size
    model.save_pretrained(tmp_path)
    loaded = get_model(str(tmp_path), pretrained=True, dataset_info=info)
    ids = torch.randint(0, 512, (2, 7))
    assert torch.equal(loaded(ids).logits, model(ids).logits)


def test_what_cannot_be_had_is_said():
    with pytest.raises(ConfigError, match="unknown model 'resnet-18': did you mean 'resnet18'"):
        get_model_info("resnet-18")
    with pytest.raises(ConfigError, match="no trained weights of 'toy' exist"):
        get_model("toy", pretrained=True)
    with pytest.raises(ConfigError, match=r"chop.train.load_trained\('vit'\)"):
        get_model("vit", pretrained=True)
    with pytest.raises(UnavailableError, match="'microsoft/resnet-18'.*pretrained=False"):
        get_model("resnet18", pretrained=True)
    with pytest.raises(UnavailableError, match="no tokenizer found"):
        get_tokenizer("opt-125m")
    assert get_tokenizer("opt-125m", checkpoint="bert-tiny").pad_token == "[PAD]"


@pytest.mark.parametrize(
    ("model", "dataset", "message"),
    [
        ("toy", "imdb", "'imdb' does not fit the model: it takes images of one size or vectors"),
        ("vgg7", "jsc", "'jsc' does not fit the model: it takes images of one size"),
        ("jsc-tiny", "mnist", "'mnist' does not fit the model: it takes vectors"),
        ("cnn", "cifar10", "'cifar10' does not fit 'cnn', which is built for 'digits'"),
        ("jsc-x", "jsc", "model 'jsc-x' is unknown: did you mean 'jsc-"),
    ],
)
def test_data_that_does_not_fit_is_refused(model, dataset, message):
    with pytest.raises(ConfigError, match=message):
        get_model(model, dataset_info=get_dataset_info(dataset))


@pytest.mark.parametrize("name", ["toy", "cnn", "bert-tiny"])
def test_small_models_are_classifiers_whatever_the_spelling(name):
    with pytest.raises(ConfigError, match=f"'{name}' is a classifier, .* got 'lm'"):
        get_model(name, task="lm")
    model = get_model(name.replace("-", "_").upper(), task="classification")
    assert not model.training


@pytest.mark.long
def test_pictures_are_raised_at_the_size_of_the_model():
    info = get_dataset_info("cifar10")
    model = get_model("resnet18", dataset_info=info)
    assert model.config.num_labels == 10
    x = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        logits = MaseGraph(model).model(pixel_values=x)["logits"]
        torch.testing.assert_close(logits, model(x).logits)
