"""Masked scores: no format rounds them, and none takes a scale from them."""

import copy
import math
import re
from pathlib import Path

import pytest
import torch

from chop.formats import (
    Binary,
    BinaryResidual,
    GroupAffine,
    Integer,
    MXInt,
    QuantSpec,
    ScaleInteger,
    Ternary,
)
from chop.nn import quantized as q
from chop.nn.quantized.scores import LOWEST_SCORE, masked_operands, masked_scores, operand_mask
from tests.formats.examples import ALL
from tests.subcases import subcases

KEYS = 40
DETERMINISTIC = [fmt for fmt in ALL if fmt.is_deterministic and not fmt.is_identity]
LATER = torch.ones(KEYS, KEYS, dtype=torch.bool).triu(1)


def fills(dtype):
    return -math.inf, torch.finfo(dtype).min, -1e4


def drawn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def visible_rounded(fmt, x, hidden):
    """Each row of visible scores rounded as if there were no others; of blocks that start a row."""
    rows = [row.clone() for row in x.flatten(0, -2)]
    for row, mask in zip(rows, hidden.expand(x.shape).flatten(0, -2), strict=True):
        if not mask.all():
            row[~mask] = fmt.round(row[~mask])
    return torch.stack(rows).view(x.shape)


@pytest.mark.long
@subcases("fmt", DETERMINISTIC, ids=lambda fmt: fmt.label)
def test_hidden_scores_stay_and_change_nothing(fmt):
    hidden = LATER.clone()
    hidden[5] = True  # a row without a key
    for dtype in (torch.float32, torch.float16):
        for fill in fills(dtype):
            x, other = (drawn(2, KEYS, KEYS, seed=i, dtype=dtype) for i in (0, 1))
            module = q.QuantSoftmax(dim=-1, config=QuantSpec(data_in=fmt))
            found = module(x.masked_fill(hidden, fill))
            # Whatever was there before it was hidden.
            again = module(torch.where(hidden, other * 100, x).masked_fill(hidden, fill))
            assert torch.equal(found.nan_to_num(7), again.nan_to_num(7))
            seen = ~hidden.all(-1)
            assert found[:, seen].isfinite().all()
            assert not found[:, seen].masked_select(hidden[seen]).any()


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "fmt",
    [
        MXInt(block_size=KEYS),
        ScaleInteger(8, granularity="row"),
        GroupAffine(4, group_size=KEYS),
        Integer(8, 4),
    ],
    ids=lambda fmt: fmt.label,
)
@pytest.mark.parametrize("fill", fills(torch.float32))
def test_visible_scores_are_rounded_as_if_there_were_no_others(fmt, fill):
    """Compares with the visible scores alone, where a row has one group."""
    x = drawn(2, KEYS, KEYS)
    masked = x.masked_fill(LATER, fill)
    expected = torch.softmax(visible_rounded(fmt, x, LATER).masked_fill(LATER, fill), -1)
    module = q.QuantSoftmax(dim=-1, config=QuantSpec(data_in=fmt))
    assert torch.equal(module(masked), expected)
    call = q.QuantCall(torch.softmax, {"input": "data_in"}, QuantSpec(data_in=fmt))
    assert torch.equal(call(masked, -1), expected)


@pytest.mark.parametrize(
    "fmt",
    [
        ScaleInteger(8),
        Binary(scaling_factor=True),
        BinaryResidual(),
        Ternary(),
        Ternary(median=True),
    ],
    ids=lambda fmt: fmt.label,
)
def test_scales_and_thresholds_of_a_tensor_follow_visible_scores(fmt):
    x = drawn(KEYS, KEYS)[None]  # one channel
    masked = x.masked_fill(LATER, -math.inf)
    expected = masked.clone()
    expected[~LATER[None]] = fmt.round(x[~LATER[None]])
    module = q.QuantSoftmax(dim=-1, config=QuantSpec(data_in=fmt))
    assert torch.equal(module(masked), torch.softmax(expected, -1))


def test_results_of_hidden_scores_are_not_rounded_either():
    """A format without a zero would give hidden keys a weight."""
    module = q.QuantSoftmax(dim=-1, config=QuantSpec(data_out=Binary()))
    found = module(drawn(KEYS, KEYS).masked_fill(LATER, -math.inf))
    assert torch.equal(found, (~LATER).float())


