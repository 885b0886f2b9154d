"""Identification of quantization tools by the names of their tensors."""

from __future__ import annotations

import re

CODES = {
    r"weight_(packed|shape|global_scale|zero_point)|input_(scale|zero_point)": (
        "compressed-tensors or ModelOpt"
    ),
    r"weight_scale(_2)?": "compressed-tensors or ModelOpt",
    r"weight_scale_inv": "DeepSeek's FP8",
    r"[kv]_scale": "a quantized cache of keys and values",
    r"qweight|qzeros|scales|g_idx": "GPTQ or AWQ",
    r"weight_(codes|scales|tensor_scale)": "chop",
    r"(weight\.)?(absmax|quant_map|quant_state\..*|SCB)": "bitsandbytes",
}
"""Tools by suffixes of their tensor names."""


def find_tool(name: str) -> str | None:
    """Returns the tool that writes a tensor of this name; None if unknown."""
    tools = (tool for ends, tool in CODES.items() if re.search(rf"\.({ends})$", name))
    return next(tools, None)
