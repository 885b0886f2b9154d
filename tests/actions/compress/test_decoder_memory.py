"""Peak memory of compressing a decoder, as the benchmark measures it."""

import subprocess
import sys
from pathlib import Path

import pytest

from chop.data import get_tokenizer

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "decoder_memory.py"


@pytest.mark.long
def test_a_decoder_is_compressed_in_little_more_memory_than_it_has(tmp_path):
    import transformers

    tokenizer = get_tokenizer("gpt-tiny")
    tokenizer.add_tokens([f"<{n}>" for n in range(32_000)])
    tokenizer.save_pretrained(tmp_path / "model")
    sizes = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12}
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), num_attention_heads=12, tie_word_embeddings=True, **sizes
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    where = ["--model", tmp_path / "model", "--out", tmp_path / "out", "--dataset", "stories"]
    sizes = ["--limit", "4", "--max-length", "128"]
    done = subprocess.run(
        [sys.executable, SCRIPT, *where, *sizes], check=True, capture_output=True, text=True
    )
    assert done.stdout.count("held") == 2 and "missed" not in done.stdout
