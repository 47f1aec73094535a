"""Images of a folder, of paths or of arrays as evaluation views; an image that cannot be read keeps its place."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from radioplat.data.images.decode import MAX_PIXELS, BadSample, Decoded, decode_rgb
from radioplat.data.images.headers import image_header
from radioplat.data.scan.names import shown_name
from radioplat.data.scan.sources import list_shards
from radioplat.data.storage.files import absolute, not_a_file, read_range, stat_file
from radioplat.data.views.crops import centre_crop, whole_image
from radioplat.data.views.render import reduction, render, view_matrix
from radioplat.errors import DataError
from radioplat.spec.resolved.paths import is_remote
from radioplat.spec.schema.dataset import SplitConfig


@dataclass(frozen=True)
class ImageFile:
    """An image to read.

    Attributes:
        name: shown in results: the path below the folder, the given path, or the position of an array.
        path: of the file; empty for an array.
        rgb: the array, uint8 ``[h, w, 3]``; None for a file.
    """

    name: str
    path: str = ""
    rgb: np.ndarray | None = None


@dataclass(frozen=True)
class ImageView:
    """The evaluation view of one image, or the reason why there is none.

    Attributes:
        pixels: uint8 ``[3, size, size]``; None if the image cannot be read.
        width, height: of the image, in pixels, EXIF orientation applied; 0 if it cannot be read.
        error: reason and detail; empty for an image that was read.
    """

    image: ImageFile
    pixels: np.ndarray | None = None
    width: int = 0
    height: int = 0
    error: str = ""


def images_in(folder: str, where: str) -> list[ImageFile]:
    """List the images of a folder and its sub-folders, by name.

    Raises:
        DataError: ``where`` is the field: the folder is missing or contains no image.
    """
    (source,) = list_shards(SplitConfig(images_dir=folder), where.removesuffix(".images_dir"))
    return [ImageFile(shown_name(file.name), f"{source.root}/{file.name}") for file in source.files]


def given_images(images: Any) -> list[ImageFile]:
    """Return what a caller gave as images.

    Args:
        images: a folder, a path of an image, uint8 ``[N, H, W, 3]``, or a sequence of paths and of uint8
            ``[H, W, 3]``.

    Raises:
        DataError: it is none of these, or there is no image.
    """
    hint = "Give a folder, paths, or uint8 arrays [H, W, 3] with values 0 to 255."
    if isinstance(images, (str, os.PathLike)):
        path = str(images)
        if is_remote(path) or not os.path.exists(absolute(path)) or os.path.isdir(absolute(path)):
            try:
                return images_in(path, "images")
            except DataError as error:  # it names the field of a spec; the caller gave an argument
                raise DataError(*(replace(problem, where="images") for problem in error.problems)) from None
        images = [path]
    if isinstance(images, np.ndarray) and images.ndim != 4:
        raise DataError(f"{images.ndim} axes instead of the four of [N, H, W, 3]", where="images", hint=hint)
    if not isinstance(images, (np.ndarray, Sequence)):
        advice = "Make a list of it: list(images). " if isinstance(images, Iterator) else _advice(images)
        raise DataError(f"{type(images).__name__} is not a list of images", where="images", hint=advice + hint)
    if not len(images):
        raise DataError("there are no images", where="images", hint=hint)
    files = []
    for i, image in enumerate(images):
        if isinstance(image, (str, os.PathLike)):
            files.append(ImageFile(shown_name(str(image)), absolute(str(image))))
        elif isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.shape[2:] == (3,) and image.size:
            files.append(ImageFile(str(i), rgb=np.ascontiguousarray(image)))
        else:
            given = f"{image.dtype} {list(image.shape)}" if isinstance(image, np.ndarray) else type(image).__name__
            raise DataError(f"{given} is not an image", where=f"images[{i}]", hint=_advice(image) + hint)
    return files


def _advice(image: Any) -> str:
    if not isinstance(image, np.ndarray):
        return "np.asarray makes an array of Pillow's images. " if hasattr(image, "getbands") else ""
    if image.ndim == 3 and image.shape[0] == 3 != image.shape[2]:
        return "Channels come last in arrays: image.transpose(1, 2, 0). "
    if image.ndim == 2 or image.ndim == 3 and image.shape[2] == 1:
        return "A grey image needs its channel three times. "
    return "Of floats from 0 to 1: (image * 255).round().astype(np.uint8). " if image.dtype.kind == "f" else ""


def view_batches(
    images: Sequence[ImageFile],
    size: int,
    batch_size: int,
    *,
    whole: bool = False,
    threads: int = 1,
    max_pixels: int = MAX_PIXELS,
) -> Iterator[list[ImageView]]:
    """Yield batches of views in the order of ``images``; they are read and decoded ahead, by ``threads`` threads.

    Args:
        size: pixels a side.
        whole: the whole image, stretched, as for detectors; else the centre crop, as
            :func:`radioplat.data.loading.sample_images.evaluation_images` has it.
        max_pixels: a larger image is not decoded.
    """
    ahead: deque[Future[ImageView]] = deque()
    with ThreadPoolExecutor(max(1, threads)) as pool:
        for image in images:
            ahead.append(pool.submit(_view, image, size, whole, max_pixels))
            if len(ahead) >= 2 * batch_size:
                yield [ahead.popleft().result() for _ in range(batch_size)]
        while ahead:
            yield [ahead.popleft().result() for _ in range(min(batch_size, len(ahead)))]


def _view(image: ImageFile, size: int, whole: bool, max_pixels: int) -> ImageView:
    try:
        if image.rgb is not None:
            height, width = image.rgb.shape[:2]
            matrix = _matrix(width, height, size, whole)
            decoded = Decoded(image.rgb, width, height)
        else:
            size_in_bytes = stat_file(image.path).size
            if kind := not_a_file(image.path):
                advice = "; give its files, or the folder alone" if kind == "a folder" else ""
                raise BadSample("not_a_file", f"it is {kind}{advice}")
            data = read_range(image.path, 0, size_in_bytes)
            header = image_header(data)
            if header is None:
                raise BadSample("not_an_image", "" if data else "the file is empty")
            matrix = _matrix(header.width, header.height, size, whole)
            decoded = decode_rgb(data, float(reduction(matrix, size)), max_pixels)
    except BadSample as bad:
        return ImageView(image, error=str(bad))
    except OSError as error:
        return ImageView(image, error=f"missing_file: {error.strerror or error}")
    pixels = render(decoded, matrix, size)[0].transpose(2, 0, 1)
    return ImageView(image, pixels, decoded.width, decoded.height)


def _matrix(width: int, height: int, size: int, whole: bool) -> np.ndarray:
    crop = whole_image(width, height) if whole else centre_crop(width, height)
    return view_matrix(crop.matrix(), size)
