"""What every number format must satisfy: functions of any format, each with its own condition.

`CHECKS` is run over the whole registry by `test_conformance.py`; a format that is defined anywhere
else can be run through the same ones. Exceptions are named where a definition asks for them.
"""

import copy
import dataclasses
import math
import pickle
from collections.abc import Callable

import torch

from chop.formats import from_key, parse_format
from chop.formats.elements import Fixed, Sign, Trit
from chop.formats.groups import Whole
from chop.formats.packing import pack_bits, pack_trits
from chop.formats.scaling import ScaledFloatScale, Unscaled
from chop.kernels import KERNELS
from chop.kernels.eager import round_eagerly

NAN, INF = float("nan"), float("inf")
SPECIAL = [0.0, -0.0, 1e-42, -1e-42, 0.5, -0.5, 1.0, -1.0, 3.4e38, -3.4e38, INF, -INF]
FINITE = [value for value in SPECIAL if abs(value) < 1e38]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(), (0,), (3,), (2, 3), (2, 0, 3), (5, 37), (2, 3, 4, 5)]


@dataclasses.dataclass(frozen=True)
class Check:
    """A property of a format, and the formats that it is asked of."""

    run: Callable
    applies: Callable

    @property
    def name(self):
        return self.run.__name__


CHECKS: list[Check] = []


def check(where=lambda fmt: True):
    """Adds a function of a format to the checks, for the formats that `where` is true of."""

    def add(function):
        CHECKS.append(Check(function, where))
        return function

    return add


