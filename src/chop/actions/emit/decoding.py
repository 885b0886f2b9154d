"""Speed and memory of a decoder's circuit that reads one token at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chop.hardware.design.design import Design
from chop.nn.integer import IntegerCachedMatmul
from chop.report.report import Block, Heading, Note


def decoder_memory(design: Design) -> dict[str, int]:
    """Returns the tokens that the caches have room for, and their bits; {} without caches."""
    caches = []
    for part in design.netlist.instances:
        if part.site is not None and isinstance(part.site.operator, IntegerCachedMatmul):
            length, rows = part.site.operator.length, part.site.inputs[1]
            caches.append((length, length * rows.size * rows.width))
    if not caches:
        return {}
    lengths, bits = zip(*caches, strict=True)
    return {"tokens": max(lengths), "cache_bits": sum(bits)}


def decoding_blocks(result: Mapping[str, Any]) -> list[Block]:
    """Returns the section about tokens, their cycles and their memory; nothing without caches."""
    memory, timing = result["decoder"], result["timing"]
    if not memory:
        return []
    per_token = timing["interval_cycles"], timing["latency_cycles"]
    return [
        Heading("Decoding"),
        Note(
            "A sample is one token. The input start is 1 for the first token of a sequence, "
            f"otherwise 0. A token is read every {per_token[0]:,.6g} cycles within a prompt, and "
            f"every {per_token[1]:,} cycles if it is the answer to the token before. Keys and "
            f"values of up to {memory['tokens']:,} tokens take {memory['cache_bits']:,} bits of "
            "memory."
        ),
    ]
