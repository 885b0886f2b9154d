"""Readable labels on pages for the column names in files and manifests."""

from __future__ import annotations

import re

WORDS = {
    "activation_bits": "bits per input",
    "bit_operations": "bit operations of a sample",
    "bram": "block memories",
    "dsp": "multipliers (DSP)",
    "ff": "flip-flops",
    "frac_width": "fraction (bits)",
    "kept_depths": "kept depths",
    "latency_us": "latency (µs)",
    "lut": "lookup tables",
    "lutram": "lookup tables as memory",
    "planned_depths": "planned depths",
    "ramb18": "block memories of 18 Kbit",
    "rom_bits": "ROM: bits",
    "rom_ff": "ROM: flip-flops",
    "rom_lut": "ROM: lookup tables",
    "rom_ramb18": "ROM: block memories of 18 Kbit",
    "size_bytes": "bytes",
    "size_kb": "kB",
    "soft_multipliers": "multipliers in lookup tables",
    "weight_error": "relative squared error",
}
"""By name."""
NAMES = re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, WORDS))})(?![\w.-])")


def in_words(text: str) -> str:
    """Replaces column names in a heading or label with readable words. Layer names stay.

    >>> in_words("activation_bits"), in_words("best lut so far"), in_words("model.lut_1")
    ('bits per input', 'best lookup tables so far', 'model.lut_1')
    """
    return NAMES.sub(lambda match: WORDS[match[0]], text)
