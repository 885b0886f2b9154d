"""Tokenizers of bytes in GGUF: the same ids in transformers, and how texts are split."""

import copy

import pytest
import transformers
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from chop.export.gguf.reader import read_tokenizer
from chop.export.gguf.split import LLAMA3, QWEN2, set_split
from chop.export.gguf.target import TARGET
from chop.private.transformers_api import gguf_splits
from tests.export.gguf.test_target import VOCABULARY, captured, check, quantized, refused

gguf = pytest.importorskip("gguf", reason="GGUF files are written by gguf: pip install gguf")


def byte_level(**settings):
    """A tokenizer of 258 bytes and special tokens, and as many merges as are asked for."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = settings.pop("split", pre_tokenizers.ByteLevel(False))
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=settings.pop("size", VOCABULARY - 4),
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the cat sat on the mat, and the dog sat too"] * 4, trainer)
    names = dict(zip(("unk_token", "bos_token", "eos_token"), special, strict=True))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="</s>", **names, **settings
    )


TEXTS = ["the cat sat", " and  12 dogs!\n", "<s>naïve</s> 日本"]


def test_a_tokenizer_gives_the_same_ids(tmp_path):
    tokenizer = byte_level(chat_template="{{ messages[0]['content'] }}")
    tokenizer.add_tokens(["<think>"])
    info = check(quantized(captured("llama")), tmp_path / "model.gguf", tokenizer)
    assert info["tokenizer"] == "byte-level BPE, split as 'gpt-2'"
    read = read_tokenizer(tmp_path)
    for text in [*TEXTS, "a<think>b"]:
        assert read(text).input_ids == tokenizer(text).input_ids
    for name in ("bos_token_id", "eos_token_id", "unk_token_id", "pad_token_id", "chat_template"):
        assert getattr(read, name) == getattr(tokenizer, name) is not None
    kinds = gguf.GGUFReader(tmp_path / "model.gguf").get_field("tokenizer.ggml.token_type")
    assert kinds.contents() == [3] * 3 + [1] * 277 + [4] + [5] * 7


def split_by(expression):
    """Words of a regular expression, as newer tokenizers have it, and then bytes."""
    words = pre_tokenizers.Split(Regex(expression), "isolated")
    return [words, pre_tokenizers.ByteLevel(False, use_regex=False)]


SPLITS = {
    "smollm": [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)],
    "llama-bpe": split_by(LLAMA3),
    "qwen2": split_by(QWEN2),
    "default": [pre_tokenizers.Punctuation(), pre_tokenizers.ByteLevel(False)],
}
OF_LLAMA_CPP = {
    # Texts and their parts, from llama.cpp's own splits.
    "smollm": ("a 2024 cats'   12", ["a", "Ġ", "2", "0", "2", "4", "Ġcats", "'", "ĠĠĠ", "1", "2"]),
    "gpt-2": ("a 2024 cats'   12", ["a", "Ġ2024", "Ġcats", "'", "ĠĠ", "Ġ12"]),
    "qwen2": ("a 2024 IT'S\n\n", ["a", "Ġ", "2", "0", "2", "4", "ĠIT", "'S", "ĊĊ"]),
    "llama-bpe": ("a 20245 IT'S\n\n", ["a", "Ġ", "202", "45", "ĠIT", "'S", "ĊĊ"]),
    "default": ("a 20245,it's", ["a", "Ġ", "202", "45", ",", "it", "'", "s"]),
}


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.sampled(2)
def test_the_way_texts_are_split_is_named(name, tmp_path):
    tokenizer = byte_level(split=pre_tokenizers.Sequence(SPLITS[name]))
    mg = quantized(captured("llama"))
    info = TARGET.write(mg, tmp_path / "model.gguf", tokenizer)
    assert info["tokenizer"].startswith(f"byte-level BPE, split as '{name}'")
    assert ("may split texts differently" in info["tokenizer"]) == (name == "default")
    if name in ("llama-bpe", "qwen2"):  # transformers knows these two
        read = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
        for text in [*TEXTS, "the 2024 cats' 12345\n\n  mats"]:
            assert read(text).input_ids == tokenizer(text).input_ids


@pytest.mark.parametrize("name", OF_LLAMA_CPP)
@pytest.mark.sampled(1)
def test_the_way_texts_are_split_is_read(name, tmp_path):
    mg = quantized(captured("llama"))
    tokenizer = byte_level()
    set_split(tokenizer, name)
    TARGET.write(mg, tmp_path / "model.gguf", tokenizer)
    read = read_tokenizer(tmp_path)
    text, parts = OF_LLAMA_CPP[name]
    split = read.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [part for part, _ in split] == parts
    assert read.backend_tokenizer.model.ignore_merges == (name == "llama-bpe")


@pytest.mark.parametrize("name", ["smollm", "command-r", "stablelm2", "tekken", "default", "new"])
@pytest.mark.sampled(1)
def test_a_tokenizer_is_written_back_as_it_was_read(name, tmp_path, caplog):
    mg = quantized(captured("llama"))
    tokenizer = byte_level(chat_template="{{ messages[0]['content'] }}")
    tokenizer.add_tokens(["<think>"])
    assert set_split(tokenizer, name) is (name != "new")
    if name == "tekken":
        words = split_by(gguf_splits()[name])
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(words)
    TARGET.write(mg, tmp_path / "one.gguf", tokenizer)
    read = read_tokenizer(tmp_path / "one.gguf")
    assert ("'new', which is unknown" in caplog.text) is (name == "new")
    read.save_pretrained(tmp_path / "folder")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "folder")
    for number, found in enumerate((read, copy.deepcopy(read), again)):
        file = tmp_path / f"again{number}.gguf"
        TARGET.write(mg, file, found)
        assert file.read_bytes() == (tmp_path / "one.gguf").read_bytes()
        assert fields(file)["tokenizer.ggml.pre"] == name
        for text in [*TEXTS, "a<think>b", "the 2024 cats' 12345\n\n  mats"]:
            assert read_tokenizer(file)(text).input_ids == read(text).input_ids


def fields(file):
    """Texts and numbers of a file, by key."""
    reader = gguf.GGUFReader(file)
    return {key: field.contents() for key, field in reader.fields.items()}


def test_a_split_that_was_changed_is_named_by_its_steps(tmp_path):
    tokenizer = byte_level()
    set_split(tokenizer, "command-r")
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(SPLITS["qwen2"])
    TARGET.write(quantized(captured("llama")), tmp_path / "model.gguf", tokenizer)
    assert fields(tmp_path / "model.gguf")["tokenizer.ggml.pre"] == "qwen2"


def test_other_tokenizers_are_refused(tmp_path):
    mg = quantized(captured("llama"))
    words = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    named = transformers.PreTrainedTokenizerFast(tokenizer_object=words)
    refused(mg, tmp_path, "fast tokenizer of byte-level BPE.*got WordLevel. Write", named)
    characters = Tokenizer(models.BPE({"a": 0}, [], byte_fallback=True))
    characters = transformers.PreTrainedTokenizerFast(tokenizer_object=characters)
    refused(mg, tmp_path, "got another kind of character BPE", characters)
    lower = byte_level()
    lower.backend_tokenizer.normalizer = normalizers.Lowercase()
    refused(mg, tmp_path, r"do not support the tokenizer's normalizer \(Lowercase\)", lower)
    tokenizer = byte_level()
    tokenizer.add_tokens([f"<{index}>" for index in range(16)])
    refused(mg, tmp_path, "tokenizer has the id 295, but the model only 288 tokens", tokenizer)
