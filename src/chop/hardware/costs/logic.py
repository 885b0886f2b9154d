"""Lookup tables and flip-flops of each library module, by its parameters.

See `chop.hardware.costs.logic_parts` for the counting rules. `chop.hardware.costs.estimate`
counts multipliers and memories with the registers around them. The formula of the embedding has
not been compared with synthesis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from chop.hardware.costs.logic_parts import (
    HANDSHAKE,
    Logic,
    Parameters,
    Ram,
    constant_logic,
    count_bits,
    credits_logic,
    downsize_logic,
    fifo_logic,
    fork_logic,
    isqrt_logic,
    reciprocal_logic,
    repeat_logic,
    round_logic,
    rows_logic,
    skid_logic,
    sums_logic,
    taps_logic,
    tree_logic,
    upsize_logic,
    window_logic,
    words_logic,
)


def estimate_logic(module: str, parameters: Parameters) -> Logic:
    """Estimates an instance. A module without a formula counts as one output register."""
    formula = FORMULAS.get(module)
    if formula is None:
        bits = parameters.get("LANES", 1) * parameters.get("OUT_W", 8)
        return Logic(bits + HANDSHAKE, bits + 1)
    return formula(parameters)


def _matvec(
    inputs: int, outputs: int, beats: int, groups: int, widths: tuple[int, int, int], soft: int
) -> Logic:
    """Estimates `chop_matvec`.

    Args:
        inputs: lanes of the input.
        outputs: results computed at a time.
        beats: beats of a row.
        groups: groups of outputs.
        widths: bits of a code, of a weight and of a sum.
        soft: SOFT of `chop_multiplier`.
    """
    code, weight, total = widths
    tree = tree_logic(inputs, min(code + weight, total), total)
    stages = 3 + max(soft, 1) + (inputs - 1).bit_length()
    rows = rows_logic(inputs * code, beats, groups, stages)
    factors = Logic(0, 0, factors=inputs * (code + outputs * weight))
    return rows.plus(sums_logic(outputs, tree, total, beats)).plus(factors)


def _results(p: Parameters, latency: int) -> Logic:
    """Estimates the addition of biases and the buffer of results."""
    beats, groups = p["IN_FEATURES"] // p["IN_LANES"], p["OUT_FEATURES"] // p["OUT_LANES"]
    out, sets = p["OUT_LANES"] * p["OUT_W"], p.get("SETS", 1)
    words = words_logic(sets * beats * groups).plus(words_logic(sets * groups))
    latency += beats + (p["IN_LANES"] - 1).bit_length()
    return words.plus(credits_logic(out, latency, beats)).plus(Logic(1, out + 1, bits=out))


def _linear(p: Parameters) -> Logic:
    beats, groups = p["IN_FEATURES"] // p["IN_LANES"], p["OUT_FEATURES"] // p["OUT_LANES"]
    # The sum is shifted to the left before the bias is added: only these bits reach the result.
    widths = p["IN_W"], p["WEIGHT_W"], max(p["OUT_W"] - p["SHIFT"], 1)
    vector = _matvec(p["IN_LANES"], p["OUT_LANES"], beats, groups, widths, p["SOFT"])
    return vector.plus(_results(p, 4 + max(p["SOFT"], 1)))


def _block_linear(p: Parameters) -> Logic:
    """Estimates `chop_block_linear`, which separates codes from shifts and shifts sums back."""
    inputs, outputs, total = p["IN_LANES"], p["OUT_LANES"], max(p["OUT_W"] - p["SHIFT"], 1)
    beats, groups = p["IN_FEATURES"] // inputs, p["OUT_FEATURES"] // outputs
    levels, row = (inputs - 1).bit_length(), p["SHIFT_W"] + inputs * p["CODE_W"]
    both = max(p["SHIFT_W"], p["WEIGHT_SHIFT_W"]) + 1
    spare = max(p["IN_W"] - p["CODE_W"], 1)
    split = credits_logic(row, 3).plus(
        Logic(
            inputs * (p["CODE_W"] * p["SHIFT_W"] + spare) / 2,
            2 * inputs * p["IN_W"] + spare + p["SHIFT_W"] + row + 3,
        )
    )
    shifts = Logic(
        total * both / 2 + both, total + both * (levels + 1) + p["WEIGHT_SHIFT_W"], bits=both
    )
    tree = tree_logic(inputs, p["CODE_W"] + p["WEIGHT_W"])
    # Multipliers do not absorb sums of `chop_adder_tree`.
    tree = Logic(0, tree.ff, bits=tree.bits + tree.added)
    sums = sums_logic(outputs, tree, total, beats).plus(shifts.times(outputs))
    sums = sums.plus(Logic(0, 0, factors=inputs * (p["CODE_W"] + outputs * p["WEIGHT_W"])))
    return split.plus(rows_logic(row, beats, groups, levels + 5)).plus(sums).plus(_results(p, 6))


def _ternary_linear(p: Parameters) -> Logic:
    """Estimates `chop_ternary_linear`, which selects bits instead of multiplying."""
    inputs, outputs, total = p["IN_LANES"], p["OUT_LANES"], max(p["OUT_W"] - p["SHIFT"], 1)
    beats, groups = p["IN_FEATURES"] // inputs, p["OUT_FEATURES"] // outputs
    term = 1 if p["BINARY"] else p["IN_W"] + 1
    terms = inputs * outputs * term
    rows = rows_logic(inputs * p["IN_W"], beats, groups, (inputs - 1).bit_length() + 3)
    sums = sums_logic(outputs, tree_logic(inputs, term, total), total, beats)
    chosen = Logic(0, terms, bits=terms * (1 if p["BINARY"] else 2))
    return rows.plus(chosen).plus(sums).plus(_results(p, 4))


def _conv(p: Parameters) -> Logic:
    features = p["FOLDS"] * p["KERNEL_Y"] * p["KERNEL_X"] * p["LANES"] // p["GROUPS"]
    logic = window_logic(p).plus(fifo_logic({"W": p["IN_LANES"] * p["IN_W"], "DEPTH": p["DEPTH"]}))
    sent = p["LANES"] * p.get("TAP_LANES", 1)
    # The window sends fewer codes per beat than the multipliers read; a converter is in between.
    logic = logic.plus(upsize_logic({"W": p["IN_W"], "IN_LANES": sent, "OUT_LANES": p["IN_LANES"]}))
    return logic.plus(_linear({**p, "IN_FEATURES": features, "SETS": p["GROUPS"]}))


def _depthwise_conv(p: Parameters) -> Logic:
    total, out = p["LANES"] * max(p["OUT_W"] - p["SHIFT"], 1), p["LANES"] * p["OUT_W"]
    products = p["LANES"] * p.get("TAP_LANES", 1)
    factors = products * (p["IN_W"] + p["WEIGHT_W"])
    beats = p["KERNEL_Y"] * p["KERNEL_X"] // p.get("TAP_LANES", 1)
    logic = window_logic(p).plus(constant_logic(p["FOLDS"] * beats, products * p["WEIGHT_W"]))
    logic = logic.plus(taps_logic(p, max(p["OUT_W"] - p["SHIFT"], 1), 1))
    logic = logic.plus(constant_logic(p["FOLDS"], p["LANES"] * p["BIAS_W"]))
    own = Logic(2 * HANDSHAKE, 3 * total + out + 12, (), 2 * total + out, 3 * factors)
    return logic.plus(own)


def _matmul(p: Parameters) -> Logic:
    inputs, outputs = (p["LANES"], 1) if p["TRANSPOSED"] else (1, p["LANES"])
    beats, groups = p["IN_FEATURES"] // inputs, p["OUT_FEATURES"] // outputs
    widths = p["IN_0_W"], p["IN_1_W"], p["OUT_W"]
    vector = _matvec(inputs, outputs, beats, groups, widths, p["SOFT"])
    # Two banks: one is read while the next sample is written into the other.
    words, bits = 2 * p["HEADS"] * beats * groups, p["LANES"] * p["IN_1_W"]
    latency = beats + 3 + max(p["SOFT"], 1) + (inputs - 1).bit_length()
    address = count_bits(words)
    counts = [count_bits(n) for n in (beats, groups, p["HEADS"], p["ROWS"])]
    # A second register follows the word that is read; a block memory or a multiplier absorbs it.
    # Both addresses advance within a bank, or jump to the start of the other one.
    own = Logic(
        4 * address + sum(counts) + 2 * len(counts) + 15,
        2 * address + sum(counts) + 5,
        (Ram(words, bits),),
        factors=bits,
    )
    return vector.plus(own).plus(credits_logic(outputs * p["OUT_W"], latency, beats))


def _requantize(p: Parameters) -> Logic:
    lanes, multiplies = p["LANES"], p.get("MULTIPLIES")
    width, stages = (p["PRODUCT_W"], 7) if multiplies else (p["IN_W"], 5)
    lane = round_logic(width, p["SHIFT"], p["OUT_W"])
    # A multiplier's registers hold its inputs and its output.
    entered = (width, p["IN_W"]) if multiplies else (p["IN_W"], 0)
    lane = lane.plus(Logic(0, p["IN_W"] + entered[0], factors=entered[1]))
    if p.get("DROPPED"):
        lane, stages = _quotient(p), stages + 1
    words = words_logic(p["CHANNEL_BEATS"]) if p.get("CHANNEL_BEATS") else Logic(0, 0)
    return (
        lane.times(lanes)
        .plus(words)
        .plus(credits_logic(lanes * p["OUT_W"], stages))
        .plus(Logic(2, stages))
    )


def _round(p: Parameters) -> Logic:
    """Estimates `chop_round`, whose only registers are those of the unsaturated sum."""
    lane = round_logic(p["IN_W"], p["SHIFT"], p["OUT_W"])
    sum_bits = max(p["IN_W"] - max(p["SHIFT"], 0) + 1, 2) if p["SHIFT"] > 0 else p["IN_W"]
    lane = lane._replace(ff=min(sum_bits, p["OUT_W"]) + 2)
    return lane.times(p["LANES"]).plus(Logic(2, 1))


def _wires(p: Parameters) -> Logic:
    return Logic(0, 0)


def _quotient(p: Parameters) -> Logic:
    """Estimates a lane of a dividing requantizer, which rounds the rest of a product twice."""
    rest = p["PRODUCT_W"] - p["DROPPED"]
    own = Logic(0, p["IN_W"] + p["PRODUCT_W"] + rest, bits=rest, factors=p["IN_W"])
    return round_logic(rest, p["SHIFT"], p["OUT_W"]).plus(own)


def _requantize_blocks(p: Parameters) -> Logic:
    """Estimates `chop_requantize_blocks` with its variable names: two exponent shifts per lane."""
    lanes, read, window, out = p["LANES"], p["IN_W"], p["WINDOW"], p["OUT_W"]
    wide, beats, exponent = read + window, p["BLOCK"] // lanes, window.bit_length()
    counts = count_bits(beats) + count_bits(p["FEATURES"] // lanes)
    # Only the magnitude bits above BASE are examined.
    seen = min(max(read - p["BASE"] - 1, 1), read)
    shifts = 0.75 * (wide + out) * exponent
    lane = round_logic(wide, p["SHIFT"], out - window).plus(
        Logic(shifts, read + seen + wide + out, bits=read)
    )
    load = Logic(
        (lanes / 4 + 0.3) * seen + 2 * window + 2 * counts + HANDSHAKE,
        seen + window + exponent + counts + 9,
    )
    logic = load.plus(fifo_logic({"W": lanes * read + 1, "DEPTH": beats + 12}))
    logic = logic.plus(credits_logic(exponent, 4)).plus(Logic(2, 5 * exponent + 6))
    return logic.plus(lane.times(lanes)).plus(credits_logic(lanes * out, 6))


def _softmax(p: Parameters) -> Logic:
    total, count = p["TABLE_W"] + count_bits(p["FEATURES"]), count_bits(p["FEATURES"])
    reciprocal = p["POWER"] - p["TABLE_W"] + 1
    logic = fifo_logic({"W": p["IN_W"], "DEPTH": p["FEATURES"] + 12})
    logic = logic.plus(credits_logic(p["TABLE_W"], 3, places=p["DEPTH"]))
    logic = logic.plus(skid_logic({"W": p["IN_W"]})).plus(reciprocal_logic(total, reciprocal))
    codes = p["IN_W"] + count_bits(p["TABLE_DEPTH"])
    own = Logic(
        3 * count + 20,
        codes + 2 * total + reciprocal + p["OUT_W"] + 3 * count + 14,
        bits=2 * p["IN_W"] + 2 * total + p["OUT_W"],
        factors=p["TABLE_W"] + reciprocal,
    )
    return logic.plus(own).plus(credits_logic(p["OUT_W"], 3))


def _masked_softmax(p: Parameters) -> Logic:
    """Estimates `_softmax` with a mask bit per key, and counters of keys and of causal queries."""
    places = count_bits(max(p["FEATURES"], p["QUERIES"]))
    inner = count_bits(p["INNER"]) if p["INNER"] > 1 else 0
    counts = 2 * places + inner if p["CAUSAL"] else places
    logic = _softmax(p).plus(repeat_logic(1, p["FEATURES"], p["ROWS"])).plus(credits_logic(1, 2))
    logic = logic.plus(fifo_logic({"W": 1, "DEPTH": p["FEATURES"] + p["DEPTH"] + 24}))
    own = Logic(3 * counts, counts + p["IN_W"] + p["OUT_W"] + 5, bits=p["IN_W"] + p["OUT_W"])
    return logic.plus(own)


def _layer_norm(p: Parameters) -> Logic:
    """Estimates `chop_layer_norm` with its variable names."""
    lanes, count = p["LANES"], count_bits(p["FEATURES"] // p["LANES"])
    total = p["IN_W"] + count_bits(p["FEATURES"])
    # The radicand is the variance, shifted by 2 ROOT bits to the left.
    variance = max(p["RADICAND_W"] - 2 * p["ROOT"], 1)
    squares = min(2 * p["IN_W"] + count_bits(p["FEATURES"]), variance)
    reciprocal = p["POWER"] - p["ROOT"] + 1
    load = Logic(
        2 * count + 12,
        2 * lanes * p["IN_W"] + 3 * (total + squares) + count + 9,
        bits=lanes * total + total + squares,
        added=lanes * squares,
    )
    sent = Logic(
        2 * count + 8,
        4 * reciprocal + 3 * total + 14 + count,
        factors=reciprocal + lanes * (p["IN_W"] + p["LIMIT_W"]) + total + squares,
    )
    beats = p["FEATURES"] // lanes
    logic = load.plus(_root(p, squares, variance)).plus(sent)
    logic = logic.plus(fifo_logic({"W": total, "DEPTH": 8}))
    logic = logic.plus(fifo_logic({"W": lanes * p["IN_W"], "DEPTH": p["DEPTH"]}))
    logic = logic.plus(words_logic(beats)).plus(words_logic(beats))
    logic = logic.plus(_normalized(p, total, reciprocal).times(lanes))
    return logic.plus(credits_logic(lanes * p["OUT_W"], 13))


def _root(p: Parameters, squares: int, variance: int) -> Logic:
    """Estimates the path from the sums of a row to its reciprocal square root."""
    root = (p["RADICAND_W"] + 1) // 2
    cycles = (root + 1) // 2 + 1
    own = Logic(12, 2 * variance + 5, bits=variance, enabled=squares + variance)
    logic = own.plus(credits_logic(p["RADICAND_W"], 5, cycles))
    logic = logic.plus(isqrt_logic(p["RADICAND_W"]))
    divisor = max(root, p["ROOT"] + 1)
    logic = logic.plus(skid_logic({"W": divisor}))
    return logic.plus(reciprocal_logic(divisor, p["POWER"] - p["ROOT"] + 1))


def _normalized(p: Parameters, total: int, reciprocal: int) -> Logic:
    """Estimates a lane that centers, multiplies, rounds with arbitrary limits, and scales."""
    product = total + 2 + reciprocal
    logic = round_logic(product, p["POWER"] - p["ROOT"] - p["FRACTION"], p["LIMIT_W"])
    own = Logic(p["LIMIT_W"], 2 * p["OUT_W"], bits=total, enabled=product + total + 1)
    return logic.plus(own).plus(Logic(0, 0, added=product + p["OUT_W"]))


def _max_pool(p: Parameters) -> Logic:
    bits = p["LANES"] * p["IN_W"]
    taps = taps_logic(p, p["IN_W"], 2)
    return window_logic(p).plus(taps).plus(Logic(10, 2 * bits + 6, bits=2 * bits))


def _avg_pool(p: Parameters) -> Logic:
    bits = p["LANES"] * p["OUT_W"]
    taps = taps_logic(p, p["OUT_W"], 1)
    return window_logic(p).plus(taps).plus(Logic(10, 3 * bits + 8, bits=2 * bits))


def _sum(p: Parameters) -> Logic:
    bits = (1 if p["ACROSS"] else p["LANES"]) * p["OUT_W"]
    terms = (p["LANES"] - 1) * p["OUT_W"] if p["ACROSS"] else 0
    counts = count_bits(p["COUNT"]) + count_bits(p["INNER"])
    stored = (Ram(p["INNER"], bits),) if p["INNER"] > 1 else ()
    own = 0 if stored else bits
    return Logic(3 * counts + HANDSHAKE, 2 * bits + own + counts + 2, stored, terms + 2 * bits)


def _stored_constant(p: Parameters) -> Logic:
    return constant_logic(p["BEATS"], p["W"])


def _relu(p: Parameters) -> Logic:
    bits = p["LANES"] * p["OUT_W"]
    return Logic(1, (bits + 1) * p.get("REGISTERED", 1), bits=bits)


def _add(p: Parameters) -> Logic:
    bits = p["LANES"] * p["OUT_W"]
    return Logic(HANDSHAKE, bits + 1, bits=bits)


def _product(p: Parameters) -> Logic:
    return Logic(HANDSHAKE, 1, enabled=p["LANES"] * p["OUT_W"])


def _scale(p: Parameters) -> Logic:
    """Estimates a product whose sum of parts has a register, and the end of its pipeline."""
    bits = p["LANES"] * p["OUT_W"]
    own = Logic(3, bits + 3, added=bits, factors=p["LANES"] * p["IN_W"])
    return credits_logic(bits, 3).plus(own)


def _affine(p: Parameters) -> Logic:
    """Estimates a product of each lane with the sum behind it, and the words of the channels."""
    bits = p["LANES"] * p["OUT_W"]
    delayed = p["LANES"] * (2 * p["SHIFT_W"] + p["IN_W"])
    own = Logic(3, bits + delayed + 5, bits=bits, added=bits, factors=p["LANES"] * p["IN_W"])
    return credits_logic(bits, 5).plus(words_logic(p["WORDS"])).plus(own)


def _prelu(p: Parameters) -> Logic:
    """Estimates a product of each lane, the code beside it, and the words of the channels."""
    bits = p["LANES"] * p["OUT_W"]
    own = Logic(3, bits + 4 * p["LANES"] * p["IN_W"] + 5, bits=bits, added=bits)
    return credits_logic(bits, 5).plus(words_logic(p["WORDS"])).plus(own)


def _thresholds(p: Parameters) -> Logic:
    """Estimates the comparisons of each lane, and the sum of their bits."""
    count, lanes = p["THRESHOLDS"], p["LANES"]
    lane = Logic(
        count * (p["IN_W"] + 1) / 2 + count, 2 * p["IN_W"] + count + p["OUT_W"], bits=p["OUT_W"]
    )
    own = lane.times(lanes).plus(words_logic(p["WORDS"])).plus(Logic(2, 4))
    return own.plus(credits_logic(lanes * p["OUT_W"], 4))


def _table(p: Parameters) -> Logic:
    address = p["LANES"] * count_bits(p["ENTRIES"])
    return Logic(2, address + 3, bits=address / 4).plus(credits_logic(p["LANES"] * p["OUT_W"], 3))


def _embedding(p: Parameters) -> Logic:
    address, beat = count_bits(p["ROWS"] * p["BEATS"]), count_bits(p["BEATS"])
    word = p["LANES"] * p["OUT_W"]
    own = Logic(2 * beat + HANDSHAKE, 2 * address + beat + word + 5, bits=2 * address)
    return own.plus(credits_logic(word, 4))


def _cached_matmul(p: Parameters) -> Logic:
    """Estimates `_matmul` with one memory, and the rows of other sequences that it hides."""
    folds, outputs = p["FEATURES"] // p["LANES"], 1 if p["TRANSPOSED"] else p["LANES"]
    inputs = p["LANES"] if p["TRANSPOSED"] else 1
    beats, groups = (folds, p["LENGTH"]) if p["TRANSPOSED"] else (p["LENGTH"], folds)
    widths = p["IN_0_W"], p["IN_1_W"], p["OUT_W"]
    vector = _matvec(inputs, outputs, beats, groups, widths, p["SOFT"])
    words, bits = p["LENGTH"] * p["HEADS"] * folds, p["LANES"] * p["IN_1_W"]
    address, latency = count_bits(words), beats + 3 + max(p["SOFT"], 1) + (inputs - 1).bit_length()
    counts = [count_bits(n) for n in (beats, groups, p["HEADS"] * folds, p["GROUPS"])]
    own = Logic(
        4 * address + sum(counts) + 2 * len(counts) + bits + p["IN_2_W"] + 8,
        3 * address + sum(counts) + p["IN_2_W"] + 3,
        (Ram(words, bits),),
        factors=bits,
    )
    return vector.plus(own).plus(credits_logic(outputs * p["OUT_W"], latency, beats))


def _position(p: Parameters) -> Logic:
    return Logic(2 * p["OUT_W"] + HANDSHAKE, 2 * p["OUT_W"] + 1)


def _copies(p: Parameters) -> Logic:
    """Estimates the storage of a run, or a register for a run of one beat."""
    beats, width = p["BEATS"], p["W"]
    counts, stored = count_bits(beats) + count_bits(p["TIMES"]), beats > 1
    registers = (2 if stored else 4) * width + counts + 4
    rams = (Ram(beats, width),) if stored else ()
    return credits_logic(width, 2).plus(Logic(2 * counts + 2, registers, rams, width))


def _concat(p: Parameters) -> Logic:
    bits, count = p["LANES"] * p["OUT_W"], count_bits(p["BEATS_0"] + p["BEATS_1"])
    return Logic(3 * count + HANDSHAKE, bits + count + 1, bits=bits)


def _select(p: Parameters) -> Logic:
    count = count_bits(p["PERIOD"] + 1)
    return Logic(4 * count + HANDSHAKE, p["W"] + count + 1)


def _reorder(p: Parameters) -> Logic:
    """Estimates two banks, the address, and its counters."""
    width, words = p["W"], 2 * p["WORDS"]
    counts = sum(count_bits(p[name]) for name in p if name.startswith("COUNT_"))
    address = count_bits(words)
    own = Logic(
        4 * address + 2 * counts + HANDSHAKE,
        3 * width + 2 * address + counts + 9,
        (Ram(words, width),),
        width,
    )
    return credits_logic(width, 3).plus(own)


FORMULAS: Mapping[str, Callable[[Parameters], Logic]] = {
    "chop_add": _add,
    "chop_affine": _affine,
    "chop_avg_pool": _avg_pool,
    "chop_block_linear": _block_linear,
    "chop_cached_matmul": _cached_matmul,
    "chop_concat": _concat,
    "chop_constant": _stored_constant,
    "chop_copies": _copies,
    "chop_conv": _conv,
    "chop_depthwise_conv": _depthwise_conv,
    "chop_downsize": downsize_logic,
    "chop_embedding": _embedding,
    "chop_fifo": fifo_logic,
    "chop_fork": fork_logic,
    "chop_layer_norm": _layer_norm,
    "chop_linear": _linear,
    "chop_masked_softmax": _masked_softmax,
    "chop_matmul": _matmul,
    "chop_max_pool": _max_pool,
    "chop_mul": _product,
    "chop_negate": _relu,
    "chop_position": _position,
    "chop_prelu": _prelu,
    "chop_relu": _relu,
    "chop_reorder": _reorder,
    "chop_requantize": _requantize,
    "chop_requantize_blocks": _requantize_blocks,
    "chop_round": _round,
    "chop_scale": _scale,
    "chop_select": _select,
    "chop_skid": skid_logic,
    "chop_softmax": _softmax,
    "chop_sum": _sum,
    "chop_table": _table,
    "chop_ternary_linear": _ternary_linear,
    "chop_thresholds": _thresholds,
    "chop_upsize": upsize_logic,
    "chop_wires": _wires,
}
