"""Lookup tables and flip-flops of each module of the library, by its parameters.

A bit of a sum, of a choice between two values or of a comparison takes one lookup table. What a
multiplier, a memory and a table take is counted by `chop.hardware.estimate`. The numbers are those
of the sources in `rtl/` before their pipelines; constants were fitted to what Yosys 0.23 counts of
two designs, one of linear layers and one of convolutions. Of single layers of block, ternary,
depthwise and grouped modules they say 0.6 to 1.3 times the lookup tables that it counts; that of
the masked softmax was compared with nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Parameters = Mapping[str, Any]
HANDSHAKE = 4
"""Lookup tables of `valid`, `ready` and the enable of a pipeline."""


class Logic(NamedTuple):
    """What a module takes.

    Attributes:
        lut: lookup tables, without those of products and memories.
        ff: flip-flops, without those of multipliers and memories.
        rams: read-write memories: words, and bits of a word.
    """

    lut: float
    ff: float
    rams: tuple[tuple[int, int], ...] = ()


def logic_of(module: str, parameters: Parameters) -> Logic:
    """What an instance takes; one without a formula has a register at its output.

    Args:
        module: its name.
        parameters: of the instance.
    """
    formula = FORMULAS.get(module)
    if formula is None:
        bits = parameters.get("LANES", 1) * parameters.get("OUT_W", 8)
        return Logic(bits + HANDSHAKE, bits + 1)
    return formula(parameters)


def _log2(n: int) -> int:
    """Bits of a counter of `n` states."""
    return max(n - 1, 1).bit_length()


def _skid(p: Parameters) -> Logic:
    return Logic(p["W"] + 3, 2 * p["W"] + 2)


def _fifo(p: Parameters) -> Logic:
    if p["DEPTH"] <= 2:
        return _skid(p)
    index, words = _log2(p["DEPTH"] - 1), p["DEPTH"] - 1
    return Logic(5 * index + 6, p["W"] + 3 * index + 2, ((words, p["W"]),))


def _fork(p: Parameters) -> Logic:
    return Logic(2 * p["N"] + 1, p["N"])


def _downsize(p: Parameters) -> Logic:
    bits, count = p["IN_LANES"] * p["W"], _log2(p["IN_LANES"] // p["OUT_LANES"] + 1)
    return Logic(1.8 * bits + 2 * count, bits + count)


def _upsize(p: Parameters) -> Logic:
    count = _log2(p["OUT_LANES"] // p["IN_LANES"])
    return Logic(count + HANDSHAKE, p["OUT_LANES"] * p["W"] + count + 1)


def _constant(beats: int) -> Logic:
    count = _log2(beats)
    return Logic(2 * count + 2, count + 1)


def _repeat(bits: int, beats: int, times: int) -> Logic:
    if times == 1:
        return Logic(0, 0)
    counts = 2 * _log2(beats) + _log2(times)
    return Logic(bits + 3 * counts + HANDSHAKE, bits + counts + 3, ((beats, bits),))


def _matvec(
    inputs: int, outputs: int, beats: int, groups: int, widths: tuple[int, int, int]
) -> Logic:
    """`widths`: of a code, of a weight and of a sum."""
    code, weight, total = widths
    product = min(code + weight, total)
    tree = sum(
        (inputs >> level) * min(product + level, total) for level in range(1, inputs.bit_length())
    )
    row = _repeat(inputs * code, beats, groups)
    lut = outputs * (tree + total) + row.lut + 3 * HANDSHAKE
    root = min(product + _log2(inputs) if inputs > 1 else product, total)
    return Logic(lut, outputs * (root + total) + row.ff + _log2(beats) + 8, row.rams)


def _linear(p: Parameters) -> Logic:
    beats, groups = p["IN_FEATURES"] // p["IN_LANES"], p["OUT_FEATURES"] // p["OUT_LANES"]
    widths = p["IN_W"], p["WEIGHT_W"], max(p["OUT_W"] - p["SHIFT"], 1)
    vector = _matvec(p["IN_LANES"], p["OUT_LANES"], beats, groups, widths)
    words, biases = (_constant(p.get("SETS", 1) * count) for count in (beats * groups, groups))
    out = p["OUT_LANES"] * p["OUT_W"]
    return Logic(
        vector.lut + words.lut + biases.lut + out + HANDSHAKE,
        vector.ff + words.ff + biases.ff + out + 1,
        vector.rams,
    )


def _block_linear(p: Parameters) -> Logic:
    """`_linear` of the codes, and shifters: of each code by its block's, of each sum by both."""
    linear, total = _linear({**p, "IN_W": p["CODE_W"]}), max(p["OUT_W"] - p["SHIFT"], 1)
    codes, both = p["IN_LANES"] * p["IN_W"], max(p["SHIFT_W"], p["WEIGHT_SHIFT_W"]) + 1
    shifters = codes * p["SHIFT_W"] + p["OUT_LANES"] * (total * both + both)
    registers = codes + p["OUT_LANES"] * (total + both)
    return Logic(linear.lut + shifters, linear.ff + registers, linear.rams)


