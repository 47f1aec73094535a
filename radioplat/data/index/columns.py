"""An array-like column of the index that reads its values from disk on access."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class Column(np.lib.mixins.NDArrayOperatorsMixin):
    """Numbers ``[N]``. Indexing reads only the blocks of the indexed rows; arithmetic reads the whole column.

    Args:
        length: ``N``.
        dtype: of the numbers.
        take: returns the values of rows, int64 ``[n]``, all in range.
        whole: returns all values.
    """

    def __init__(
        self,
        length: int,
        dtype: np.dtype | type,
        take: Callable[[np.ndarray], np.ndarray],
        whole: Callable[[], np.ndarray],
    ) -> None:
        self.dtype, self.shape, self.size = np.dtype(dtype), (length,), length
        self._take, self._whole = take, whole

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, rows: Any) -> Any:
        if isinstance(rows, (int, np.integer)):
            row = int(rows) + (self.size if rows < 0 else 0)
            if not 0 <= row < self.size:
                raise IndexError(f"row {rows} of {self.size}")
            return self._take(np.array([row]))[0]
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(self.size))
        rows = np.asarray(rows)
        if rows.dtype == bool:
            rows = np.flatnonzero(rows)
        rows = rows.astype(np.int64, copy=False)
        rows = np.where(rows < 0, rows + self.size, rows)
        if rows.size and not (0 <= rows.min() and rows.max() < self.size):
            raise IndexError(f"a row beyond {self.size}")
        return self._take(rows.reshape(-1)).reshape(rows.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._whole(), dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return getattr(ufunc, method)(*(np.asarray(i) if isinstance(i, Column) else i for i in inputs), **kwargs)

    def astype(self, dtype: Any) -> np.ndarray:
        """Read the whole column as another type."""
        return np.asarray(self).astype(dtype)

    def tolist(self) -> list:
        """Read the whole column as Python numbers."""
        return np.asarray(self).tolist()

    def sum(self) -> np.generic:
        """Sum the whole column."""
        return np.asarray(self).sum()
