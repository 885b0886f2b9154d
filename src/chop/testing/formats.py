"""Laws of number formats, each with the condition under which it holds."""

import copy
import dataclasses
import math
import pickle
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from chop.formats import NumberFormat, from_key, get_format, parse_format
from chop.formats.elements import Fixed, Trit
from chop.formats.packing import pack_bits, pack_trits
from chop.kernels import KERNELS
from chop.testing.format_traits import (
    get_element,
    get_groups,
    get_layout,
    get_scaling,
    has_blocks_along_one_axis,
    has_its_own_values_as_fixed_points,
    has_mirror,
    is_deterministic,
    is_monotone,
    rounds_parts_alike,
    rounds_to_nearest,
)
from chop.testing.laws import obeys

replace: Any = dataclasses.replace
NAN, INF = float("nan"), float("inf")
SPECIAL = [0.0, -0.0, 1e-42, -1e-42, 0.5, -0.5, 1.0, -1.0, 3.4e38, -3.4e38, INF, -INF]
FINITE = [value for value in SPECIAL if abs(value) < 1e38]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(), (0,), (3,), (2, 3), (2, 0, 3), (5, 37), (2, 3, 4, 5)]


@dataclasses.dataclass(frozen=True)
class Check:
    """Law of number formats, and its condition."""

    run: Callable[[NumberFormat], None]
    applies: Callable[[NumberFormat], bool]

    @property
    def name(self) -> str:
        """Name of the law in words."""
        return self.run.__name__.replace("_", " ")


CHECKS: list[Check] = []


Run = Callable[[NumberFormat], None]


def check(where: Callable[[NumberFormat], bool] = lambda fmt: True) -> Callable[[Run], Run]:
    """Registers a law for formats that satisfy `where`."""

    def add(function: Run) -> Run:
        CHECKS.append(Check(function, where))
        return function

    return add


def check_format(kind: type[NumberFormat], examples: Iterable[NumberFormat]) -> None:
    """Checks a number format by all applicable laws, like chop's own formats.

    Args:
        kind: class of the format.
        examples: settings to check. A wide and a narrow setting are a good start.
    Raises:
        AssertionError: if a law is broken; the message has the law, the format, and the numbers.
        ConfigError: if a setting of the search space is invalid, or the class is not a frozen
            dataclass.

    Example:
        >>> from chop.formats import Integer
        >>> check_format(Integer, [Integer(8, 4), Integer(4, 2)])  # doctest: +SKIP
    """
    assert isinstance(kind, type) and isinstance(examples, Iterable), (
        f"expected a class of formats and a list of examples, got {kind!r:.60} and {examples!r:.60}"
    )
    assert get_format(kind.name) is kind, f"{kind.__name__} is not the format '{kind.name}'"
    examples = list(examples)
    assert examples and all(type(fmt) is kind for fmt in examples), (
        f"{kind.__name__}: expected examples of this class, got {examples!r:.80}"
    )
    obeys(search_space_holds_valid_settings, examples[0])
    for law in CHECKS:
        applying = [fmt for fmt in examples if law.applies(fmt)]
        for fmt in applying[:1] if law.run in ONCE_PER_KIND else applying:
            obeys(law.run, fmt)