def _ternary_linear(p: Parameters) -> Logic:
    """`_linear` of products that are terms: a choice for each bit, and no multiplier."""
    bits = 1 if p["BINARY"] else p["IN_W"]
    linear = _linear({**p, "IN_W": bits, "WEIGHT_W": 1})
    terms = p["IN_LANES"] * p["OUT_LANES"] * (bits + 1)
    return Logic(linear.lut + terms, linear.ff + terms, linear.rams)


def _window(p: Parameters) -> Logic:
    bits, words = p["LANES"] * p["IN_W"], p["RING"] * p["IN_WIDTH"] * p["FOLDS"]
    return Logic(2 * bits + 160, 2 * bits + 90, ((words, bits),))


def _conv(p: Parameters) -> Logic:
    window = _window(p)
    features = p["FOLDS"] * p["KERNEL_Y"] * p["KERNEL_X"] * p["LANES"] // p["GROUPS"]
    parts = [_fifo({"W": p["IN_LANES"] * p["IN_W"], "DEPTH": p["DEPTH"]})]
    if p["IN_LANES"] > p["LANES"]:
        parts.append(_upsize({"W": p["IN_W"], "IN_LANES": p["LANES"], "OUT_LANES": p["IN_LANES"]}))
    parts.append(_linear({**p, "IN_FEATURES": features, "SETS": p["GROUPS"]}))
    return Logic(
        window.lut + sum(part.lut for part in parts),
        window.ff + sum(part.ff for part in parts),
        window.rams + tuple(ram for part in parts for ram in part.rams),
    )


def _depthwise_conv(p: Parameters) -> Logic:
    window, words = _window(p), _constant(p["FOLDS"] * p["KERNEL_Y"] * p["KERNEL_X"])
    biases, total = _constant(p["FOLDS"]), max(p["OUT_W"] - p["SHIFT"], 1)
    terms = p["LANES"] * min(p["IN_W"] + p["WEIGHT_W"], total)
    sums, out = p["LANES"] * total, p["LANES"] * p["OUT_W"]
    lut = window.lut + words.lut + biases.lut + sums + out + 2 * HANDSHAKE
    ff = window.ff + words.ff + biases.ff + terms + 2 * sums + out + 5
    return Logic(lut, ff, window.rams)


def _matmul(p: Parameters) -> Logic:
    inputs, outputs = (p["LANES"], 1) if p["TRANSPOSED"] else (1, p["LANES"])
    beats, groups = p["IN_FEATURES"] // inputs, p["OUT_FEATURES"] // outputs
    widths = p["IN_0_W"], p["IN_1_W"], p["OUT_W"]
    vector = _matvec(inputs, outputs, beats, groups, widths)
    words, bits = 2 * p["HEADS"] * beats * groups, p["LANES"] * p["IN_1_W"]
    return Logic(
        vector.lut + 5 * _log2(words) + 20,
        vector.ff + bits + 4 * _log2(words) + 8,
        (*vector.rams, (words, bits)),
    )


def _requantize(p: Parameters) -> Logic:
    product = p["PRODUCT_W"] if p.get("MULTIPLIES") else p["IN_W"]
    kept = max(product - max(p["SHIFT"], 0), 2)
    below = max(min(p["SHIFT"], product), 0) / 4
    words = _constant(p["CHANNEL_BEATS"]) if p.get("CHANNEL_BEATS") else Logic(0, 0)
    lane = 1.3 * kept + below + p["OUT_W"]
    return Logic(p["LANES"] * lane + words.lut + HANDSHAKE, p["LANES"] * p["OUT_W"] + words.ff + 2)


def _softmax(p: Parameters) -> Logic:
    total = p["TABLE_W"] + _log2(p["FEATURES"])
    reciprocal = p["POWER"] - p["TABLE_W"] + 1
    codes = _fifo({"W": p["IN_W"], "DEPTH": p["FEATURES"] + 12})
    kept = _fifo({"W": p["TABLE_W"], "DEPTH": p["DEPTH"]})
    counts = 3 * _log2(p["FEATURES"])
    return Logic(
        codes.lut + kept.lut + 4 * p["IN_W"] + total + 4 * total + 2 * counts + 30,
        codes.ff + kept.ff + 3 * p["IN_W"] + 4 * total + 2 * reciprocal + counts + 20,
        codes.rams + kept.rams,
    )


