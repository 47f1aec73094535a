"""Request maps from a teacher of a large native size by mosaics of k x k images, and cut the answers into images."""

from __future__ import annotations

import functools

import numpy as np
import torch

from radioplat.common.device_copies import keep_for_this_stream
from radioplat.data.batch import View
from radioplat.data.views.mosaic import Mosaic, make_mosaic
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.teachers.serving.client import Pending, TeacherClient
from radioplat.teachers.serving.packed_features import Array, Packed


def ask_in_mosaic(client: TeacherClient, teacher: ResolvedTeacher, view: View, micro_batch: int) -> Pending:
    """Request the teacher's maps of ``view``, arranged as mosaics; the answer has a separate map for each image.

    Attention mixes the images of a mosaic, as in RADIO's mosaics, so a map also depends slightly on its neighbours.
    """
    mosaic = make_mosaic(View(view.shown, view.homography), teacher.input_size, teacher.mosaic)
    pending = client.submit(client.share(mosaic.pixels), micro_batch)
    height, width = view.pixels.shape[2:]
    return functools.cache(lambda: cut(pending(), mosaic, height, width))


def cut(packed: Packed, mosaic: Mosaic, height: int, width: int) -> Packed:
    """Cut the maps of mosaics ``[M, R, C, D]`` into the maps of their images ``[B, r, c, D]``.

    Args:
        height, width: size of an image in pixels; must be a multiple of the pixels per map position.

    Raises:
        ValueError: the image size is not such a multiple.
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
    if not isinstance(pieces[0], torch.Tensor):
        return np.stack(pieces)
    keep_for_this_stream(pieces)
    return torch.stack(pieces)