def values(
    count: int = 2048, dtype: torch.dtype = torch.float32, special: Sequence[float] = SPECIAL
) -> Tensor:
    """Returns (rows, 96) normal values of two scales, and special values."""
    normal = torch.randn(count, generator=torch.Generator().manual_seed(0))
    x = torch.cat([normal * 4, normal * 0.05, torch.tensor(special)])
    return x[-(x.numel() // 96 * 96) :].view(-1, 96).to(dtype)


def same(a: Tensor, b: Tensor) -> bool:
    """Returns whether tensors are equal bit by bit; all NaNs count as equal."""
    both = a.isnan() & b.isnan()
    equal = (a == b) & (torch.signbit(a) == torch.signbit(b))
    return a.dtype == b.dtype and bool((both | equal).all())


def describe_difference(x: Tensor, got: Tensor, expected: Tensor) -> str:
    """Describes the first difference between results for the same values, bit by bit."""
    if got.dtype != expected.dtype:
        return f"got {got.dtype}, expected {expected.dtype}"
    columns = zip(*(each.flatten() for each in (x, got, expected)), strict=True)
    value, first, second = next(each for each in columns if not same(*each[1:]))
    return f"got {first:g}, expected {second:g}, for {value:g} in {x.dtype}"


@check(has_its_own_values_as_fixed_points)
def rounding_is_idempotent(fmt: NumberFormat) -> None:
    """Rounding rounded values does not change them."""
    y = fmt.round(values(special=FINITE))
    again = fmt.round(y)
    if getattr(get_scaling(fmt), "divisor", 1) != 1:  # the scale is a rounded quotient
        torch.testing.assert_close(again, y, rtol=1e-6, atol=0)
    elif getattr(
        get_scaling(fmt), "follows_values", False
    ):  # its other sign, which only zeros show
        assert torch.equal(again, y)
    else:
        assert same(again, y), f"round(round(x)): {describe_difference(y, again, y)}"


@check(is_monotone)
def rounding_is_monotone_among_values_that_share_a_scale(fmt: NumberFormat) -> None:
    """Among values with a shared scale, a larger value does not round to a smaller one."""
    x = values(special=FINITE)
    if get_scaling(fmt) is not None:
        x = get_layout(fmt).groups.join(get_groups(fmt, x).sort(-1).values, x.shape)
        # Padding lies between negative and positive values, so only full groups stay sorted.
        full = get_groups(fmt, torch.ones_like(x)).all(-1)
    else:
        x, full = x.flatten().sort().values, torch.tensor([True])
    y = get_groups(fmt, fmt.round(x))[full]
    assert y.numel() > 0
    assert (y[..., 1:] >= y[..., :-1]).all()


@check(lambda fmt: is_deterministic(fmt) and has_mirror(fmt))
def rounding_mirrors_signs(fmt: NumberFormat) -> None:
    """`-x` rounds to the negative of the rounded `x`."""
    x = values(special=[1e-42, 0.5, 1.0, 1e20])
    element = get_element(fmt)
    if not getattr(element, "is_symmetric", True):  # the range has one more negative value
        limit = element.largest_code * 2.0**-element.frac_width
        x = x.clamp(-limit, limit)
        assert (fmt.round(-x) + fmt.round(x)).abs().max() == 0
        return
    assert (x != 0).all()
    assert torch.equal(fmt.round(-x), -fmt.round(x))


def _code_books(fmt: NumberFormat, x: Tensor) -> Tensor:
    """Returns the value of each code at each position, (codes, *x.shape), for scales of `x`."""
    stored = fmt.encode(x)
    width = 8 * stored.codes.numel() // x.numel()
    element = get_element(fmt)
    count = 3 if isinstance(element, Trit) else 2**width
    books = []
    for code in range(count):
        everywhere = torch.full((x.numel(),), code)
        packed = pack_trits(everywhere) if count == 3 else pack_bits(everywhere, width)
        books.append(fmt.decode(replace(stored, codes=packed)))
    has_spare_code = isinstance(element, Fixed) and element.is_symmetric
    if has_spare_code and element.code == "twos_complement":
        del books[2 ** (width - 1)]  # the lowest code has no counterpart
    together = torch.stack(books)
    finite: Tensor = together.where(together.isfinite(), INF)
    return finite


@check(rounds_to_nearest)
def is_the_nearest_of_all_its_numbers(fmt: NumberFormat) -> None:
    """No code represents a value nearer than the chosen one."""
    normal = torch.randn(24, 96, generator=torch.Generator().manual_seed(0)).double()
    x = normal * torch.logspace(-2, 1, 24).double()[:, None]
    _assert_nearest(fmt, x)
    books = _code_books(fmt, x).sort(0).values
    middles = (books[1:] + books[:-1]) / 2
    ties = middles.gather(0, torch.randint(len(middles), x.shape)[None])[0]
    tops = _largest_of_group(fmt, x)
    _assert_nearest(fmt, torch.where((x.abs() < tops) & (ties.abs() < tops), ties, x))


def _largest_of_group(fmt: NumberFormat, x: Tensor) -> Tensor:
    """Returns the largest magnitude in each element's group; infinity without groups."""
    if get_scaling(fmt) is None:
        return torch.full_like(x, INF)
    groups = get_groups(fmt, x.abs())
    largest = groups.amax(-1, keepdim=True).expand_as(groups)
    joined: Tensor = get_layout(fmt).groups.join(largest, x.shape)
    return joined


def _assert_nearest(fmt: NumberFormat, x: Tensor) -> None:
    """Asserts that `round` returns the nearest value of the code book (log domain for `log`)."""
    books, y = _code_books(fmt, x), fmt.round(x)
    if getattr(get_element(fmt), "rounding", None) == "nearest_log":
        lowest = books.abs().where(books != 0, INF).amin(0)
        inside = (x.abs() >= lowest) & (books.sign() == x.sign())
        distance = (x.abs().log2() - books.abs().log2()).abs()
        best, own = distance.where(inside, INF).amin(0), (x.abs().log2() - y.abs().log2()).abs()
        asked = inside.any(0)
        best, own = best[asked], own[asked]
    else:
        best, own = (x - books).abs().amin(0), (x - y).abs()
    assert (books == y).any(0).all()
    # If a scale is not a power of two, quotients and ties are inexact.
    torch.testing.assert_close(own, best, rtol=1e-9, atol=0)


@check()
def decode_inverts_encode(fmt: NumberFormat) -> None:
    """`decode(encode(x))` equals `round(x)` bit by bit, in the storage size given by `bits`."""
    for dtype in DTYPES:
        x = values(dtype=dtype)
        torch.manual_seed(0)
        encoded = fmt.encode(x.clone().requires_grad_())
        torch.manual_seed(0)
        rounded = fmt.round(x)
        decoded = fmt.decode(encoded)
        assert same(decoded, rounded), (
            f"decode(encode(x)): {describe_difference(x, decoded, rounded)}"
        )
        assert decoded.dtype == dtype and not decoded.requires_grad
        if not fmt.is_identity:
            spare = encoded.size_bytes - fmt.bits(x.shape) * x.numel() / 8
            assert -1e-6 < spare < 2  # bits are a quotient


@check(is_deterministic)
def narrow_inputs_are_rounded_as_wide_ones(fmt: NumberFormat) -> None:
    """Half-precision inputs round like their float64 copies."""
    for dtype in DTYPES[1:]:
        x = values(dtype=dtype)
        wide, limits = fmt.round(x.double()), torch.finfo(dtype)
        expected = wide if fmt.is_identity else wide.clamp(limits.min, limits.max)
        y, expected = fmt.round(x), expected.to(dtype)
        assert same(y, expected), describe_difference(x, y, expected)


@check()
def takes_any_rank(fmt: NumberFormat) -> None:
    """Tensors of any rank, including empty ones, keep their shape."""
    for shape in SHAPES:
        x = torch.randn(shape)
        torch.manual_seed(1)
        y = fmt(x)
        assert y.shape == x.shape
        torch.manual_seed(1)
        assert same(fmt.decode(fmt.encode(x)), y)
        assert fmt.saturates(x).shape == x.shape


@check(has_blocks_along_one_axis)
def takes_any_axis(fmt: NumberFormat) -> None:
    """Blocks along an axis equal those along the last axis of a transposed tensor."""
    last = replace(fmt, block_dim=-1, skip_first_dim=False)
    for shape in [(37,), (5, 37), (3, 40, 5), (3, 7, 4, 21)]:
        x = torch.randn(shape) * 3
        for dim in range(-len(shape), len(shape)):
            y = replace(last, block_dim=dim).round(x)
            assert same(y, last.round(x.movedim(dim, -1)).movedim(-1, dim))


@check(lambda fmt: has_blocks_along_one_axis(fmt) and fmt.name != "nvfp4")  # which has one for all
def blocks_do_not_straddle_rows(fmt: NumberFormat) -> None:
    """Each block rounds independently of the others."""
    last = replace(fmt, block_dim=-1)
    size = get_layout(last).groups.sizes[0]
    x = torch.randn(6, 2 * size + max(size // 3, 1)) * torch.logspace(-3, 3, 6)[:, None]
    together = last.round(x)
    assert same(torch.stack([last.round(row) for row in x]), together)
    alone = [last.round(part) for part in x[0].split(size)]
    assert same(torch.cat(alone), together[0])
    x[3] *= 1000
    assert same(last.round(x)[[0, 1, 2, 4, 5]], together[[0, 1, 2, 4, 5]])


@check()
def special_values_are_as_pinned(fmt: NumberFormat) -> None:
    """NaN stays NaN, and infinities saturate or turn their group into NaN."""
    x = torch.tensor([NAN, 1.0, 0.0, -0.0, 1e-42, 3.4e38])
    y = fmt.round(x)
    assert y[0].isnan()
    poisons_its_block = get_scaling(fmt) is not None and get_scaling(fmt).has_nan
    assert (y[1:].isnan() == poisons_its_block).all()
    x = torch.tensor([INF, 1.0, -INF])
    infinite, share_scale = fmt.round(x), get_groups(fmt, x).size(-2) == 1
    if poisons_its_block:
        assert infinite.isnan().all()
    elif not fmt.is_identity:
        assert infinite.isfinite().all()
        if is_deterministic(fmt) and share_scale:
            assert infinite[0] >= infinite[1] >= infinite[2]
    assert fmt.round(torch.zeros(40)).isfinite().all()


@check(is_deterministic)
def gradients_pass_straight_through_the_operator(fmt: NumberFormat) -> None:
    """The gradient of fake quantization is the identity."""
    x = values().requires_grad_()
    y = fmt(x)
    assert same(y.detach(), fmt.round(x.detach()))
    weights = torch.randn(x.shape)
    (gradient,) = torch.autograd.grad((y * weights).sum(), x)
    assert torch.equal(gradient, weights)


@check(is_deterministic)
def kernels_take_it_right_or_not_at_all(fmt: NumberFormat) -> None:
    """Kernels return the same bits as `round`, or decline."""
    for x in (values(), torch.randn(40, 65) * torch.logspace(-6, 6, 40)[:, None]):
        out = torch.full_like(x, 77.0)
        if KERNELS["cpu"].run(x, fmt, out, None, None):
            assert same(out, fmt.round(x))
        else:
            assert (out == 77.0).all()


@check(lambda fmt: is_deterministic(fmt) and not fmt.is_identity)
def clip_stops_the_gradient_where_values_saturate(fmt: NumberFormat) -> None:
    """With `clip`, the gradient is 0 where `saturates` is true."""
    x = torch.cat([torch.linspace(-40, 40, 1001), torch.tensor([1e30, -1e30])]).requires_grad_()
    (gradient,) = torch.autograd.grad(fmt(x, "clip").sum(), x)
    outside = fmt.saturates(x.detach())
    assert torch.equal(gradient, (~outside).float())
    has_fixed_range = all(fmt.saturates(torch.tensor([end])).all() for end in (1e30, -1e30))
    assert (outside[-1] and outside[-2]) or not has_fixed_range


@check()
def key_pickle_and_copy_give_the_same_format(fmt: NumberFormat) -> None:
    """Key, pickle and copies give an equal format."""
    assert from_key(fmt.key) == fmt
    assert pickle.loads(pickle.dumps(fmt)) == fmt
    assert copy.deepcopy(fmt) == fmt
    assert hash(fmt) == hash(from_key(fmt.key))
    assert parse_format(fmt) is fmt


@check(is_deterministic)
def the_memory_layout_is_preserved_and_does_not_matter(fmt: NumberFormat) -> None:
    """Strides are preserved and do not affect results."""
    x = torch.randn(2, 5, 4, 6)
    for other in (x.to(memory_format=torch.channels_last), x.transpose(1, 3).contiguous().mT.mT):
        assert fmt(other).stride() == torch.empty_like(other).stride()
        assert torch.equal(fmt(other), fmt(other.contiguous()))
    if not fmt.is_identity:
        assert fmt(x.mT).stride() == x.mT.stride()


@check(is_deterministic)
def large_tensors_are_rounded_like_their_parts(fmt: NumberFormat) -> None:
    """Slices of a tensor round as in the whole tensor."""
    x = torch.randn(3, 130, 96) * 3
    y = fmt.round(x)
    assert same(fmt.decode(fmt.encode(x)), y)
    if rounds_parts_alike(fmt):
        assert torch.equal(torch.stack([fmt.round(part) for part in x]), y)


@check()
def compiles_as_one_node(fmt: NumberFormat) -> None:
    """`torch.compile` compiles fake quantization without a graph break."""
    torch.compiler.reset()
    x = values(64, special=FINITE)
    compiled = torch.compile(lambda t: fmt(t) * 2, fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)
    y = compiled(x)
    torch.manual_seed(0)
    assert torch.equal(y, fmt(x) * 2)


@check(lambda fmt: is_deterministic(fmt) and not fmt.is_identity)
def is_a_wellformed_torch_operator(fmt: NumberFormat) -> None:
    """The operators pass `torch.library.opcheck`."""
    for operator in (torch.ops.chop.fake_quantize, torch.ops.chop.fake_quantize_marking):
        x = torch.randn(3, 4, requires_grad=True)
        torch.library.opcheck(operator.default, (x, fmt.key))


ONCE_PER_KIND = (compiles_as_one_node, is_a_wellformed_torch_operator)
"""Slow laws whose code does not depend on the settings of a format."""


def search_space_holds_valid_settings(example: NumberFormat) -> None:
    """Each choice of the search space is valid with the example's other fields."""
    kind = type(example)
    known = set(vars(kind)["__dataclass_fields__"])
    unknown = sorted(set(kind.search_space) - known)
    assert not unknown, f"the class has no fields {unknown}"
    room = {"width": {"exponent_width": 2}, "exponent_width": {"width": 8}}
    for field, choices in kind.search_space.items():
        others = {key: value for key, value in room.get(field, {}).items() if key in known}
        for value in choices:
            fmt = replace(example, **others, **{field: value})
            assert fmt.round(torch.ones(2)).shape == (2,)
            assert math.isfinite(fmt.bits())
