"""``radioplat.embed`` and ``radioplat.predict``: features, classes and boxes of images in Python."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from radioplat.common import terminal
from radioplat.common.atomic_files import written_aside
from radioplat.common.cpu_threads import decode_threads, limit_torch_threads
from radioplat.data.loading.image_files import given_images
from radioplat.errors import DataError, Problem, RadioplatError
from radioplat.evaluation.inference.infer import Prediction, infer
from radioplat.evaluation.inference.inference_model import InferenceModel, loaded_model, open_inference_model
from radioplat.evaluation.inference.table import TableWriter, columns_of
from radioplat.models.detectors.base import Detector
from radioplat.models.image_checks import check_images, check_range
from radioplat.models.student.student import Student
from radioplat.spec.schema.root import Spec

Model = str | os.PathLike[str] | Student | Detector


@dataclass(frozen=True)
class Embeddings:
    """Features of images, a row each, in the order that they were given.

    Attributes:
        names: paths below the folder, the given paths, or the positions of arrays.
        summary: float32 ``[N, D]``; the row of an image that cannot be read is NaN.
        spatial: float32 ``[N, h, w, D]``, likewise; None unless ``maps`` was true.
        errors: why an image cannot be read, by its row.
    """

    names: list[str]
    summary: np.ndarray
    spatial: np.ndarray | None = None
    errors: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ImageTable:
    """A Parquet file that was written, with a row for each image.

    Attributes:
        path: of the file.
        images: number of rows.
        errors: why an image cannot be read, by its name; its row has the reason in the column ``error``.
    """

    path: Path
    images: int
    errors: dict[str, str] = field(default_factory=dict)


@overload
def embed(
    model: Model,
    images: Any,
    *,
    out: None = None,
    maps: bool = False,
    size: int | None = None,
    batch_size: int = 8,
    progress: bool | None = None,
) -> Embeddings: ...


@overload
def embed(
    model: Model,
    images: Any,
    *,
    out: str | os.PathLike[str],
    maps: bool = False,
    size: int | None = None,
    batch_size: int = 8,
    progress: bool | None = None,
) -> ImageTable: ...


def embed(
    model: Model,
    images: Any,
    *,
    out: str | os.PathLike[str] | None = None,
    maps: bool = False,
    size: int | None = None,
    batch_size: int = 8,
    progress: bool | None = None,
) -> Embeddings | ImageTable:
    """Compute the features of images by a student's backbone.

    Images are used as in an evaluation: the centre crop, resized to ``size``.

    Args:
        model: a checkpoint folder, the ``.safetensors`` of export, an ``.onnx``, an ``.engine``, or the student that
            :func:`radioplat.load_student` returned.
        images: a folder with sub-folders, a path of an image, arrays uint8 ``[N, H, W, 3]``, a tensor ``[N, 3, H, W]``
            of uint8 or of floats in [0, 1] (rounded to uint8), or a sequence of paths, arrays and tensors.
        out: a Parquet file to write, image by image, with the columns ``image``, ``error``, ``width``, ``height``,
            ``summary`` and, with maps, ``spatial`` and ``spatial_shape``; None: the features are returned.
        maps: also the spatial maps.
        size: pixels a side, at least 1; None: the training resolution, or the fixed size of a file.
        batch_size: images that the model computes at once.
        progress: count images on stderr; None: if ``out`` is given.

    Returns:
        The features, or with ``out`` the path of the file and the numbers of images. An image that cannot be read keeps
        its row, with the reason in ``errors``.

    Raises:
        RadioplatError: the model cannot be opened or is a detector, no image can be read, or ``out`` cannot be written.

    Example:
        >>> radioplat.embed("results/distill/model_latest", ["a.jpg", "b.jpg"]).summary.shape
        (2, 384)
        >>> radioplat.embed("student.engine", "photographs/", out="features.parquet").images
        50000
    """
    with _mode_of(model):
        opened = _opened(model, size)
        if opened.encode is None:
            hint = "Use radioplat.predict, or give the student that it was built on."
            raise RadioplatError("this is a detector, and has boxes instead of features", where="model", hint=hint)
        batches = _Batches(opened, images, batch_size, 1, progress, maps)
        if out is not None:
            return batches.write(out, columns_of(opened, maps, classes=False))
        rows = batches.rows()
    known = next(row for row in rows if not row.error)
    assert known.summary is not None
    return Embeddings(
        names=[row.name for row in rows],
        summary=_stacked([row.summary for row in rows], known.summary),
        spatial=None if known.spatial is None else _stacked([row.spatial for row in rows], known.spatial),
        errors={i: row.error for i, row in enumerate(rows) if row.error},
    )


@overload
def predict(
    model: Model,
    images: Any,
    *,
    out: None = None,
    top_k: int = 5,
    size: int | None = None,
    batch_size: int = 8,
    progress: bool | None = None,
) -> list[Prediction]: ...


@overload
def predict(
    model: Model,
    images: Any,
    *,
    out: str | os.PathLike[str],
    top_k: int = 5,
    size: int | None = None,
    batch_size: int = 8,
    progress: bool | None = None,
) -> ImageTable: ...


def predict(
    model: Model,
    images: Any,
    *,
    out: str | os.PathLike[str] | None = None,
    top_k: int = 5,
    size: int | None = None,
    batch_size: int = 8,
    progress: bool | None = None,
) -> list[Prediction] | ImageTable:
    """Predict the classes of images by a classifier, or the objects in them by a detector.

    Args:
        model: as of :func:`embed`; a detector or a student with a classifier.
        images: as of :func:`embed`.
        out: as of :func:`embed`, with the columns ``image``, ``error``, ``width``, ``height``, ``labels``,
            ``class_names``, ``scores`` and, of a detector, ``boxes``.
        top_k: classes of a classifier for each image.
        size: as of :func:`embed`. A detector is given the whole image, stretched.
        batch_size: as of :func:`embed`.
        progress: as of :func:`embed`.

    Returns:
        A :class:`~radioplat.evaluation.inference.infer.Prediction` of each image, in order, without features; one that
        cannot be read has its reason in ``error``. With ``out``, as :func:`embed`.

    Raises:
        RadioplatError: the model cannot be opened or neither detects nor classifies, no image can be read, or the file
            cannot be written.

    Example:
        >>> radioplat.predict("results/train/model_latest", "photographs/")[0].class_names
        ('cat', 'dog')
    """
    with _mode_of(model):
        opened = _opened(model, size)
        if opened.encode is not None and not opened.classifies:
            hint = "Use radioplat.embed for its features."
            raise RadioplatError("this student has no classifier", where="model", hint=hint)
        batches = _Batches(opened, images, batch_size, top_k, progress)
        if out is not None:
            return batches.write(out, columns_of(opened, maps=False, features=False))
        return [replace(row, summary=None) for row in batches.rows()]


@contextlib.contextmanager
def _mode_of(model: Model) -> Iterator[None]:
    """Let a model that was opened before be in training mode afterwards, if it was."""
    training = getattr(model, "training", False)
    try:
        yield
    finally:
        if training and isinstance(model, nn.Module):
            model.train()


def _opened(model: Model, size: int | None) -> InferenceModel:
    if size is not None and size < 1:
        raise RadioplatError(f"must be at least 1, not {size}", where="size")
    if not isinstance(model, (str, os.PathLike)) and not hasattr(model, "model_kind"):
        hint = "Give a path, or what radioplat.load_student returned."
        raise RadioplatError(f"this is a {type(model).__name__}, not a model", where="model", hint=hint)
    if not isinstance(model, (str, os.PathLike)):
        return loaded_model(model, size)
    spec = Spec()
    spec.dataset.val_img_size = size
    try:
        return open_inference_model(spec, Path(model), "model")
    except RadioplatError as error:  # it names the field of a spec; the caller gave an argument
        raise type(error)(*map(_by_argument, error.problems)) from error


def _by_argument(problem: Problem) -> Problem:
    texts = (problem.message, problem.where, problem.hint)
    return Problem(*(text.replace("dataset.val_img_size", "size") for text in texts))


@dataclass
class _Batches:
    """The results of a model on images, batch by batch."""

    model: InferenceModel
    images: Any
    batch_size: int
    top_k: int
    progress: bool | None
    maps: bool = False

    def rows(self) -> list[Prediction]:
        """Return all results."""
        return [row for batch in self._batches(bool(self.progress)) for row in batch]

    def write(self, out: str | os.PathLike[str], columns: pa.Schema) -> ImageTable:
        """Write all results to a file, which gets its name at the end."""
        path, count, errors = Path(out), 0, dict[str, str]()
        if path.suffix.lower() not in (".parquet", ".pq"):
            hint = f"Name it {path.with_suffix('.parquet').name}."
            raise RadioplatError(f"{path} is not named as a Parquet file", where="out", hint=hint)
        if path.is_dir():
            raise RadioplatError(f"{path} is a folder", where="out", hint="Name a file in it.")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with written_aside(path) as aside, contextlib.closing(TableWriter(aside, columns)) as table:
                for rows in self._batches(self.progress is not False):
                    table.add(rows)
                    count += len(rows)
                    errors |= {row.name: row.error for row in rows if row.error}
        except OSError as error:
            raise RadioplatError(f"{path} cannot be written: {error.strerror or error}", where="out") from error
        if errors and self.progress is not False:
            name, reason = next(iter(errors.items()))
            terminal.note(f"{len(errors)} of {count} images cannot be read; the first is {name}: {reason}")
        return ImageTable(path, count, errors)

    def _batches(self, progress: bool) -> Iterator[list[Prediction]]:
        for name, number in (("batch_size", self.batch_size), ("top_k", self.top_k)):
            if number < 1:
                raise RadioplatError(f"must be at least 1, not {number}", where=name)
        files, threads = given_images(_as_arrays(self.images)), decode_threads(Spec().dataset.workers)
        done, first, readable = 0, "", False
        with limit_torch_threads(threads), _counting(progress) as count:
            for batch in infer(self.model, files, self.batch_size, top_k=self.top_k, threads=threads):
                rows = [row if self.maps else replace(row, spatial=None) for _, row in batch]
                readable = readable or any(not row.error for row in rows)
                first = first or f"{rows[0].name}: {rows[0].error}"
                yield rows
                done += len(rows)
                count(done, len(files))
        if not readable:
            raise DataError(f"no image can be read; {first}", where="images")


def _counting(progress: bool) -> contextlib.AbstractContextManager[Callable[[int, int], None]]:
    return terminal.counting("images") if progress else contextlib.nullcontext(lambda done, total: None)


def _as_arrays(images: Any) -> Any:
    """Return ``images`` with tensors ``[N, 3, H, W]`` as arrays uint8 ``[N, H, W, 3]``; other images as they are.

    Raises:
        DataError: a tensor has another shape, or floats that are not in [0, 1].
    """
    if isinstance(images, torch.Tensor):
        check_images(images, 1, images.device)
        if images.is_floating_point():
            check_range(images)
            images = (images.float().clamp(0, 1) * 255).round().to(torch.uint8)
        return images.detach().permute(0, 2, 3, 1).cpu().numpy()
    if isinstance(images, (list, tuple)) and any(isinstance(image, torch.Tensor) for image in images):
        return [_as_arrays(image[None])[0] if isinstance(image, torch.Tensor) else image for image in images]
    return images


def _stacked(rows: list[np.ndarray | None], known: np.ndarray) -> np.ndarray:
    """Stack rows; one that is None is NaN, in the shape of ``known``."""
    return np.stack([np.full_like(known, np.nan) if row is None else row for row in rows])