def test_gradients_pass_and_are_finite():
    x = drawn(KEYS, KEYS).requires_grad_()
    for fmt, gradient in ((MXInt(), "identity"), (Integer(8, 4), "clip"), (ScaleInteger(8), "lsq")):
        module = q.QuantSoftmax(dim=-1, config=QuantSpec(data_in=fmt, gradient=gradient))
        module.train()
        (gradient_of_x,) = torch.autograd.grad(
            module(x.masked_fill(LATER, -math.inf)).square().sum(), x
        )
        assert gradient_of_x.isfinite().all() and gradient_of_x.any()
        assert not gradient_of_x[LATER].any()


@pytest.mark.parametrize("fill", fills(torch.float32))
def test_learned_scales_start_from_visible_scores(fill):
    x = drawn(KEYS, KEYS)
    spec = QuantSpec(data_in=ScaleInteger(8), gradient="lsq")
    module, plain = (q.QuantSoftmax(dim=-1, config=spec).train() for _ in range(2))
    module(x.masked_fill(LATER, fill)).sum().backward()
    plain(x[~LATER])
    assert torch.equal(module.data_in_scale, plain.data_in_scale)
    assert module.data_in_scale.grad.isfinite().all()


def test_evaluation_starts_no_scales_behind_a_mask():
    masked = drawn(KEYS, KEYS).masked_fill(LATER, -math.inf)
    spec = QuantSpec(ScaleInteger(8), ScaleInteger(8), gradient="lsq")
    module = q.QuantSoftmax(dim=-1, config=spec).eval()
    attention = q.QuantScaledDotProductAttention(spec).eval()
    x = drawn(2, 2, KEYS, 16)
    with torch.no_grad():
        expected = copy.deepcopy(module).train()(masked)
        assert torch.equal(module(masked), expected)
        expected = copy.deepcopy(attention).train()(x, x, x, is_causal=True)
        assert torch.equal(attention(x, x, x, is_causal=True), expected)
    given = {name: tensor.detach().clone() for name, tensor in module.named_parameters()}
    torch.func.functional_call(module, given, masked)
    assert not any(tensor.any() for tensor in given.values())
    for each in (module, attention.softmax, attention.context):
        assert each.waiting == tuple(each.spec.lsq_operands) != ()


def test_visible_zeros_behind_a_mask_start_nothing_and_give_finite_gradients():
    x = torch.zeros(KEYS, KEYS, requires_grad=True)
    spec = QuantSpec(data_in=ScaleInteger(8), gradient="lsq")
    module = q.QuantSoftmax(dim=-1, config=spec).train()
    module(x.masked_fill(LATER, -math.inf)).square().sum().backward()
    assert module.waiting and x.grad.isfinite().all()


@pytest.mark.parametrize("fill", fills(torch.float32))
def test_ranges_of_training_follow_visible_scores(fill):
    x = drawn(KEYS, KEYS)
    module = q.QuantSoftmax(dim=-1, config=QuantSpec(data_in=Integer(8, "auto"))).train()
    module(x.masked_fill(LATER, fill))
    assert module.operand_format("data_in") == Integer(8, "auto").fitted(x[~LATER])
    evaluated = copy.deepcopy(module).eval()
    assert evaluated(x.masked_fill(LATER, fill)).isfinite().all()


def test_rows_along_other_dimensions():
    x = drawn(4, KEYS, KEYS)
    spec = QuantSpec(data_in=MXInt(block_dim=-2))
    found = q.QuantSoftmax(dim=-2, config=spec)(x.mT.masked_fill(LATER.T, -math.inf))
    expected = q.QuantSoftmax(dim=-1, config=QuantSpec(data_in=MXInt()))
    torch.testing.assert_close(found.mT, expected(x.masked_fill(LATER, -math.inf)))


def test_compilers_see_the_same():
    fmt = QuantSpec(data_in=MXInt())
    module = q.QuantSoftmax(dim=-1, config=fmt)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    for x in (drawn(3, KEYS, KEYS), drawn(3, KEYS, KEYS).masked_fill(LATER, -math.inf)):
        assert torch.equal(compiled(x), module(x))
        assert torch.equal(torch.func.vmap(module)(x), torch.stack([module(part) for part in x]))


def test_compilers_see_learned_scales_behind_a_mask():
    x = drawn(KEYS, KEYS).masked_fill(LATER, -math.inf)
    module = q.QuantSoftmax(
        dim=-1, config=QuantSpec(data_in=ScaleInteger(8), gradient="lsq")
    ).train()
    expected = module(x)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), expected)


