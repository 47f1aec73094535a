"""Hadamard matrices: H of signs with H H^T = n I, of every order that a handful of constructions give.

Sylvester's doubling and the Kronecker product of two; Paley I (q + 1, q = 3 mod 4) and II (2(q + 1), q = 1 mod 4) for
prime powers q; Williamson's four symmetric circulants where nothing else serves (92, 116, 156, 172). Up to 4096 that is
more than two thirds of the multiples of 4, up to 200 all but 188, and the width of every foundation model we know of.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from scipy.linalg import toeplitz

# First halves (entry 0 to (w - 1) / 2) of the first rows of four symmetric circulants A, B, C, D of order w with
# A^2 + B^2 + C^2 + D^2 = 4 w I, found by search (J. Williamson, Duke Math. J. 11, 1944, gives the construction).
_WILLIAMSON = {
    23: ("+++++-++---+", "+-+++--++-+-", "+-+--+++++--", "+--++-+-+---"),
    29: ("+-+--+-+++++--+", "++-+-++++--+---", "++-++-+++---+++", "++-+-++----+--+"),
    39: ("+---+---+-++-++----+", "+-++------++--+-+-++", "++--+++-+--++-+-----", "+---+--++++----+-+-+"),
    43: (
        "+--+-+--++++-+--+++-++",
        "+-+-++--++-+++++---++-",
        "+-+------++++-+-++--+-",
        "+++--++++-+-+++-++----",
    ),
}


def has_hadamard(order: int) -> bool:
    """Whether :func:`hadamard` can make a matrix of this order."""
    return _recipe(order) is not None


@functools.lru_cache(maxsize=4)
def hadamard(order: int) -> np.ndarray:
    """A Hadamard matrix, int8 ``[order, order]`` of 1 and -1; the same at every call, read-only.

    Raises:
        ValueError: none of the constructions gives this order.
    """
    recipe = _recipe(order)
    if recipe is None:
        raise ValueError(f"no Hadamard matrix of order {order} by these constructions")
    kind, *numbers = recipe
    found = _MAKERS[kind](*numbers)
    wide = found.astype(np.float32)  # exact: the sums are whole numbers of at most `order`
    if kind != "kronecker" and not np.array_equal(wide @ wide.T, order * np.eye(order, dtype=np.float32)):
        raise AssertionError(f"construction {recipe} is wrong")
    found.flags.writeable = False
    return found


@functools.lru_cache(maxsize=4)
def mixing_matrix(order: int) -> np.ndarray:
    """An orthogonal matrix whose entries are as alike in size as can be had, float64 ``[order, order]``, read-only.

    The Hadamard matrix of this order over its root; where there is none, the orthogonal factor of a random sign matrix
    with a seed of its own.
    """
    if has_hadamard(order):
        found = hadamard(order) / np.sqrt(order)
    else:
        signs = np.random.default_rng([0x48, order]).integers(0, 2, (order, order)) * 2.0 - 1
        factor, triangle = np.linalg.qr(signs)
        found = factor * np.where(np.diag(triangle) < 0, -1.0, 1.0)  # with a positive diagonal it is unique
    found.flags.writeable = False
    return found


@functools.cache
def _recipe(order: int) -> tuple | None:
    """A construction and its numbers."""
    if order in (1, 2):
        return ("trivial", order)
    if order < 1 or order % 4:
        return None
    if order & (order - 1) == 0:
        return ("kronecker", 2, order // 2)
    if (order - 1) % 4 == 3 and _prime_power(order - 1):
        return ("paley_1", order - 1)
    if (order // 2 - 1) % 4 == 1 and _prime_power(order // 2 - 1):
        return ("paley_2", order // 2 - 1)
    if order // 4 in _WILLIAMSON:
        return ("williamson", order // 4)
    for a in range(2, int(order**0.5) + 1):
        if order % a == 0 and _recipe(a) and _recipe(order // a):
            return ("kronecker", a, order // a)
    return None


def _trivial(order: int) -> np.ndarray:
    return np.array([[1, 1], [1, -1]], np.int8)[:order, :order].copy()


def _kronecker(a: int, b: int) -> np.ndarray:
    return np.kron(hadamard(a), hadamard(b))


def _paley_1(q: int) -> np.ndarray:
    found = np.ones((q + 1, q + 1), np.int8)
    found[1:, 0] = -1
    found[1:, 1:] = _jacobsthal(q) + np.eye(q, dtype=np.int8)
    return found


def _paley_2(q: int) -> np.ndarray:
    conference = np.ones((q + 1, q + 1), np.int8)
    conference[0, 0] = 0
    conference[1:, 1:] = _jacobsthal(q)
    same, zero = np.array([[1, 1], [1, -1]], np.int8), np.array([[1, -1], [-1, -1]], np.int8)
    return np.kron(conference, same) + np.kron(np.eye(q + 1, dtype=np.int8), zero)


def _williamson(w: int) -> np.ndarray:
    halves = [np.array([1 if sign == "+" else -1 for sign in half], np.int8) for half in _WILLIAMSON[w]]
    rows = [np.concatenate([half, half[:0:-1]]) for half in halves]
    a, b, c, d = (toeplitz(row) for row in rows)  # symmetric rows: a Toeplitz matrix is the circulant
    return np.block([[a, b, c, d], [-b, a, -d, c], [-c, d, a, -b], [-d, -c, b, a]])


_MAKERS: dict[str, Callable[..., np.ndarray]] = {
    "trivial": _trivial,
    "kronecker": _kronecker,
    "paley_1": _paley_1,
    "paley_2": _paley_2,
    "williamson": _williamson,
}


def _prime_power(n: int) -> tuple[int, int] | None:
    """(p, k) with ``n = p**k``, p prime; else None."""
    if n < 2:
        return None
    p = next((d for d in range(2, int(n**0.5) + 1) if n % d == 0), n)
    k = 0
    while n % p == 0:
        n, k = n // p, k + 1
    return (p, k) if n == 1 else None


def _jacobsthal(q: int) -> np.ndarray:
    """Q[i, j] = 1 where x_i - x_j is a square of GF(q) other than 0, -1 where it is none, 0 on the diagonal; int8."""
    power = _prime_power(q)
    assert power is not None, q  # as the recipe says
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
    """Numbers of the squares of all elements of the field of polynomials ``digits`` ``[q, k]`` over GF(p), p odd."""
    q, k = digits.shape
    products = np.zeros((q, 2 * k - 1), np.int64)
    for i in range(k):
        products[:, i : i + k] += digits[:, i : i + 1] * digits
    for low in digits:  # x^k + low: reducible ones give a ring with fewer squares
        rest = products % p
        for degree in range(2 * k - 2, k - 1, -1):
            rest[:, degree - k : degree] = (rest[:, degree - k : degree] - rest[:, degree : degree + 1] * low) % p
        numbers = np.unique(rest[:, :k] @ p ** np.arange(k))
        if len(numbers) == (q + 1) // 2:
            return numbers
    raise AssertionError(f"no irreducible polynomial of degree {k} over GF({p})")