def _masked_softmax(p: Parameters) -> Logic:
    """`_softmax`, a bit of each key in two banks, and what counts keys, rows and queries."""
    softmax, counts = _softmax(p), 2 * _log2(p["FEATURES"]) + _log2(p["ROWS"])
    hidden = p["SCORE_W"] + p["IN_W"]
    rams = (*softmax.rams, (2 * p["FEATURES"], 1))
    return Logic(softmax.lut + hidden + 3 * counts, softmax.ff + counts + p["IN_W"], rams)


def _layer_norm(p: Parameters) -> Logic:
    lanes, total = p["LANES"], p["IN_W"] + _log2(p["FEATURES"])
    root, reciprocal = (p["RADICAND_W"] + 1) // 2, p["POWER"] - p["ROOT"] + 1
    beats = _fifo({"W": lanes * p["IN_W"], "DEPTH": p["DEPTH"]})
    product = total + 1 + reciprocal
    lane = total + 1 + 1.3 * (product - (p["POWER"] - p["ROOT"] - p["FRACTION"])) + p["OUT_W"]
    square = 2 * p["IN_W"] + _log2(p["FEATURES"])
    lut = beats.lut + lanes * lane + lanes * square + 4 * root + 4 * root + 4 * p["RADICAND_W"]
    ff = beats.ff + lanes * (total + p["LIMIT_W"] + p["OUT_W"]) + 4 * root + 3 * reciprocal
    return Logic(lut + 60, ff + 2 * p["RADICAND_W"] + 3 * square + 4 * total + 40, beats.rams)


def _max_pool(p: Parameters) -> Logic:
    window, bits = _window(p), p["LANES"] * p["IN_W"]
    return Logic(window.lut + 2 * bits + 10, window.ff + 2 * bits + 10, window.rams)


def _avg_pool(p: Parameters) -> Logic:
    window, bits = _window(p), p["LANES"] * p["OUT_W"]
    return Logic(window.lut + 2 * bits + 10, window.ff + 3 * bits + 10, window.rams)


def _sum(p: Parameters) -> Logic:
    lanes = 1 if p["ACROSS"] else p["LANES"]
    bits = lanes * p["OUT_W"]
    terms = (p["LANES"] - 1) * p["OUT_W"] if p["ACROSS"] else 0
    counts = _log2(p["COUNT"]) + _log2(p["INNER"])
    stored = ((p["INNER"], bits),) if p["INNER"] > 1 else ()
    own = 0 if stored else bits
    return Logic(terms + bits + 2 * counts + HANDSHAKE, 2 * bits + own + counts + 2, stored)


def _stored_constant(p: Parameters) -> Logic:
    return _constant(p["BEATS"])


def _relu(p: Parameters) -> Logic:
    bits = p["LANES"] * p["OUT_W"]
    return Logic(bits + 1, bits + 1)


def _add(p: Parameters) -> Logic:
    bits = p["LANES"] * p["OUT_W"]
    return Logic(bits + HANDSHAKE, bits + 1)


def _product(p: Parameters) -> Logic:
    return Logic(HANDSHAKE, 1)


def _table(p: Parameters) -> Logic:
    return Logic(p["LANES"] * p["IN_W"] / 8 + 2, 1)


def _concat(p: Parameters) -> Logic:
    bits, count = p["LANES"] * p["OUT_W"], _log2(p["BEATS_0"] + p["BEATS_1"])
    return Logic(bits + 2 * count + HANDSHAKE, bits + count + 1)


def _select(p: Parameters) -> Logic:
    count = _log2(p["PERIOD"])
    return Logic(3 * count + HANDSHAKE, count)


FORMULAS: Mapping[str, Callable[[Parameters], Logic]] = {
    "chop_add": _add,
    "chop_avg_pool": _avg_pool,
    "chop_block_linear": _block_linear,
    "chop_concat": _concat,
    "chop_constant": _stored_constant,
    "chop_conv": _conv,
    "chop_depthwise_conv": _depthwise_conv,
    "chop_downsize": _downsize,
    "chop_fifo": _fifo,
    "chop_fork": _fork,
    "chop_layer_norm": _layer_norm,
    "chop_linear": _linear,
    "chop_masked_softmax": _masked_softmax,
    "chop_matmul": _matmul,
    "chop_max_pool": _max_pool,
    "chop_mul": _product,
    "chop_relu": _relu,
    "chop_requantize": _requantize,
    "chop_scale": _product,
    "chop_select": _select,
    "chop_skid": _skid,
    "chop_softmax": _softmax,
    "chop_sum": _sum,
    "chop_table": _table,
    "chop_ternary_linear": _ternary_linear,
    "chop_upsize": _upsize,
}
