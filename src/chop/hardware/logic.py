"""Lookup tables and flip-flops of each module of the library, by its parameters.

Registers are those of the sources in `rtl/`, counted as they are declared there. A bit of a sum or
of a choice between two values takes one lookup table; constants of control were fitted to what
Yosys 0.23 counts of the designs of `benchmarks/hardware_estimates.py`. What multipliers and
memories take, with the registers around them, is counted by `chop.hardware.estimate`. The masked
softmax and the embedding were compared with nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Parameters = Mapping[str, Any]
HANDSHAKE = 4
"""Lookup tables of `valid`, `ready` and the enable of a pipeline."""
WINDOW_LOGIC = 1.5
"""Lookup tables for each bit of a place in an image."""
WIDEST = 10**9


class Logic(NamedTuple):
    """What a module takes.

    Attributes:
        lut: lookup tables of 6 inputs, without those of products and memories.
        ff: flip-flops, without those of multipliers and memories.
        rams: read-write memories: words, and bits of a word.
        bits: of sums and of choices between two values: a lookup table each, however many inputs
            it has.
        enabled: flip-flops beside multipliers that have an enable: not every multiplier takes them.
    """

    lut: float
    ff: float
    rams: tuple[tuple[int, int], ...] = ()
    bits: float = 0
    enabled: float = 0

    def plus(self, other: Logic) -> Logic:
        """Both."""
        return Logic(
            self.lut + other.lut,
            self.ff + other.ff,
            self.rams + other.rams,
            self.bits + other.bits,
            self.enabled + other.enabled,
        )

    def times(self, count: int) -> Logic:
        """So many of it."""
        rams = self.rams * count
        numbers = (self.bits * count, self.enabled * count)
        return Logic(self.lut * count, self.ff * count, rams, *numbers)


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
    return Logic(3, 2 * p["W"] + 2, bits=p["W"])


def _fifo(p: Parameters) -> Logic:
    """A beat is in the register of the memory's output."""
    if p["DEPTH"] <= 2:
        return _skid(p)
    words = p["DEPTH"] - 1
    index, count = _log2(words), _log2(words + 1)
    return Logic(7 * index + 4, 2 * index + count + 1, ((words, p["W"]),))


def _credits(bits: int, latency: int, every: int = 1, places: int = 0) -> Logic:
    """`chop_credits`, which ends each pipeline: a FIFO with a place for each credit."""
    places = places or (latency + 4) // every + 2
    count = places.bit_length()
    return _fifo({"W": bits, "DEPTH": places}).plus(Logic(3.5 * count, count + 1))


def _fork(p: Parameters) -> Logic:
    return Logic(2 * p["N"] + 1, p["N"])


