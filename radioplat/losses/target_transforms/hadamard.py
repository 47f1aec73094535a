"""Hadamard matrices: H of entries 1 and -1 with H H^T = n I.

Powers of two by Sylvester's doubling (scipy); Paley I (order q + 1, q = 3 mod 4) and Paley II (2(q + 1), q = 1 mod 4)
for prime powers q (1360, RegNetX's width, needs 169); Kronecker products of two. Up to 200 only 92, 116, 156, 172, 184
and 188 are missing, none of which is the width of a teacher in timm or of a foundation model we know.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np


def has_hadamard(order: int) -> bool:
    """Return whether :func:`hadamard` can make a matrix of this order."""
    return _recipe(order) is not None


@functools.lru_cache(maxsize=4)
def hadamard(order: int) -> np.ndarray:
    """Return a Hadamard matrix, int8 ``[order, order]`` of 1 and -1; the same at every call, read-only.

    Raises:
        ValueError: none of the constructions gives this order.
    """
    recipe = _recipe(order)
    if recipe is None:
        raise ValueError(f"no Hadamard matrix of order {order} by these constructions")
    kind, *numbers = recipe
    matrix = _MAKERS[kind](*numbers)
    wide = matrix.astype(np.float32)  # exact: the sums are whole numbers of at most `order`
    if kind.startswith("paley") and not np.array_equal(wide @ wide.T, order * np.eye(order, dtype=np.float32)):
        raise AssertionError(f"construction {recipe} is wrong")
    matrix.flags.writeable = False
    return matrix


@functools.lru_cache(maxsize=4)
def mixing_matrix(order: int) -> np.ndarray:
    """Return an orthogonal matrix with entries of similar magnitude, float64 ``[order, order]``, read-only.

    The Hadamard matrix of this order divided by sqrt(order); if there is none, the orthogonal factor of a random sign
    matrix, seeded by the order.
    """
    if has_hadamard(order):
        matrix = hadamard(order) / np.sqrt(order)
    else:
        signs = np.random.default_rng([0x48, order]).integers(0, 2, (order, order)) * 2.0 - 1
        factor, triangle = np.linalg.qr(signs)
        matrix = factor * np.where(np.diag(triangle) < 0, -1.0, 1.0)  # with a positive diagonal it is unique
    matrix.flags.writeable = False
    return matrix


@functools.cache
def _recipe(order: int) -> tuple | None:
    """Return a construction and its arguments; None if no construction gives this order."""
    if order > 0 and order & (order - 1) == 0:
        return ("sylvester", order)
    if order < 1 or order % 4:
        return None
    if (order - 1) % 4 == 3 and _prime_power(order - 1):
        return ("paley_1", order - 1)
    if (order // 2 - 1) % 4 == 1 and _prime_power(order // 2 - 1):
        return ("paley_2", order // 2 - 1)
    for a in range(2, int(order**0.5) + 1):
        if order % a == 0 and _recipe(a) and _recipe(order // a):
            return ("kronecker", a, order // a)
    return None


def _sylvester(order: int) -> np.ndarray:
    import scipy.linalg  # here: importing it takes 0.125 s in each process

    return scipy.linalg.hadamard(order, np.int8)


def _kronecker(a: int, b: int) -> np.ndarray:
    return np.kron(hadamard(a), hadamard(b))


def _paley_1(q: int) -> np.ndarray:
    matrix = np.ones((q + 1, q + 1), np.int8)
    matrix[1:, 0] = -1
    matrix[1:, 1:] = _jacobsthal(q) + np.eye(q, dtype=np.int8)
    return matrix


def _paley_2(q: int) -> np.ndarray:
    conference = np.ones((q + 1, q + 1), np.int8)
    conference[0, 0] = 0
    conference[1:, 1:] = _jacobsthal(q)
    same, zero = np.array([[1, 1], [1, -1]], np.int8), np.array([[1, -1], [-1, -1]], np.int8)
    return np.kron(conference, same) + np.kron(np.eye(q + 1, dtype=np.int8), zero)


_MAKERS: dict[str, Callable[..., np.ndarray]] = {
    "sylvester": _sylvester,
    "kronecker": _kronecker,
    "paley_1": _paley_1,
    "paley_2": _paley_2,
}


def _prime_power(n: int) -> tuple[int, int] | None:
    """Return (p, k) with ``n = p**k``, p prime; else None."""
    if n < 2:
        return None
    p = next((d for d in range(2, int(n**0.5) + 1) if n % d == 0), n)
    k = 0
    while n % p == 0:
        n, k = n // p, k + 1
    return (p, k) if n == 1 else None


def _jacobsthal(q: int) -> np.ndarray:
    """Return Q, int8: Q[i, j] = 1 if x_i - x_j is a nonzero square of GF(q), -1 if it is no square, 0 if i = j."""
    power = _prime_power(q)
    assert power is not None, q  # _recipe returns only prime powers
    p, k = power
    # Element number i is the polynomial with these coefficients.
    digits = np.arange(q)[:, None] // p ** np.arange(k) % p
    character = np.full(q, -1, np.int8)
    character[_squares(digits, p)] = 1
    character[0] = 0
    difference = np.zeros((q, q), np.int64)
    for place in range(k):
        column = digits[:, place]
        difference += (column[:, None] - column[None]) % p * p**place
    return character[difference]


def _squares(digits: np.ndarray, p: int) -> np.ndarray:
    """Return the numbers of the squares of all elements ``digits`` ``[q, k]``, polynomials over GF(p), p odd."""
    q, k = digits.shape
    products = np.zeros((q, 2 * k - 1), np.int64)
    for i in range(k):
        products[:, i : i + k] += digits[:, i : i + 1] * digits
    for low in digits:  # x^k + low: a reducible polynomial has fewer squares
        rest = products % p
        for degree in range(2 * k - 2, k - 1, -1):
            rest[:, degree - k : degree] = (rest[:, degree - k : degree] - rest[:, degree : degree + 1] * low) % p
        numbers = np.unique(rest[:, :k] @ p ** np.arange(k))
        if len(numbers) == (q + 1) // 2:
            return numbers
    raise AssertionError(f"no irreducible polynomial of degree {k} over GF({p})")
