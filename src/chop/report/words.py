"""Readable labels for the column names in files and manifests."""

from __future__ import annotations

import re
from datetime import UTC, datetime

WORDS = {
    "activation_bits": "bits per input",
    "average_precision": "average precision",
    "balanced_accuracy": "balanced accuracy",
    "bit_operations": "bit operations of a sample",
    "block_influence": "block influence",
    "bram": "block memories",
    "calibration_rows": "calibration rows",
    "dsp": "multipliers (DSP)",
    "ff": "flip-flops",
    "frac_width": "fraction (bits)",
    "hamming_loss": "Hamming loss",
    "hidden_size": "hidden size",
    "intermediate_size": "intermediate size",
    "kept_depths": "kept depths",
    "kilobytes": "weights (kB)",
    "kl": "KL divergence",
    "kv_heads": "key-value heads",
    "latency_us": "latency (µs)",
    "lut": "lookup tables",
    "lutram": "lookup tables as memory",
    "matthews_correlation": "Matthews correlation",
    "mean_iou": "mean IoU",
    "mean_score": "mean score",
    "mlp_width": "MLP width",
    "num_attention_heads": "attention heads",
    "num_hidden_layers": "hidden layers",
    "pixel_accuracy": "pixel accuracy",
    "planned_depths": "planned depths",
    "ramb18": "block memories of 18 Kbit",
    "roc_auc": "ROC AUC",
    "rom_bits": "ROM: bits",
    "rom_ff": "ROM: flip-flops",
    "rom_lut": "ROM: lookup tables",
    "rom_ramb18": "ROM: block memories of 18 Kbit",
    "size_bytes": "bytes",
    "size_kb": "kB",
    "soft_multipliers": "multipliers in lookup tables",
    "weight_error": "relative squared error",
    "worst_score": "worst score",
}
"""Column name -> readable label."""
NAMES = re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, WORDS))})(?![\w.-])")


def in_words(text: str) -> str:
    """Replaces column names in a label with readable words; names of layers stay.

    >>> in_words("activation_bits"), in_words("best lut so far"), in_words("model.lut_1")
    ('bits per input', 'best lookup tables so far', 'model.lut_1')
    """
    return NAMES.sub(lambda match: WORDS[match[0]], text)


def time_text(text: str) -> str:
    """Formats a time to the minute. Other texts stay as they are.

    >>> time_text("2026-11-28T12:06:20+00:00"), time_text("soon")
    ('2026-11-28 12:06 UTC', 'soon')
    """
    time = parsed_time(text)
    return text if time is None else f"{time:%Y-%m-%d %H:%M} UTC"


def parsed_time(text: str) -> datetime | None:
    """Parses ISO 8601 text with a time zone as UTC; returns None for other texts."""
    try:
        time = datetime.fromisoformat(text)
        return None if time.tzinfo is None else time.astimezone(UTC)
    except (OverflowError, ValueError):
        return None
