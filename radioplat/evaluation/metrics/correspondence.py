"""Dense correspondence: find positions of an image, by features alone, in a copy warped by a known homography.

Coordinates are those of ``radioplat.data.views.render``: pixel (i, j) is a square whose centre is (j + 0.5, i + 0.5),
and a cell of a map of n columns over a view of S pixels has its centre at (column + 0.5) S / n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from radioplat.errors import RadioplatError
from radioplat.evaluation.metrics.encoded_batch import EncodedBatch
from radioplat.evaluation.metrics.metric import Metric, Setup, percentage
from radioplat.spec.schema.evaluate import CorrespondenceConfig
from radioplat.tracking.table import Table


@dataclass(frozen=True)
class CorrespondenceResult:
    """Result of a :class:`CorrespondenceMeter`.

    Attributes:
        pck: share of points found within a distance (Yang and Ramanan 2013), by that distance relative to the image's
            side.
        ceiling: the same if each point were matched with the cell nearest to its true place: the limit of this grid.
        count: number of points.
        images: number of image pairs.
    """

    pck: dict[float, float]
    ceiling: dict[float, float]
    count: int
    images: int


def draw_homography(config: CorrespondenceConfig, seed: int, ordinal: int) -> np.ndarray:
    """Draw a homography, float64 ``[3, 3]``, between the unit squares of an image and its copy, by ``(seed, ordinal)``.

    Rotation, zoom and tilt are about the middle; zoom is uniform in its logarithm.
    """
    rng = np.random.default_rng([seed, ordinal])
    angle, zoom, shift_x, shift_y, tilt_x, tilt_y = rng.uniform(-1, 1, 6)
    angle = math.radians(config.max_rotation) * angle
    scale = math.exp(math.log(config.max_zoom) * zoom)
    cos, sin = scale * math.cos(angle), scale * math.sin(angle)
    turn = np.array([[cos, -sin, config.max_shift * shift_x], [sin, cos, config.max_shift * shift_y], [0, 0, 1.0]])
    # A tilt changes the scale towards the edges, half a side from the middle.
    tilt = np.array([[1, 0, 0], [0, 1, 0], [config.max_tilt * tilt_x, config.max_tilt * tilt_y, 1.0]])
    middle = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1.0]])
    matrix = middle @ turn @ tilt @ np.linalg.inv(middle)
    return matrix / matrix[2, 2]


def apply(matrix: np.ndarray | Tensor, points: Tensor) -> Tensor:
    """Map points (x, y), fp64 ``[..., 2]``, by a homography ``[3, 3]``."""
    matrix = torch.as_tensor(np.asarray(matrix), dtype=torch.float64)
    mapped = points @ matrix[:, :2].T + matrix[:, 2]
    return mapped[..., :2] / mapped[..., 2:]


def warp(images: Tensor, matrices: list[np.ndarray]) -> Tensor:
    """Warp each image of uint8 ``[B, 3, S, S]`` by its own homography of unit squares; bilinear, black outside."""
    side = images.shape[-1]
    centres = _centres(side, side)
    grids = torch.stack([2 * apply(np.linalg.inv(m), centres) - 1 for m in matrices]).float()
    warped = F.grid_sample(images.float(), grids.to(images.device), mode="bilinear", align_corners=False)
    return warped.round().clamp(0, 255).to(torch.uint8)


class CorrespondenceMeter:
    """Accumulates :class:`CorrespondenceResult` over pairs of maps.

    A point is the centre of a cell of the first map that the homography maps into the second image. It is matched with
    the centre of the cell whose feature has the highest cosine with it.
    """

    def __init__(self, thresholds: list[float]) -> None:
        self._thresholds = sorted(thresholds)
        self._hits = torch.zeros(len(thresholds), dtype=torch.float64)
        self._possible = torch.zeros(len(thresholds), dtype=torch.float64)
        self._count = self._images = 0

    def update(self, first: Tensor, second: Tensor, matrices: list[np.ndarray]) -> None:
        """Add maps ``[B, h, w, D]`` of images and of their warped copies, with the homographies between them.

        Raises:
            RadioplatError: a feature is not finite.
        """
        if not (first.isfinite().all() and second.isfinite().all()):
            raise RadioplatError("features for correspondence are not finite")
        sources, targets = _centres(*first.shape[1:3]).flatten(0, 1), _centres(*second.shape[1:3]).flatten(0, 1)
        limits = torch.tensor(self._thresholds, dtype=torch.float64)
        for ours, theirs, matrix in zip(first, second, matrices, strict=True):
            truth = apply(matrix, sources)
            inside = ((truth >= 0) & (truth < 1)).all(-1)
            a, b = (F.normalize(x.detach().float().flatten(0, 1), dim=1) for x in (ours, theirs))
            answer = targets[(a[inside.to(a.device)] @ b.T).argmax(1).cpu()]
            nearest = torch.cdist(truth[inside], targets).amin(1)
            error = (answer - truth[inside]).norm(dim=1)
            self._hits += (error[:, None] <= limits).double().sum(0)
            self._possible += (nearest[:, None] <= limits).double().sum(0)
            self._count += int(inside.sum())
            self._images += 1

    def result(self) -> CorrespondenceResult:
        """Return the shares over all points so far.

        Raises:
            RadioplatError: there are no points.
        """
        if not self._count:
            raise RadioplatError("no held-out image to find correspondences in", where="dataset.val_dataset")
        shares = [(x / self._count).tolist() for x in (self._hits, self._possible)]
        pck, ceiling = (dict(zip(self._thresholds, values, strict=True)) for values in shares)
        return CorrespondenceResult(pck, ceiling, self._count, self._images)


class Correspondence(Metric):
    """Metric ``correspondence``: a :class:`CorrespondenceResult` for each model.

    It uses the first held-out images and a warped copy of each.
    """

    name = "correspondence"
    switch = "correspondence.enable"
    option = ("correspondence", "correspondence.enable")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._config = setup.spec.evaluate.correspondence
        self._warped = 0
        self._meters = {name: CorrespondenceMeter(self._config.thresholds) for name in setup.at_usual_size}

    def update(self, batch: EncodedBatch) -> None:
        """Add a batch of held-out images."""
        count = min(self._config.images - self._warped, len(batch))
        if count < 1:
            return
        seed = self.setup.spec.dataset.val_dataset.seed
        matrices = [draw_homography(self._config, seed, self._warped + i) for i in range(count)]
        self._warped += count
        for name, meter in self._meters.items():
            model = self.setup.models[name]
            copies = model.encode(warp(batch.pixels[model.size][:count], matrices))
            meter.update(batch.features[name].of("spatial")[:count], copies.of("spatial"), matrices)

    def result(self) -> dict[str, CorrespondenceResult]:
        """Compute the result of each model.

        Raises:
            RadioplatError: there was no held-out image.
        """
        return {name: meter.result() for name, meter in self._meters.items()}

    @classmethod
    def tables(cls, result: dict[str, CorrespondenceResult]) -> list[Table]:
        """Return the result as tables of the report."""
        first = next(iter(result.values()), CorrespondenceResult({}, {}, 0, 0))
        rows = [
            [name, *(percentage(share) for t in first.pck for share in (r.pck[t], r.ceiling[t]))]
            for name, r in result.items()
        ]
        note = (
            f"{first.images} images and a warped copy of each: share of positions matched within that share of the "
            "side, and the highest share that the model's grid allows."
        )
        columns = ["model", *(f"{share} at {t:g}" for t in first.pck for share in ("PCK", "highest"))]
        return [Table(columns, rows, "Correspondence under known homographies", note)]

    @classmethod
    def figures(cls, result: dict[str, CorrespondenceResult]) -> dict[str, float]:
        """Return the figures for ``status.json``, by name."""
        return {f"pck@{t:g}/{name}": share for name, value in result.items() for t, share in value.pck.items()}


def _centres(rows: int, columns: int) -> Tensor:
    """Return the centres (x, y) of cells in the unit square, fp64 ``[rows, columns, 2]``."""
    y, x = (torch.arange(n, dtype=torch.float64).add(0.5) / n for n in (rows, columns))
    return torch.stack(torch.meshgrid(y, x, indexing="ij")[::-1], dim=-1)
