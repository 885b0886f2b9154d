import pytest
import torch

from chop import MaseGraph, passes
from chop.dataset import MaseDataModule
from chop.errors import ConfigError
from chop.models import get_model, get_model_info
from chop.tools.get_input import InputGenerator, get_dummy_input


@pytest.fixture(scope="module")
def toy():
    module = MaseDataModule(name="toy", batch_size=8, model_name="jsc-tiny")
    module.setup()
    return module


@pytest.fixture(scope="module")
def reviews():
    module = MaseDataModule("reviews", 4, model_name="bert-tiny", limit=30)
    module.setup()
    return module


def test_batches_come_by_next_and_by_for_and_start_anew(toy):
    generator = InputGenerator(get_model_info("jsc-tiny"), toy, "cls", "val", max_batches=3)
    first, second = next(generator), next(generator)
    assert list(first) == ["x"] and first["x"].shape == (8, 16)
    assert not torch.equal(first["x"], second["x"])
    for _ in range(2):
        batches = list(generator)
        assert len(batches) == 3 and torch.equal(batches[0]["x"], first["x"])
    whole = InputGenerator(get_model_info("jsc-tiny"), toy, "cls", "val")
    assert len(list(whole)) == 20


def test_the_inputs_are_those_of_the_graph(toy):
    info = get_model_info("jsc-tiny")
    model = get_model("jsc-tiny", task="cls", dataset_info=toy.dataset_info, pretrained=False)
    generator = InputGenerator(
        data_module=toy, model_info=info, task="cls", which_dataloader="train"
    )
    dummy_in = next(iter(generator))
    mg = MaseGraph(model=model)
    mg, _ = passes.init_metadata_analysis_pass(mg, None)
    mg, _ = passes.add_common_metadata_analysis_pass(mg, {"dummy_in": dummy_in, "add_value": False})
    assert mg.nodes[-2].meta["mase"]["common"]["results"]["data_out_0"]["shape"] == (8, 5)
    assert mg.model(**dummy_in).shape == (8, 5)


@pytest.mark.long
def test_texts_bring_their_labels(reviews):
    info = get_model_info("bert-tiny")
    batch = next(InputGenerator(info, reviews, "cls", "test"))
    assert {"input_ids", "attention_mask", "labels"} <= batch.keys()
    assert batch["labels"].shape == (4,)
    mg = MaseGraph(get_model("bert-tiny"), hf_input_names=["input_ids", "attention_mask", "labels"])
    assert mg.model(**batch)["loss"].isfinite()
    tokens = next(InputGenerator(info, reviews, "lm", "test"))
    kept = tokens["attention_mask"] == 1
    assert torch.equal(tokens["labels"][kept], tokens["input_ids"][kept])
    assert (~kept).any() and (tokens["labels"][~kept] == -100).all(), "losses leave padding out"


def test_pictures_of_transformers_are_pixel_values():
    module = MaseDataModule("digits", 4)
    module.setup()
    dummy = get_dummy_input(get_model_info("vit"), module, "cls", device="meta")
    assert list(dummy) == ["pixel_values"]
    assert dummy["pixel_values"].shape == (4, 1, 8, 8) and dummy["pixel_values"].is_meta


def test_an_unknown_loader_or_task_is_named(toy):
    with pytest.raises(ConfigError, match="which_dataloader: got 'tran': did you mean 'train'"):
        InputGenerator(get_model_info("jsc-tiny"), toy, "cls", "tran")
    with pytest.raises(ConfigError, match="task: got 'clss': did you mean 'cls'"):
        InputGenerator(get_model_info("jsc-tiny"), toy, "clss", "train")
