"""Hadamard transform: blocks of n numbers times an orthogonal matrix of +-1, in n log n steps.

A matrix H of +-1 with H H^T = n I exists for n = 2^k (Sylvester 1867) and, by squares in a finite
field, for n = q + 1 and 2 (q + 1) with q a power of a prime (Paley 1933, J. Math. and Phys. 12).
The Kronecker product of two Hadamard matrices is one too. Orders here are a base order times a
power of two.
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
"""Largest base order: it is multiplied as a dense matrix."""
MOST_FACTOR = 32
"""Largest power of two multiplied as a dense matrix, which is as fast as its butterflies."""


def hadamard_factors(order: int) -> tuple[int, ...] | None:
    """Returns orders whose Kronecker product is a Hadamard matrix, or None if none is known.

    Args:
        order: number of rows, at least 1.
    Returns: a Paley base order unless `order` is a power of two, then powers of two.

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
    """Returns the largest supported block size that divides a number of features.

    Args:
        features: number of features.
        most: upper limit of the block size; None for no limit.

    Example:
        >>> largest_block(576), largest_block(11008), largest_block(90)
        (576, 11008, 2)
    """
    start = features if most is None else min(features, most)
    divisors = (n for n in range(start, 0, -1) if features % n == 0)
    return next(n for n in divisors if hadamard_factors(n) is not None)


def hadamard_matrix(order: int) -> Tensor:
    """Returns a Hadamard matrix, float64 (order, order) of +-1: the readable reference.

    Raises:
        ConfigError: if no matrix of that order is known.
    """
    matrix = torch.ones(1, 1, dtype=torch.float64)
    for factor in _factorize(order):
        matrix = torch.kron(matrix, _base_matrix(factor))
    return matrix


def hadamard_reference(x: Tensor, block: int) -> Tensor:
    """Computes `hadamard_transform` as a product with the whole matrix."""
    matrix = hadamard_matrix(block).to(x.device, x.dtype) / math.sqrt(block)
    y: Tensor = x.unflatten(-1, (-1, block)) @ matrix.T
    return y.flatten(-2)


def hadamard_transform(x: Tensor, block: int) -> Tensor:
    """Multiplies each block of the last dimension by H^T / sqrt(n), which preserves its norm.

    Each number takes `sum(hadamard_factors(block))` multiplications. Half precision is computed in
    float32 and rounded once.

    Args:
        x: (..., features), floating.
        block: supported order that divides the number of features.
    Returns: tensor of the same shape and dtype.

    Raises:
        ConfigError: if no matrix of that order is known, or if the block does not divide the
            features.

    Example:
        >>> hadamard_transform(torch.tensor([3.0, 1.0, 1.0, 1.0]), 4)
        tensor([3., 1., 1., 1.])
    """
    factors, features = _factorize(block), x.shape[-1]
    if features % block:
        raise ConfigError(f"hadamard: the block size {block} does not divide {features} features.")
    wide = torch.promote_types(x.dtype, torch.float32)
    y, behind = x.to(wide), block
    # A Kronecker product acts on one axis per factor: the block is viewed as such axes in turn.
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
            f"hadamard: no matrix of order {order} is known. The largest supported block that "
            f"divides it is {largest_block(order)}."
        )
    return factors


def _scaled_matrix(order: int, like: Tensor) -> Tensor:
    """Returns the orthogonal matrix in the device and dtype of `like`; cached unless tracing."""
    # A tracer's tensors must not enter the cache.
    if torch.compiler.is_compiling() or detect_fake_mode(like) is not None:
        return _make_matrix(order).to(like.device, like.dtype)
    return _cached_matrix(order, like.device, like.dtype)


@lru_cache(maxsize=64)
def _cached_matrix(order: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):  # gradients of later calls need it
        return _make_matrix(order).to(device, dtype)


def _make_matrix(order: int) -> Tensor:
    return _base_matrix(order) / math.sqrt(order)


def _base_matrix(order: int) -> Tensor:
    """Returns the matrix of one factor, by Sylvester's or one of Paley's constructions."""
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
        # Paley I: -1 is not a square, so the characters are skew-symmetric. Adding the identity
        # fills the zero diagonal.
        bordered[1:, 0] = -1
        return bordered + torch.eye(q + 1, dtype=torch.float64)
    # Paley II: the characters are symmetric; a 2 x 2 block takes the place of each entry.
    inner = torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double()
    diagonal = torch.tensor([[1.0, -1.0], [-1.0, -1.0]]).double()
    return torch.kron(bordered, inner) + torch.kron(torch.eye(q + 1).double(), diagonal)


def _paley_field(order: int) -> tuple[int, int] | None:
    """Returns the prime and exponent of the field for a Paley matrix of an order, or None."""
    if order % 4:
        return None
    for q, remainder in ((order - 1, 3), (order // 2 - 1, 1)):
        # The smallest divisor of a prime power is its prime.
        prime = next((p for p in range(2, math.isqrt(max(q, 0)) + 1) if q % p == 0), q)
        degree = round(math.log(q, prime)) if q > 2 else 0
        if q % 4 == remainder and degree in (1, 2, 3) and prime**degree == q:
            return prime, degree
    return None


def _characters(prime: int, degree: int) -> Tensor:
    """Returns the quadratic character of a - b for all pairs of a field: 0, 1 for squares, else -1.

    Elements are polynomials below `degree`, modulo an irreducible polynomial. A polynomial of
    degree 2 or 3 is irreducible if it has no root.
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
    """Returns x * x modulo the polynomial t^degree + low, over the integers modulo a prime."""
    degree, product = len(x), [0] * (2 * len(x) - 1)
    for (i, a), (j, b) in itertools.product(enumerate(x), repeat=2):
        product[i + j] += a * b
    # t^degree = -low, applied from the highest power down.
    for top in range(len(product) - 1, degree - 1, -1):
        for i, c in enumerate(low):
            product[top - degree + i] -= product[top] * c
    return tuple(c % prime for c in product[:degree])