MASKS = {
    "bool": {"attn_mask": ~LATER},
    "lowest": {"attn_mask": torch.zeros(KEYS, KEYS).masked_fill(LATER, fills(torch.float32)[1])},
    "infinite": {"attn_mask": torch.zeros(KEYS, KEYS).masked_fill(LATER, -math.inf)},
    "bias": {"attn_mask": drawn(2, KEYS, KEYS, seed=5).masked_fill(LATER, -math.inf)},
    "causal": {"is_causal": True},
}


def stays_within_a_token(fmt):
    """Returns whether (batch, heads, tokens, features) has scales of its own for each token."""
    layout, x = fmt.layout(), drawn(1, 1, 2, 2)
    if layout is None or layout.levels is not None or layout.fitted(x) != layout:
        return False
    if layout.scaling is None or layout.scaling.statistic is None:
        return True
    separable = layout.groups.separable_dims(x.ndim)
    return separable.get(2) == 1 and not layout.scaling.spans_tensor


WITHIN_A_TOKEN = [fmt for fmt in DETERMINISTIC if stays_within_a_token(fmt)]


@pytest.mark.long
@subcases("fmt", WITHIN_A_TOKEN, ids=lambda fmt: fmt.label)
def test_no_query_sees_what_an_attention_hides(fmt):
    assert len(WITHIN_A_TOKEN) > 40
    attention = q.QuantScaledDotProductAttention(QuantSpec(data_in=fmt, weight=fmt))
    query, key, value = (drawn(2, 2, KEYS, 16, seed=i) for i in range(3))
    others = [torch.cat([x[..., :-1, :], drawn(2, 2, 1, 16, seed=9) * 9], -2) for x in (key, value)]
    for options in MASKS.values():
        found = attention(query, key, value, **options)
        again = attention(query, *others, **options)
        assert torch.equal(found[..., :-1, :], again[..., :-1, :])
        assert found.isfinite().all()


def test_attention_and_its_steps_round_alike():
    """Compares masks of numbers with boolean masks."""
    attention = q.QuantScaledDotProductAttention(QuantSpec.uniform(MXInt()))
    x = drawn(2, 2, KEYS, 16)
    expected = attention(x, x, x, is_causal=True)
    for name in ("bool", "lowest", "infinite"):
        assert torch.equal(attention(x, x, x, **MASKS[name]), expected)


def test_hidden_keys_have_no_weight_in_formats_without_zero():
    attention = q.QuantScaledDotProductAttention(QuantSpec(weight=Binary()))
    key, value = drawn(1, 1, KEYS, 16), drawn(1, 1, KEYS, 16, seed=1)
    found = attention(key, key, value, is_causal=True)
    torch.testing.assert_close(found, value.cumsum(-2))


def test_which_numbers_are_masked():
    x = torch.tensor([0.0, -4999.0, LOWEST_SCORE, -1e4, -math.inf, math.nan, math.inf, 1e9])
    assert masked_scores(x).tolist() == [False, False, True, True, True, False, False, False]
    assert masked_scores(x[:2]) is None
    assert masked_operands([x, x[:1]]).tolist() == [*[False] * 2, *[True] * 3, False, True, True]
    assert masked_operands([x[:2], x[:1]]) is None


def test_masks_of_results_seen_by_operands():
    masked = torch.zeros(2, 3, 4, dtype=torch.bool)
    masked[:, 0, 1] = True
    masked[0, 2] = True
    assert (
        operand_mask(masked, masked.shape) is masked and operand_mask(None, torch.Size([3])) is None
    )
    assert operand_mask(masked, torch.Size([3, 4])).sum() == 1
    assert operand_mask(masked, torch.Size([2, 3, 1])).nonzero().tolist() == [[0, 2, 0]]
    assert not operand_mask(masked, torch.Size([]))


def test_formats_that_cannot_be_causal_are_those_of_the_docs():
    """Their scales follow numbers of several tokens; docs/masks.md has a table of them."""
    x = drawn(1, 1, KEYS, 8)
    later = torch.cat([x[..., :-1, :], x[..., -1:, :] * 50], -2)
    found = set()
    for fmt in DETERMINISTIC:
        attention = q.QuantScaledDotProductAttention(QuantSpec(data_in=fmt, weight=fmt))
        one, other = (attention(y, y, y, is_causal=True)[..., :-1, :] for y in (x, later))
        if not torch.equal(one, other):
            assert fmt not in WITHIN_A_TOKEN
            found.add(fmt.label.partition("(")[0])
    text = (Path(__file__).parents[2] / "docs/masks.md").read_text()
    table = text.partition("| its scale follows |")[2].partition('`"auto"`')[0]
    fields = {"scaling_factor", "granularity", "nested"}
    assert found == set(re.findall(r"`([a-z_0-9]+)`", table)) - fields
