"""Plan crops, windows, photometry and sizes of a micro-batch before its images are read, then render its views."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import numpy as np

from radioplat.data.batch import View
from radioplat.data.detection.box_table import padded
from radioplat.data.detection.boxes import Boxes
from radioplat.data.images.decode import Decoded
from radioplat.data.order.order import Refs
from radioplat.data.views.boxes import view_boxes
from radioplat.data.views.crops import plan_crops
from radioplat.data.views.equivariance import drawn_size, shift_windows, warp_windows
from radioplat.data.views.photometry import Photometry, plan_photometry
from radioplat.data.views.render import ViewSpec, reduction, render, view_matrix
from radioplat.spec.schema.dataset import AugmentationConfig, SplitConfig


class Equivariance(Enum):
    """Geometric relation of the views of one image: equal, shifted by whole patches, or warped."""

    none = "none"
    shift = "shift"
    full = "full"

    @classmethod
    def of(cls, split: SplitConfig) -> Equivariance:
        """Read a split's setting; ``full_equivariance`` includes ``shift_equivariance``."""
        return cls.full if split.full_equivariance else cls.shift if split.shift_equivariance else cls.none


class Recipe:
    """Plans micro-batches; a plan depends only on these arguments, the micro-batch and the keys.

    Args:
        views: every view to cut from each image.
        augmentation: None gives evaluation views (the centred square, the largest size, nothing random).
        seed: of the run.
        equivariance: not read if ``augmentation`` is None.
        whole: without a random crop, scale the whole image to a square in place of the centred square.
    """

    def __init__(
        self,
        views: Sequence[ViewSpec],
        augmentation: AugmentationConfig | None,
        seed: int,
        equivariance: Equivariance = Equivariance.none,
        whole: bool = False,
    ) -> None:
        self.whole = whole
        self.views, self.augmentation, self.seed, self.equivariance = list(views), augmentation, seed, equivariance

    def keys(self, samples: Refs) -> np.ndarray:
        """Return int64 ``[N]``, which determines what is drawn for each sample: its position in the order.

        With ``views_per_image``, the image and the number of its view, which repeats after so many.
        """
        repeated = self.augmentation.views_per_image if self.augmentation else None
        if not repeated:
            return samples.position
        return samples.sample_id * repeated + samples.view_number % repeated

    def plan(self, micro_batch: int, width: np.ndarray, height: np.ndarray, keys: np.ndarray) -> Plan:
        """Plan one micro-batch, without the views that are left out in it.

        Args:
            width, height: int ``[N]``, of the sources.
            keys: from :meth:`keys`.
        """
        drawn = self.augmentation is not None
        crops = plan_crops(width, height, self.augmentation, self.seed, keys, self.whole)
        whole = np.stack([crop.matrix() for crop in crops]) if crops else np.empty((0, 3, 3))
        sizes = [drawn_size(view, self.seed, micro_batch) if drawn else view.size for view in self.views]
        shown = [(view, size) for view, size in zip(self.views, sizes, strict=True) if size]
        matrices = []
        for view, size in shown:
            window = None
            if drawn and self.equivariance is Equivariance.full:
                window = warp_windows(view, self.seed, keys)
            elif drawn and (view.shifted or self.equivariance is Equivariance.shift):
                window = shift_windows(view, size, self.seed, keys)
            matrices.append(view_matrix(whole, size, window))
        light = plan_photometry(self.augmentation, self.seed, keys)
        return Plan([view.name for view, _ in shown], [size for _, size in shown], matrices, light)


class Plan:
    """The planned operations on each image of a micro-batch, and the views rendered so far.

    The views of an image that is never rendered stay black, with the planned homographies.
    """

    def __init__(
        self, names: list[str], sizes: list[int], matrices: list[np.ndarray], light: list[Photometry] | None
    ) -> None:
        self._names, self._sizes, self._matrices, self._light = names, sizes, matrices, light
        self._pixels = [np.zeros((len(m), 3, size, size), np.uint8) for m, size in zip(matrices, sizes, strict=True)]
        self._valid: list[np.ndarray | None] = [None] * len(sizes)
        self._reduction = np.min([reduction(m, size) for m, size in zip(matrices, sizes, strict=True)], axis=0)

    def reduction(self, i: int) -> float:
        """Return the source pixels per decoded pixel that suffice for every view of image ``i``."""
        return float(self._reduction[i])

    def fill(self, i: int, image: Decoded) -> None:
        """Render every view of image ``i`` from one decoded image."""
        for v, size in enumerate(self._sizes):
            pixels, valid = render(image, self._matrices[v][i], size)
            if self._light:
                pixels = self._light[i](pixels)
            self._pixels[v][i] = pixels.transpose(2, 0, 1)
            if valid is not None:
                mask = self._valid[v]
                if mask is None:
                    self._valid[v] = mask = np.ones((len(self._pixels[v]), size, size), bool)
                mask[i] = valid

    def views(self, boxes: Sequence[Boxes] | None = None) -> dict[str, View]:
        """Return the views by name: uint8 pixels, float32 homographies, and masks of valid pixels.

        Args:
            boxes: of each image's objects, in source pixels; each view then has its visible ones.
        """
        return {
            name: View(
                pixels,
                matrices.astype(np.float32),
                valid,
                None if boxes is None else padded(map(view_boxes, boxes, matrices, [size] * len(boxes))),
            )
            for name, size, pixels, matrices, valid in zip(
                self._names, self._sizes, self._pixels, self._matrices, self._valid, strict=True
            )
        }
