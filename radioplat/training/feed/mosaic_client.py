"""A teacher of a large native size that is shown k x k of the student's images at once, and what it said of each."""

from __future__ import annotations

import functools

import numpy as np
import torch

from radioplat.data.batch import View
from radioplat.data.views.mosaic import Mosaic, make_mosaic
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.teachers.serving.client import Pending, TeacherClient
from radioplat.teachers.serving.packed_features import Array, Packed


def ask_in_mosaic(client: TeacherClient, teacher: ResolvedTeacher, view: View, micro_batch: int) -> Pending:
    """Ask for the maps of the student's ``view``; the answer has one of its own for each image.

    Attention mixes the images of a picture, as it does in RADIO's mosaic: a map says a little of its neighbours too.
    """
    mosaic = make_mosaic(View(view.shown, view.homography), teacher.input_size, teacher.mosaic)
    pending = client.submit(client.share(mosaic.pixels), micro_batch)
    height, width = view.pixels.shape[2:]
    return functools.cache(lambda: cut(pending(), mosaic, height, width))


def cut(packed: Packed, mosaic: Mosaic, height: int, width: int) -> Packed:
    """The maps of pictures ``[M, R, C, D]`` as those of their images ``[B, r, c, D]``.

    Args:
        height, width: of an image in pixels, whole positions of the map each.

    Raises:
        ValueError: images do not lie on whole positions.
    """
    pictures, side = packed.spatial, mosaic.pixels.shape[-1]
    assert pictures is not None
    rows, columns = pictures.shape[1:3]
    if height * rows % side or width * columns % side:
        raise ValueError(f"images of {width}x{height} are no whole positions of {side / rows:g} pixels")
    h, w = height * rows // side, width * columns // side
    pieces = []
    for picture, (x, y) in zip(mosaic.picture.tolist(), mosaic.corner.tolist(), strict=True):
        top, left = y * rows // side, x * columns // side
        pieces.append(pictures[picture, top : top + h, left : left + w])
    return Packed(None, _stacked(pieces), {}, packed.seconds)


def _stacked(pieces: list[Array]) -> Array:
    return torch.stack(pieces) if isinstance(pieces[0], torch.Tensor) else np.stack(pieces)
