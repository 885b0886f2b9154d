import pytest
import torch
from datasets import Dataset, DatasetDict

from chop.data import get_tokenizer
from chop.dataset import MaseDataModule, get_dataset_info
from chop.errors import ConfigError, UnavailableError
from chop.mase.data_module import _padded


def loaders(module):
    return module.train_dataloader(), module.val_dataloader(), module.test_dataloader()


def test_vectors_come_in_pairs_and_no_row_is_in_two_splits():
    module = MaseDataModule(name="toy", batch_size=32, num_workers=0, model_name="jsc-tiny")
    module.prepare_data()
    module.setup()
    assert module.dataset_info is get_dataset_info("toy")
    rows = [torch.cat([x for x, _ in loader]) for loader in loaders(module)]
    assert [len(x) for x in rows] == [1440, 160, 400]
    assert len(torch.cat(rows).unique(dim=0)) == 2000
    x, y = next(iter(module.train_dataloader()))
    assert x.shape == (32, 16) and x.dtype == torch.float32 and y.dtype == torch.int64


def test_training_rows_are_shuffled_by_the_global_seed_and_others_are_not():
    module = MaseDataModule("digits", 16)
    module.setup("fit")
    torch.manual_seed(3)
    first = next(iter(module.train_dataloader()))[1]
    torch.manual_seed(3)
    assert torch.equal(next(iter(module.train_dataloader()))[1], first)
    assert not torch.equal(next(iter(module.train_dataloader()))[1], first)
    a, b = (next(iter(module.test_dataloader()))[0] for _ in range(2))
    assert torch.equal(a, b) and a.shape == (16, 1, 8, 8)


def test_texts_come_as_padded_mappings():
    module = MaseDataModule("reviews", 8, max_token_len=9, model_name="bert-tiny", limit=40)
    module.setup()
    for loader in loaders(module):
        batch = next(iter(loader))
        assert batch["input_ids"].shape == batch["attention_mask"].shape
        assert batch["input_ids"].shape[1] <= 9 and len(batch["labels"]) <= 8
        assert ((batch["input_ids"] == 0) == (batch["attention_mask"] == 0)).all()


def test_a_tokenizer_can_be_handed_in():
    tokenizer = get_tokenizer("bert-tiny")
    module = MaseDataModule("reviews", 4, tokenizer=tokenizer, limit=20)
    module.setup()
    assert module.tokenizer is tokenizer
    assert len(module.test_dataloader().dataset) == 20


def test_a_folder_of_ones_own_and_worker_processes(tmp_path):
    data = Dataset.from_dict({"v": [[float(i), 1.0] for i in range(30)], "label": [0, 1, 2] * 10})
    DatasetDict(train=data, test=data).save_to_disk(tmp_path / "mine")
    module = MaseDataModule(str(tmp_path / "mine"), 5, num_workers=1)
    module.setup()
    assert (module.dataset_info.num_features, module.dataset_info.num_classes) == (2, 3)
    assert sum(len(y) for _, y in module.train_dataloader()) == 27


def test_errors_say_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match="batch_size: got 0, expected 1 or more"):
        MaseDataModule("toy", 0)
    with pytest.raises(ConfigError, match=r"call setup\(\) first"):
        MaseDataModule("toy", 4).train_dataloader()
    with pytest.raises(UnavailableError, match="data set 'cifar10' is not built in.*hub"):
        MaseDataModule("cifar10", 4).prepare_data()
    texts = Dataset.from_dict({"text": ["good", "bad"], "label": [0, 1]})
    DatasetDict(train=texts, test=texts).save_to_disk(tmp_path)
    with pytest.raises(ConfigError, match="contains texts: pass tokenizer= or model_name="):
        MaseDataModule(str(tmp_path), 4).setup()
    with pytest.raises(ConfigError, match=r"size \(1, 8, 8\), the model takes \(3, 224, 224"):
        MaseDataModule("digits", 4, model_name="resnet18", limit=20).setup()
    with pytest.raises(ConfigError, match="'digits': expected at least two training rows"):
        MaseDataModule("digits", 4, limit=1).setup()


@pytest.mark.data
def test_real_pictures_at_the_size_of_a_model(data_folder):
    folder = str(data_folder / "cifar10-jpeg")
    module = MaseDataModule(folder, 4, model_name="resnet18", limit=40)
    module.setup()
    x, y = next(iter(module.test_dataloader()))
    assert x.shape == (4, 3, 224, 224) and x.abs().max() <= 1
    small = MaseDataModule(folder, 4, model_name="vgg7", limit=40)
    small.setup()
    assert next(iter(small.test_dataloader()))[0].shape == (4, 3, 32, 32)
    assert small.dataset_info.num_classes == 10 and y.max() < 10


@pytest.mark.data
def test_real_reviews_with_a_real_tokenizer(data_folder):
    tokenizer = get_tokenizer(data_folder / "bert-base-uncased")
    module = MaseDataModule(
        str(data_folder / "imdb"), 4, max_token_len=64, tokenizer=tokenizer, limit=50
    )
    module.setup()
    batch = next(iter(module.train_dataloader()))
    assert batch["input_ids"].shape == (4, 64)
    assert (batch["input_ids"][:, 0] == tokenizer.cls_token_id).all()
    assert set(batch["labels"].tolist()) <= {0, 1}


def test_labels_of_texts_are_integers():
    rows = [{"input_ids": [1, 2], "labels": 1.0}, {"input_ids": [3], "labels": 0.0}]
    assert _padded(rows, pad_id=0)["labels"].dtype == torch.int64