def values(count=2048, dtype=torch.float32, special=SPECIAL):
    """(rows, 96): normal values of two scales, and some special ones."""
    normal = torch.randn(count, generator=torch.Generator().manual_seed(0))
    x = torch.cat([normal * 4, normal * 0.05, torch.tensor(special)])
    return x[-(x.numel() // 96 * 96) :].view(-1, 96).to(dtype)


def same(a, b):
    """Equal bit for bit, all NaNs being one."""
    both = a.isnan() & b.isnan()
    equal = (a == b) & (torch.signbit(a) == torch.signbit(b))
    return a.dtype == b.dtype and bool((both | equal).all())


def element_of(fmt):
    """The layout's; None for a format with a rounding of its own."""
    layout = fmt.layout()
    return None if layout is None else layout.element


def scaling_of(fmt):
    """The layout's; None where nothing is scaled."""
    layout = fmt.layout()
    scaling = None if layout is None else layout.scaling
    return None if isinstance(scaling, Unscaled) else scaling


def is_measured(fmt):
    """True where scales follow the data."""
    return scaling_of(fmt) is not None and scaling_of(fmt).statistic is not None


def has_levels(fmt):
    """True for sums of several roundings."""
    return fmt.layout() is not None and fmt.layout().levels is not None


def floors(fmt):
    return getattr(element_of(fmt), "rounding", None) == "floor"


def is_unsigned(fmt):
    return getattr(element_of(fmt), "code", None) == "unsigned"


def groups_of(fmt, x):
    """The parts of `x` that are rounded together, (..., size)."""
    return x.reshape(1, -1) if scaling_of(fmt) is None else fmt.layout().groups.split(x)


def is_deterministic(fmt):
    return fmt.is_deterministic


def is_zero_one(fmt):
    return isinstance(element_of(fmt), Sign) and not element_of(fmt).bipolar


def has_its_own_values_as_fixed_points(fmt):
    """Not so: {0, 1} takes 0 to 1, and scales that are means or rounded quotients move."""
    scaling = scaling_of(fmt)
    measures_levels = is_measured(fmt) and has_levels(fmt) and fmt.layout().levels > 1
    cuts = is_measured(fmt) and (scaling.statistic.quantile < 1 or floors(fmt))
    moves = measures_levels or cuts or isinstance(scaling, ScaledFloatScale)
    return is_deterministic(fmt) and not (is_zero_one(fmt) or moves)


@check(has_its_own_values_as_fixed_points)
def rounding_is_idempotent(fmt):
    y = fmt.round(values(special=FINITE))
    again = fmt.round(y)
    if getattr(scaling_of(fmt), "divisor", 1) != 1:  # its scale is a quotient, rounded to float32
        torch.testing.assert_close(again, y, rtol=1e-6, atol=0)
    elif getattr(scaling_of(fmt), "follows_values", False):  # its other sign, which only zeros show
        assert torch.equal(again, y)
    else:
        assert same(again, y)


def is_monotone(fmt):
    """Not so where a residual's factor is larger than that of the level before."""
    return is_deterministic(fmt) and not (has_levels(fmt) and is_measured(fmt))


@check(is_monotone)
def rounding_is_monotone_among_values_that_share_a_scale(fmt):
    x = values(special=FINITE)
    if scaling_of(fmt) is not None:
        x = fmt.layout().groups.join(groups_of(fmt, x).sort(-1).values, x.shape)
        # Padding lies between the signs; only full groups stay sorted.
        full = groups_of(fmt, torch.ones_like(x)).all(-1)
    else:
        x, full = x.flatten().sort().values, torch.tensor([True])
    y = groups_of(fmt, fmt.round(x))[full]
    assert y.numel() > 0
    assert (y[..., 1:] >= y[..., :-1]).all()


def has_mirror(fmt):
    """Not so: floors, unsigned numbers, and {0, 1}; signs take a rest of zero to +1."""
    return not (floors(fmt) or is_unsigned(fmt) or is_zero_one(fmt) or has_levels(fmt))


@check(lambda fmt: is_deterministic(fmt) and has_mirror(fmt))
def rounding_mirrors_signs(fmt):
    x = values(special=[1e-42, 0.5, 1.0, 1e20])
    element = element_of(fmt)
    if not getattr(element, "is_symmetric", True):  # reaches one step further below
        limit = element.largest_code * 2.0**-element.frac_width
        x = x.clamp(-limit, limit)
        assert (fmt.round(-x) + fmt.round(x)).abs().max() == 0
        return
    assert (x != 0).all()
    assert torch.equal(fmt.round(-x), -fmt.round(x))


def rounds_to_nearest(fmt):
    """Not so: floors, thresholds, {0, 1}, and sums of signs found one after the other.

    Levels that were chosen such that each outweighs those below it do give the nearest sum.
    """
    by_rule = isinstance(element_of(fmt), Trit) and (
        element_of(fmt).threshold != 0.5 or scaling_of(fmt) is not None
    )
    greedy = has_levels(fmt) and is_measured(fmt)
    exact = is_deterministic(fmt) and not (floors(fmt) or is_zero_one(fmt))
    return exact and fmt.bits() < 9 and not (by_rule or greedy)


def code_books(fmt, x):
    """(codes, *x.shape): what every code means at each place, given the scales that `x` gets."""
    stored = fmt.encode(x)
    width = 8 * stored.codes.numel() // x.numel()
    element = element_of(fmt)
    count = 3 if isinstance(element, Trit) else 2**width
    books = []
    for code in range(count):
        everywhere = torch.full((x.numel(),), code)
        packed = pack_trits(everywhere) if count == 3 else pack_bits(everywhere, width)
        books.append(fmt.decode(dataclasses.replace(stored, codes=packed)))
    has_spare_code = isinstance(element, Fixed) and element.is_symmetric
    if has_spare_code and element.code == "twos_complement":
        del books[2 ** (width - 1)]  # the lowest code has no mirror, and is left out
    together = torch.stack(books)
    return together.where(together.isfinite(), INF)


@check(rounds_to_nearest)
def is_the_nearest_of_all_its_numbers(fmt):
    normal = torch.randn(24, 96, generator=torch.Generator().manual_seed(0)).double()
    x = normal * torch.logspace(-2, 1, 24).double()[:, None]
    assert_nearest(fmt, x)
    books = code_books(fmt, x).sort(0).values
    middles = (books[1:] + books[:-1]) / 2
    ties = middles.gather(0, torch.randint(len(middles), x.shape)[None])[0]
    tops = largest_of_group(fmt, x)
    assert_nearest(fmt, torch.where((x.abs() < tops) & (ties.abs() < tops), ties, x))


def largest_of_group(fmt, x):
    """The largest magnitude of each element's group; infinity where there are no groups."""
    if scaling_of(fmt) is None:
        return torch.full_like(x, INF)
    groups = groups_of(fmt, x.abs())
    return fmt.layout().groups.join(groups.amax(-1, keepdim=True).expand_as(groups), x.shape)


def assert_nearest(fmt, x):
    """`round` gives a number of the code book, and none is nearer (in the log domain: of `log`)."""
    books, y = code_books(fmt, x), fmt.round(x)
    if getattr(element_of(fmt), "rounding", None) == "nearest_log":
        lowest = books.abs().where(books != 0, INF).amin(0)
        inside = (x.abs() >= lowest) & (books.sign() == x.sign())
        distance = (x.abs().log2() - books.abs().log2()).abs()
        best, own = distance.where(inside, INF).amin(0), (x.abs().log2() - y.abs().log2()).abs()
        asked = inside.any(0)
        best, own = best[asked], own[asked]
    else:
        best, own = (x - books).abs().amin(0), (x - y).abs()
    assert (books == y).any(0).all()
    # A scale that is no power of two makes the quotient, and so a tie, inexact.
    torch.testing.assert_close(own, best, rtol=1e-9, atol=0)


@check()
def decode_inverts_encode(fmt):
    for dtype in DTYPES:
        x = values(dtype=dtype)
        torch.manual_seed(0)
        encoded = fmt.encode(x.clone().requires_grad_())
        torch.manual_seed(0)
        rounded = fmt.round(x)
        decoded = fmt.decode(encoded)
        assert same(decoded, rounded)
        assert decoded.dtype == dtype and not decoded.requires_grad
        if not fmt.is_identity:
            spare = encoded.size_bytes - fmt.bits(x.shape) * x.numel() / 8
            assert -1e-6 < spare < 2  # bits are a quotient


@check(is_deterministic)
def narrow_inputs_are_rounded_as_wide_ones(fmt):
    for dtype in DTYPES[1:]:
        x = values(dtype=dtype)
        wide, limits = fmt.round(x.double()), torch.finfo(dtype)
        expected = wide if fmt.is_identity else wide.clamp(limits.min, limits.max)
        assert same(fmt.round(x), expected.to(dtype))


@check()
def takes_any_rank(fmt):
    for shape in SHAPES:
        x = torch.randn(shape)
        torch.manual_seed(1)
        y = fmt(x)
        assert y.shape == x.shape
        torch.manual_seed(1)
        assert same(fmt.decode(fmt.encode(x)), y)
        assert fmt.saturates(x).shape == x.shape


def has_blocks_along_one_axis(fmt):
    return hasattr(fmt, "block_dim") and len(fmt.groups.sizes) == 1


@check(has_blocks_along_one_axis)
def takes_any_axis(fmt):
    last = dataclasses.replace(fmt, block_dim=-1, skip_first_dim=False)
    for shape in [(37,), (5, 37), (3, 40, 5), (3, 7, 4, 21)]:
        x = torch.randn(shape) * 3
        for dim in range(-len(shape), len(shape)):
            y = dataclasses.replace(last, block_dim=dim).round(x)
            assert same(y, last.round(x.movedim(dim, -1)).movedim(-1, dim))


@check(lambda fmt: has_blocks_along_one_axis(fmt) and fmt.name != "nvfp4")  # which has one for all
def blocks_do_not_straddle_rows(fmt):
    last = dataclasses.replace(fmt, block_dim=-1)
    size = last.groups.sizes[0]
    x = torch.randn(6, 2 * size + max(size // 3, 1)) * torch.logspace(-3, 3, 6)[:, None]
    together = last.round(x)
    assert same(torch.stack([last.round(row) for row in x]), together)
    alone = [last.round(part) for part in x[0].split(size)]
    assert same(torch.cat(alone), together[0])
    x[3] *= 1000
    assert same(last.round(x)[[0, 1, 2, 4, 5]], together[[0, 1, 2, 4, 5]])


@check()
def special_values_are_as_pinned(fmt):
    x = torch.tensor([NAN, 1.0, 0.0, -0.0, 1e-42, 3.4e38])
    y = fmt.round(x)
    assert y[0].isnan()
    poisons_its_block = scaling_of(fmt) is not None and scaling_of(fmt).has_nan
    assert (y[1:].isnan() == poisons_its_block).all()
    x = torch.tensor([INF, 1.0, -INF])
    infinite, share_scale = fmt.round(x), groups_of(fmt, x).size(-2) == 1
    if poisons_its_block:
        assert infinite.isnan().all()
    elif not fmt.is_identity:
        assert infinite.isfinite().all()
        if is_deterministic(fmt) and share_scale:
            assert infinite[0] >= infinite[1] >= infinite[2]
    assert fmt.round(torch.zeros(40)).isfinite().all()


@check(is_deterministic)
def gradients_pass_straight_through_the_operator(fmt):
    x = values().requires_grad_()
    y = fmt(x)
    assert same(y.detach(), fmt.round(x.detach()))
    weights = torch.randn(x.shape)
    (gradient,) = torch.autograd.grad((y * weights).sum(), x)
    assert torch.equal(gradient, weights)


@check(is_deterministic)
def kernels_take_it_right_or_not_at_all(fmt):
    for x in (values(), torch.randn(40, 65) * torch.logspace(-6, 6, 40)[:, None]):
        for run in (KERNELS["cpu"].run, round_eagerly):
            out = torch.full_like(x, 77.0)
            if run(x, fmt, out):
                assert same(out, fmt.round(x))
            else:
                assert (out == 77.0).all()


@check(lambda fmt: is_deterministic(fmt) and not fmt.is_identity)
def clip_stops_the_gradient_where_values_saturate(fmt):
    x = torch.cat([torch.linspace(-40, 40, 1001), torch.tensor([1e30, -1e30])]).requires_grad_()
    (gradient,) = torch.autograd.grad(fmt(x, "clip").sum(), x)
    outside = fmt.saturates(x.detach())
    assert torch.equal(gradient, (~outside).float())
    has_fixed_range = fmt.saturates(torch.tensor([1e30])).all()
    assert (outside[-1] and outside[-2]) or not has_fixed_range


@check()
def key_pickle_and_copy_give_the_same_format(fmt):
    assert from_key(fmt.key) == fmt
    assert pickle.loads(pickle.dumps(fmt)) == fmt
    assert copy.deepcopy(fmt) == fmt
    assert hash(fmt) == hash(from_key(fmt.key))
    assert parse_format(fmt) is fmt


@check(is_deterministic)
def the_memory_layout_is_kept_and_does_not_matter(fmt):
    x = torch.randn(2, 5, 4, 6)
    for other in (x.to(memory_format=torch.channels_last), x.transpose(1, 3).contiguous().mT.mT):
        assert fmt(other).stride() == torch.empty_like(other).stride()
        assert torch.equal(fmt(other), fmt(other.contiguous()))
    if not fmt.is_identity:
        assert fmt(x.mT).stride() == x.mT.stride()


def rounds_parts_alike(fmt):
    """True where what has the same index of the first axis of several is rounded by itself."""
    layout = fmt.layout()
    if layout is None or scaling_of(fmt) is None:
        threshold = getattr(element_of(fmt), "threshold", 0.0)
        return isinstance(threshold, float) and not has_levels(fmt)
    by_row = layout.groups.is_row_separable(3) and layout.groups != Whole("channel")
    return by_row and not (layout.scaling.spans_tensor or has_levels(fmt))


@check(is_deterministic)
def large_tensors_are_rounded_like_their_parts(fmt):
    x = torch.randn(3, 130, 96) * 3
    y = fmt.round(x)
    assert same(fmt.decode(fmt.encode(x)), y)
    if rounds_parts_alike(fmt):
        assert torch.equal(torch.stack([fmt.round(part) for part in x]), y)


@check()
def compiles_as_one_node(fmt):
    torch._dynamo.reset()
    x = values(64, special=FINITE)
    compiled = torch.compile(lambda t: fmt(t) * 2, fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)
    y = compiled(x)
    torch.manual_seed(0)
    assert torch.equal(y, fmt(x) * 2)


@check(lambda fmt: is_deterministic(fmt) and not fmt.is_identity)
def is_a_wellformed_torch_operator(fmt):
    for operator in (torch.ops.chop.fake_quantize, torch.ops.chop.fake_quantize_marking):
        x = torch.randn(3, 4, requires_grad=True)
        torch.library.opcheck(operator.default, (x, fmt.key))


ONCE_PER_KIND = (compiles_as_one_node, is_a_wellformed_torch_operator)
"""Slow, and the same code for all settings of a format."""


def search_space_holds_valid_settings(kind, example):
    """Each choice of `kind.search_space` gives a format, the other fields being the example's."""
    known = {field.name for field in dataclasses.fields(kind)}
    assert set(kind.search_space) <= known
    room = {"width": {"exponent_width": 2}, "exponent_width": {"width": 8}}
    for field, choices in kind.search_space.items():
        others = {key: value for key, value in room.get(field, {}).items() if key in known}
        for value in choices:
            fmt = dataclasses.replace(example, **others, **{field: value})
            assert fmt.round(torch.ones(2)).shape == (2,)
            assert math.isfinite(fmt.bits())