def _downsize(p: Parameters) -> Logic:
    bits, count = p["IN_LANES"] * p["W"], _log2(p["IN_LANES"] // p["OUT_LANES"] + 1)
    return Logic(2 * count, bits + count, bits=1.5 * bits)


def _upsize(p: Parameters) -> Logic:
    if p["IN_LANES"] == p["OUT_LANES"]:
        return Logic(HANDSHAKE, p["OUT_LANES"] * p["W"] + 1)
    count = _log2(p["OUT_LANES"] // p["IN_LANES"])
    return Logic(count + HANDSHAKE, p["OUT_LANES"] * p["W"] + count + 1)


def _words(beats: int) -> Logic:
    """`chop_words` without its memory and the register behind."""
    count = _log2(beats)
    return Logic(4 * count, count)


def _constant(beats: int, bits: int) -> Logic:
    return _words(beats).plus(_credits(bits, 2)).plus(Logic(1, 2))


def _repeat(bits: int, beats: int, times: int) -> Logic:
    if times == 1:
        return Logic(0, 2 * bits)
    counts = _log2(beats) + _log2(times)
    return Logic(4 * counts, 2 * bits + counts + 2, ((beats, bits),), bits=bits)


def _tree(inputs: int, term: int, total: int = WIDEST) -> Logic:
    """An adder tree with a register behind each sum; the last one of `total` bits at most."""
    levels = range(1, (inputs - 1).bit_length() + 1)
    sums = [((inputs >> k) + bool(inputs % (1 << k)), min(term + k, total)) for k in levels]
    bits = sum(nodes * width for nodes, width in sums)
    return Logic(0, bits, bits=bits)


def _rows(bits: int, beats: int, groups: int, stages: int) -> Logic:
    """What sends rows of a product again, and what tells their first and last terms."""
    count = _log2(beats)
    return _repeat(bits, beats, groups).plus(Logic(3 * count + HANDSHAKE, count + 3 * stages + 2))


def _sums(outputs: int, tree: Logic, total: int) -> Logic:
    """Of each output a tree, and an accumulator."""
    return tree.times(outputs).plus(Logic(0, outputs * total, bits=outputs * total))


def _matvec(
    inputs: int, outputs: int, beats: int, groups: int, widths: tuple[int, int, int]
) -> Logic:
    """`widths`: of a code, of a weight and of a sum."""
    code, weight, total = widths
    tree = _tree(inputs, min(code + weight, total), total)
    rows = _rows(inputs * code, beats, groups, 4 + (inputs - 1).bit_length())
    return rows.plus(_sums(outputs, tree, total))


def _results(p: Parameters, latency: int) -> Logic:
    """Biases are added, and results wait for their reader."""
    beats, groups = p["IN_FEATURES"] // p["IN_LANES"], p["OUT_FEATURES"] // p["OUT_LANES"]
    out, sets = p["OUT_LANES"] * p["OUT_W"], p.get("SETS", 1)
    words = _words(sets * beats * groups).plus(_words(sets * groups))
    latency += beats + (p["IN_LANES"] - 1).bit_length()
    return words.plus(_credits(out, latency, beats)).plus(Logic(1, out + 1, bits=out))


def _linear(p: Parameters) -> Logic:
    beats, groups = p["IN_FEATURES"] // p["IN_LANES"], p["OUT_FEATURES"] // p["OUT_LANES"]
    widths = p["IN_W"], p["WEIGHT_W"], max(p["OUT_W"] - p["SHIFT"], 1)
    vector = _matvec(p["IN_LANES"], p["OUT_LANES"], beats, groups, widths)
    return vector.plus(_results(p, 5))


def _block_linear(p: Parameters) -> Logic:
    """Codes are split from the shift of their block; sums are shifted back."""
    inputs, outputs, total = p["IN_LANES"], p["OUT_LANES"], max(p["OUT_W"] - p["SHIFT"], 1)
    beats, groups = p["IN_FEATURES"] // inputs, p["OUT_FEATURES"] // outputs
    levels, row = (inputs - 1).bit_length(), p["SHIFT_W"] + inputs * p["CODE_W"]
    both = max(p["SHIFT_W"], p["WEIGHT_SHIFT_W"]) + 1
    spare = max(p["IN_W"] - p["CODE_W"], 1)
    split = _credits(row, 3).plus(
        Logic(
            inputs * (p["CODE_W"] * p["SHIFT_W"] + spare) / 2,
            2 * inputs * p["IN_W"] + spare + p["SHIFT_W"] + row + 3,
        )
    )
    shifts = Logic(
        total * both / 2 + both, total + both * (levels + 1) + p["WEIGHT_SHIFT_W"], bits=both
    )
    tree = _tree(inputs, p["CODE_W"] + p["WEIGHT_W"])
    sums = _sums(outputs, tree, total).plus(shifts.times(outputs))
    return split.plus(_rows(row, beats, groups, levels + 5)).plus(sums).plus(_results(p, 6))


def _ternary_linear(p: Parameters) -> Logic:
    """Products are terms: a choice for each bit, and no multiplier."""
    inputs, outputs, total = p["IN_LANES"], p["OUT_LANES"], max(p["OUT_W"] - p["SHIFT"], 1)
    beats, groups = p["IN_FEATURES"] // inputs, p["OUT_FEATURES"] // outputs
    term = 1 if p["BINARY"] else p["IN_W"] + 1
    terms = inputs * outputs * term
    rows = _rows(inputs * p["IN_W"], beats, groups, (inputs - 1).bit_length() + 3)
    sums = _sums(outputs, _tree(inputs, term, total), total)
    chosen = Logic(0, terms, bits=terms * (1 if p["BINARY"] else 2))
    return rows.plus(chosen).plus(sums).plus(_results(p, 4))


def _window(p: Parameters) -> Logic:
    """Places in the image and in the ring, in the letters of `chop_window`."""
    bits, words = p["LANES"] * p["IN_W"], p["RING"] * p["IN_WIDTH"] * p["FOLDS"]
    reach = (p["KERNEL_Y"] - 1) * p["DILATION_Y"] + 1
    rows = p["OUT_HEIGHT"] * p["STRIDE_Y"] + reach + p["PADDING_Y"] + p["IN_HEIGHT"] + p["RING"]
    columns = p["OUT_WIDTH"] * p["STRIDE_X"] + p["KERNEL_X"] * p["DILATION_X"]
    columns = (columns + p["PADDING_X"] + p["IN_WIDTH"]) * p["FOLDS"]
    names = ("KERNEL_Y", "KERNEL_X", "FOLDS", "OUT_WIDTH", "OUT_HEIGHT")
    places = 5 * _log2(words) + _log2(p["IN_WIDTH"] * p["FOLDS"])
    places += 8 * (_log2(rows) + 2) + 4 * (_log2(columns) + 2)
    state = places + sum(_log2(p[name]) for name in names)
    own = Logic(WINDOW_LOGIC * state, state + bits + 7, ((words, bits),), bits=bits)
    return own.plus(_credits(bits, 4))


def _conv(p: Parameters) -> Logic:
    features = p["FOLDS"] * p["KERNEL_Y"] * p["KERNEL_X"] * p["LANES"] // p["GROUPS"]
    found = _window(p).plus(_fifo({"W": p["IN_LANES"] * p["IN_W"], "DEPTH": p["DEPTH"]}))
    found = found.plus(
        _upsize({"W": p["IN_W"], "IN_LANES": p["LANES"], "OUT_LANES": p["IN_LANES"]})
    )
    return found.plus(_linear({**p, "IN_FEATURES": features, "SETS": p["GROUPS"]}))


def _depthwise_conv(p: Parameters) -> Logic:
    total, out = p["LANES"] * max(p["OUT_W"] - p["SHIFT"], 1), p["LANES"] * p["OUT_W"]
    factors = p["LANES"] * (p["IN_W"] + p["WEIGHT_W"])
    taps = p["KERNEL_Y"] * p["KERNEL_X"]
    found = _window(p).plus(_constant(p["FOLDS"] * taps, p["LANES"] * p["WEIGHT_W"]))
    found = found.plus(_constant(p["FOLDS"], p["LANES"] * p["BIAS_W"]))
    own = Logic(2 * HANDSHAKE, 3 * total + out + 12, (), 2 * total + out, 3 * factors)
    return found.plus(own)


def _matmul(p: Parameters) -> Logic:
    inputs, outputs = (p["LANES"], 1) if p["TRANSPOSED"] else (1, p["LANES"])
    beats, groups = p["IN_FEATURES"] // inputs, p["OUT_FEATURES"] // outputs
    widths = p["IN_0_W"], p["IN_1_W"], p["OUT_W"]
    vector = _matvec(inputs, outputs, beats, groups, widths)
    words, bits = 2 * p["HEADS"] * beats * groups, p["LANES"] * p["IN_1_W"]
    latency = beats + 4 + (inputs - 1).bit_length()
    counts = 4 * _log2(words) + _log2(p["ROWS"])
    own = Logic(2.5 * counts + 12, bits + counts + 4, ((words, bits),))
    return vector.plus(own).plus(_credits(outputs * p["OUT_W"], latency, beats))


def _round(width: int, shift: int, out: int) -> Logic:
    """`chop_round_saturate`: a sum, comparisons with both ends, a choice."""
    kept = max(width - max(shift, 0) + 1, 2) if shift > 0 else width
    below = max(min(shift, width), 0) / 3
    return Logic(0.6 * kept + below + out, 2 * kept + 3 + out, bits=kept)


def _requantize(p: Parameters) -> Logic:
    lanes, multiplies = p["LANES"], p.get("MULTIPLIES")
    width, stages = (p["PRODUCT_W"], 7) if multiplies else (p["IN_W"], 5)
    lane = _round(width, p["SHIFT"], p["OUT_W"])
    # What enters a multiplier waits in its registers, and so does what leaves it.
    lane = lane.plus(Logic(0, p["IN_W"] + width if multiplies else 2 * p["IN_W"]))
    if p.get("DROPPED"):
        lane, stages = _quotient(p), stages + 1
    words = _words(p["CHANNEL_BEATS"]) if p.get("CHANNEL_BEATS") else Logic(0, 0)
    return (
        lane.times(lanes)
        .plus(words)
        .plus(_credits(lanes * p["OUT_W"], stages))
        .plus(Logic(2, stages))
    )


def _quotient(p: Parameters) -> Logic:
    """A lane of a requantizer that divides: what is left of a product is rounded twice."""
    left = p["PRODUCT_W"] - p["DROPPED"]
    own = Logic(0, p["IN_W"] + p["PRODUCT_W"] + left, bits=left)
    return _round(left, p["SHIFT"], p["OUT_W"]).plus(own)


def _reciprocal(width: int, out: int) -> Logic:
    """`chop_reciprocal`: two steps of a division in a cycle."""
    count = _log2(out // 2 + 2)
    return Logic(width + 2 * count + 6, 2 * width + out + count + 4, bits=2.5 * width + out)


def _softmax(p: Parameters) -> Logic:
    total, count = p["TABLE_W"] + _log2(p["FEATURES"]), _log2(p["FEATURES"])
    reciprocal = p["POWER"] - p["TABLE_W"] + 1
    found = _fifo({"W": p["IN_W"], "DEPTH": p["FEATURES"] + 12})
    found = found.plus(_credits(p["TABLE_W"], 3, places=p["DEPTH"]))
    found = found.plus(_skid({"W": p["IN_W"]})).plus(_reciprocal(total, reciprocal))
    own = Logic(
        3 * count + 20,
        2 * p["IN_W"] + 2 * total + reciprocal + p["OUT_W"] + 3 * count + 14,
        bits=2 * p["IN_W"] + 2 * total + p["OUT_W"],
    )
    return found.plus(own).plus(_credits(p["OUT_W"], 3))


def _masked_softmax(p: Parameters) -> Logic:
    """`_softmax`, a bit of each key, and what counts keys, rows and queries."""
    counts = 2 * _log2(p["FEATURES"]) + _log2(p["ROWS"])
    found = _softmax(p).plus(_repeat(1, p["FEATURES"], p["ROWS"])).plus(_credits(1, 2))
    found = found.plus(_fifo({"W": 1, "DEPTH": p["FEATURES"] + p["DEPTH"] + 24}))
    own = Logic(3 * counts, counts + p["IN_W"] + p["OUT_W"] + 6, bits=p["IN_W"] + p["OUT_W"])
    return found.plus(own)


def _layer_norm(p: Parameters) -> Logic:
    """In the letters of `chop_layer_norm`."""
    lanes, count = p["LANES"], _log2(p["FEATURES"] // p["LANES"])
    total, root = p["IN_W"] + _log2(p["FEATURES"]), (p["RADICAND_W"] + 1) // 2
    variance = max(p["RADICAND_W"] - 2 * p["ROOT"], 1)
    squares = min(2 * p["IN_W"] + _log2(p["FEATURES"]), variance)
    reciprocal = p["POWER"] - p["ROOT"] + 1
    product = total + 2 + reciprocal
    lane = _round(product, p["POWER"] - p["ROOT"] - p["FRACTION"], p["LIMIT_W"])
    lane = lane.plus(Logic(0, total + 1 + p["OUT_W"] + product, bits=total + 1 + 2 * p["OUT_W"]))
    load = Logic(
        2 * count + 12,
        lanes * p["IN_W"] + 3 * (total + squares) + 2 * count + 16,
        bits=lanes * (total + squares) + total + squares,
    )
    square_root = Logic(
        2.5 * root + 12, 3 * variance + 2 * p["RADICAND_W"] + 2 * root + 12, bits=3 * root
    )
    sent = Logic(0, 4 * reciprocal + 2 * total + 10 + count, bits=p["RADICAND_W"] + variance)
    found = lane.times(lanes).plus(load).plus(square_root).plus(sent)
    divisor = max(root, p["ROOT"] + 1)
    found = found.plus(_skid({"W": divisor})).plus(_reciprocal(divisor, reciprocal))
    found = found.plus(_fifo({"W": lanes * p["IN_W"], "DEPTH": p["DEPTH"]}))
    found = found.plus(_fifo({"W": total, "DEPTH": 4}))
    beats = p["FEATURES"] // lanes
    words = _words(beats).plus(_words(beats))
    return found.plus(words).plus(_credits(lanes * p["OUT_W"], 13))


def _max_pool(p: Parameters) -> Logic:
    bits = p["LANES"] * p["IN_W"]
    return _window(p).plus(Logic(10, 2 * bits + 6, bits=2 * bits))


def _avg_pool(p: Parameters) -> Logic:
    bits = p["LANES"] * p["OUT_W"]
    return _window(p).plus(Logic(10, 3 * bits + 8, bits=2 * bits))


def _sum(p: Parameters) -> Logic:
    bits = (1 if p["ACROSS"] else p["LANES"]) * p["OUT_W"]
    terms = (p["LANES"] - 1) * p["OUT_W"] if p["ACROSS"] else 0
    counts = _log2(p["COUNT"]) + _log2(p["INNER"])
    stored = ((p["INNER"], bits),) if p["INNER"] > 1 else ()
    own = 0 if stored else bits
    return Logic(3 * counts + HANDSHAKE, 2 * bits + own + counts + 2, stored, terms + 2 * bits)


def _stored_constant(p: Parameters) -> Logic:
    return _constant(p["BEATS"], p["W"])


def _relu(p: Parameters) -> Logic:
    bits = p["LANES"] * p["OUT_W"]
    return Logic(1, bits + 1, bits=bits)


def _add(p: Parameters) -> Logic:
    bits = p["LANES"] * p["OUT_W"]
    return Logic(HANDSHAKE, bits + 1, bits=bits)


def _product(p: Parameters) -> Logic:
    return Logic(HANDSHAKE, 1)


def _table(p: Parameters) -> Logic:
    address = p["LANES"] * _log2(p["ENTRIES"])
    return Logic(2, address + 3, bits=address / 4).plus(_credits(p["LANES"] * p["OUT_W"], 3))


def _embedding(p: Parameters) -> Logic:
    address, beat = _log2(p["ROWS"] * p["BEATS"]), _log2(p["BEATS"])
    return Logic(2 * beat + HANDSHAKE, 2 * address + beat + 4, bits=2 * address)


def _copies(p: Parameters) -> Logic:
    """A run is stored, of one beat in a register."""
    beats, width = p["BEATS"], p["W"]
    counts, stored = _log2(beats) + _log2(p["TIMES"]), beats > 1
    registers = (2 if stored else 4) * width + counts + 4
    rams = ((beats, width),) if stored else ()
    return _credits(width, 2).plus(Logic(2 * counts + 2, registers, rams, width))


def _concat(p: Parameters) -> Logic:
    bits, count = p["LANES"] * p["OUT_W"], _log2(p["BEATS_0"] + p["BEATS_1"])
    return Logic(3 * count + HANDSHAKE, bits + count + 1, bits=bits)


def _select(p: Parameters) -> Logic:
    count = _log2(p["PERIOD"] + 1)
    return Logic(4 * count + HANDSHAKE, p["W"] + count + 1)


FORMULAS: Mapping[str, Callable[[Parameters], Logic]] = {
    "chop_add": _add,
    "chop_avg_pool": _avg_pool,
    "chop_block_linear": _block_linear,
    "chop_concat": _concat,
    "chop_constant": _stored_constant,
    "chop_copies": _copies,
    "chop_conv": _conv,
    "chop_depthwise_conv": _depthwise_conv,
    "chop_downsize": _downsize,
    "chop_embedding": _embedding,
    "chop_fifo": _fifo,
    "chop_fork": _fork,
    "chop_layer_norm": _layer_norm,
    "chop_linear": _linear,
    "chop_masked_softmax": _masked_softmax,
    "chop_matmul": _matmul,
    "chop_max_pool": _max_pool,
    "chop_mul": _product,
    "chop_negate": _relu,
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
