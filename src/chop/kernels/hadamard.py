"""Hadamard transform: blocks of n numbers times an orthogonal matrix of +-1, in n log n steps.

A matrix H of +-1 with H H^T = n I exists for n = 2^k (Sylvester 1867) and, by squares in a finite
field, for n = q + 1 and 2 (q + 1) with q a power of a prime (Paley 1933, J. Math. and Phys. 12).
A Kronecker product of two is one again, so that orders are a base order times a power of two.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

import torch
from torch import Tensor

from chop.errors import ConfigError
from chop.private.torch_api import detect_fake_mode

MOST_BASE = 1024
"""Largest order that is multiplied as it is: more is no fast transform."""
MOST_FACTOR = 32
"""Largest power of two that is multiplied at once: as fast as its butterflies on CPUs and GPUs."""


def hadamard_factors(order: int) -> tuple[int, ...] | None:
    """Orders whose Kronecker product is a Hadamard matrix; None where none is known here.

    Args:
        order: the number of rows, at least 1.
    Returns: a base order of Paley's where `order` is no power of two, then powers of two.

    Example:
        >>> hadamard_factors(1536), hadamard_factors(64), hadamard_factors(18)
        ((12, 16, 8), (8, 8), None)
    """
    base = odd = order // (order & -order)
    while base > 1 and (base > min(order, MOST_BASE) or _paley_field(base) is None):
        base *= 2
        if order % base or base > MOST_BASE:
            return None
    assert base % odd == 0
    bits = (order // base).bit_length() - 1
    count = -(-bits // (MOST_FACTOR.bit_length() - 1))
    powers = [2 ** (bits // count + (i < bits % count)) for i in range(count)]
    return (*([base] if base > 1 else []), *powers)


def largest_block(features: int, most: int | None = None) -> int:
    """The largest known order that divides a number of features: blocks of it are rotated.

    Args:
        features: their number.
        most: what the order is at most; None: any.

    Example:
        >>> largest_block(576), largest_block(11008), largest_block(90)
        (576, 11008, 2)
    """
    start = features if most is None else min(features, most)
    divisors = (n for n in range(start, 0, -1) if features % n == 0)
    return next(n for n in divisors if hadamard_factors(n) is not None)


def hadamard_matrix(order: int) -> Tensor:
    """A Hadamard matrix, float64 (order, order) of +-1: the readable reference.

    Raises:
        ConfigError: none of that order is known here.
    """
    matrix = torch.ones(1, 1, dtype=torch.float64)
    for factor in _factorize(order):
        matrix = torch.kron(matrix, _base_matrix(factor))
    return matrix


def hadamard_reference(x: Tensor, block: int) -> Tensor:
    """`hadamard_transform` as a product with the whole matrix."""
    matrix = hadamard_matrix(block).to(x.device, x.dtype) / math.sqrt(block)
    y: Tensor = x.unflatten(-1, (-1, block)) @ matrix.T
    return y.flatten(-2)


def hadamard_transform(x: Tensor, block: int) -> Tensor:
    """Each block of the last dimension times H^T / sqrt(n): the norm of a block stays.

    It takes `sum(hadamard_factors(block))` multiplications a number. Half precision is computed in
    float32 and rounded once.

    Args:
        x: (..., features), floating.
        block: a known order that divides the features.
    Returns: the same shape and dtype.

    Raises:
        ConfigError: no matrix of that order is known, or the block does not divide the features.

    Example:
        >>> hadamard_transform(torch.tensor([3.0, 1.0, 1.0, 1.0]), 4)
        tensor([3., 1., 1., 1.])
    """
    factors, features = _factorize(block), x.shape[-1]
    if features % block:
        raise ConfigError(f"hadamard: blocks of {block} do not divide {features} features.")
    wide = torch.promote_types(x.dtype, torch.float32)
    y, behind = x.to(wide), block
    for factor in factors:
        behind //= factor
        matrix = _scaled_matrix(factor, y)
        parts = y.reshape(-1, factor, behind)
        y = matrix @ parts if behind > 1 else parts.squeeze(-1) @ matrix.T
    return y.reshape(x.shape).to(x.dtype)


def _factorize(order: int) -> tuple[int, ...]:
    factors = hadamard_factors(order)
    if factors is None:
        raise ConfigError(
            f"hadamard: no matrix of order {order} is known here; blocks of "
            f"{largest_block(order)} divide it."
        )
    return factors


def _scaled_matrix(order: int, like: Tensor) -> Tensor:
    """The orthogonal matrix on the device and in the dtype of `like`, kept where it is real."""
    if torch.compiler.is_compiling() or detect_fake_mode(like) is not None:
        return _made(order).to(like.device, like.dtype)
    return _kept(order, like.device, like.dtype)


@lru_cache(maxsize=64)
def _kept(order: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):  # gradients of later calls need it
        return _made(order).to(device, dtype)


def _made(order: int) -> Tensor:
    return _base_matrix(order) / math.sqrt(order)


def _base_matrix(order: int) -> Tensor:
    """The matrix of one factor: Sylvester's or one of Paley's."""
    if order & (order - 1) == 0:
        matrix = torch.ones(1, 1, dtype=torch.float64)
        while len(matrix) < order:
            matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double(), matrix)
        return matrix
    field = _paley_field(order)
    assert field is not None
    q = field[0] ** field[1]
    bordered = torch.ones(q + 1, q + 1, dtype=torch.float64)
    bordered[0, 0] = 0
    bordered[1:, 1:] = _characters(*field)
    if q % 4 == 3:
        bordered[1:, 0] = -1
        return bordered + torch.eye(q + 1, dtype=torch.float64)
    inner = torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double()
    diagonal = torch.tensor([[1.0, -1.0], [-1.0, -1.0]]).double()
    return torch.kron(bordered, inner) + torch.kron(torch.eye(q + 1).double(), diagonal)


def _paley_field(order: int) -> tuple[int, int] | None:
    """The prime and the exponent of the field that makes a matrix of an order; None without one."""
    if order % 4:
        return None
    for q, remainder in ((order - 1, 3), (order // 2 - 1, 1)):
        prime = next((p for p in range(2, math.isqrt(max(q, 0)) + 1) if q % p == 0), q)
        degree = round(math.log(q, prime)) if q > 2 else 0
        if q % 4 == remainder and degree in (1, 2, 3) and prime**degree == q:
            return prime, degree
    return None


def _characters(prime: int, degree: int) -> Tensor:
    """The quadratic character of a - b, for all a and b of a field: 0, 1 for squares, else -1.

    Elements are polynomials below `degree`, modulo an irreducible one: of degree 2 or 3 that is
    one without a root.
    """
    elements = list(itertools.product(range(prime), repeat=degree))  # lowest coefficient first
    modulus = next(
        low
        for low in elements
        if degree == 1
        or all((x**degree + sum(c * x**i for i, c in enumerate(low))) % prime for x in range(prime))
    )
    squares = {_square(x, modulus, prime) for x in elements[1:]}
    known = torch.tensor([0.0] + [1.0 if x in squares else -1.0 for x in elements[1:]]).double()
    digits = torch.tensor(elements)
    difference = (digits[:, None] - digits[None]) % prime
    places = torch.tensor([prime ** (degree - 1 - i) for i in range(degree)])
    return known[(difference * places).sum(-1)]


def _square(x: tuple[int, ...], low: tuple[int, ...], prime: int) -> tuple[int, ...]:
    """x * x modulo the polynomial t^degree + low, over the integers modulo a prime."""
    degree, product = len(x), [0] * (2 * len(x) - 1)
    for (i, a), (j, b) in itertools.product(enumerate(x), repeat=2):
        product[i + j] += a * b
    for top in range(len(product) - 1, degree - 1, -1):
        for i, c in enumerate(low):
            product[top - degree + i] -= product[top] * c
    return tuple(c % prime for c in product[:degree])
