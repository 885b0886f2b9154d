"""Processors and tokenizers of a folder, as they go along with the model that is written."""

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, ViTConfig, ViTForImageClassification

from chop.data.tokenizer import find_processor

PIL = pytest.importorskip("PIL")
SIZES = {"hidden_size": 8, "num_attention_heads": 1, "image_size": 8, "patch_size": 4}


def test_an_image_processor_is_found(tmp_path):
    config = ViTConfig(**SIZES, num_hidden_layers=1, intermediate_size=8)
    ViTForImageClassification(config).save_pretrained(tmp_path)
    assert find_processor(str(tmp_path)) is None
    text = '{"image_processor_type": "ViTImageProcessor", "image_mean": [0.1, 0.2, 0.3]}'
    (tmp_path / "preprocessor_config.json").write_text(text)
    found = find_processor(str(tmp_path))
    assert list(found.image_mean) == [0.1, 0.2, 0.3]
    found.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / "preprocessor_config.json").is_file()


def test_a_tokenizer_is_found_with_its_chat_template(tmp_path):
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="a", chat_template="{{ x }}"
    )
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    found = find_processor(str(tmp_path))
    assert found.chat_template == "{{ x }}" and found.get_vocab() == {"a": 0, "b": 1}
    assert find_processor(str(tmp_path / "none")) is None
