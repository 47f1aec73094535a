"""``radioplat.embed`` and ``radioplat.predict``: features, classes and boxes of images in Python."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from radioplat.common.cpu_threads import decode_threads, limit_torch_threads
from radioplat.data.loading.image_files import given_images
from radioplat.errors import DataError, Problem, RadioplatError
from radioplat.evaluation.inference.infer import Prediction, infer
from radioplat.evaluation.inference.inference_model import InferenceModel, loaded_model, open_inference_model
from radioplat.models.detectors.base import Detector
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


def embed(model: Model, images: Any, *, maps: bool = False, size: int | None = None, batch_size: int = 8) -> Embeddings:
    """Compute the features of images by a student's backbone.

    Images are seen as in an evaluation: the centre crop, resized to ``size``.

    Args:
        model: a checkpoint folder, the ``.safetensors`` of export, an ``.onnx``, an ``.engine``, or the student that
            :func:`radioplat.load_student` returned.
        images: a folder, a path of an image, uint8 ``[N, H, W, 3]``, or a sequence of paths and of uint8
            ``[H, W, 3]``.
        maps: also return the spatial maps.
        size: pixels a side, at least 1; None: the training resolution, or the fixed size of a file.

    Raises:
        RadioplatError: the model cannot be opened or is a detector, or no image can be read.

    Example:
        >>> radioplat.embed("results/distill/model_latest", ["a.jpg", "b.jpg"]).summary.shape
        (2, 384)
    """
    with _mode_of(model):
        rows = _features(_opened(model, size), images, batch_size, maps)
    known = next(row for row in rows if not row.error)
    assert known.summary is not None
    return Embeddings(
        names=[row.name for row in rows],
        summary=_stacked([row.summary for row in rows], known.summary),
        spatial=None if known.spatial is None else _stacked([row.spatial for row in rows], known.spatial),
        errors={i: row.error for i, row in enumerate(rows) if row.error},
    )


def _features(opened: InferenceModel, images: Any, batch_size: int, maps: bool) -> list[Prediction]:
    if opened.encode is None:
        hint = "Use radioplat.predict, or give the student that it was built on."
        raise RadioplatError("this is a detector, and has boxes instead of features", where="model", hint=hint)
    return _run(opened, images, batch_size, top_k=1, maps=maps)


def predict(
    model: Model, images: Any, *, top_k: int = 5, size: int | None = None, batch_size: int = 8
) -> list[Prediction]:
    """Predict the classes of images by a classifier, or the objects in them by a detector.

    Args:
        model: as of :func:`embed`; a detector or a student with a classifier.
        images: as of :func:`embed`.
        top_k: classes of a classifier for each image.
        size: as of :func:`embed`. A detector sees the whole image, stretched.

    Returns:
        A :class:`~radioplat.evaluation.inference.infer.Prediction` of each image, in order, without features; one that
        cannot be read has its reason in ``error``.

    Raises:
        RadioplatError: the model cannot be opened or neither detects nor classifies, or no image can be read.

    Example:
        >>> radioplat.predict("results/train/model_latest", "photographs/")[0].class_names
        ('cat', 'dog')
    """
    with _mode_of(model):
        opened = _opened(model, size)
        if opened.encode is not None and not opened.classifies:
            hint = "Use radioplat.embed for its features."
            raise RadioplatError("this student has no classifier", where="model", hint=hint)
        return [replace(row, summary=None) for row in _run(opened, images, batch_size, top_k, maps=False)]


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


def _run(model: InferenceModel, images: Any, batch_size: int, top_k: int, maps: bool) -> list[Prediction]:
    for name, number in (("batch_size", batch_size), ("top_k", top_k)):
        if number < 1:
            raise RadioplatError(f"must be at least 1, not {number}", where=name)
    threads = decode_threads(Spec().dataset.workers)
    with limit_torch_threads(threads):
        batches = infer(model, given_images(images), batch_size, top_k=top_k, threads=threads)
        rows = [row if maps else replace(row, spatial=None) for batch in batches for _, row in batch]
    if all(row.error for row in rows):
        raise DataError(f"no image can be read; {rows[0].name}: {rows[0].error}", where="images")
    return rows


def _stacked(rows: list[np.ndarray | None], known: np.ndarray) -> np.ndarray:
    """Stack rows; one that is None is NaN, in the shape of ``known``."""
    return np.stack([np.full_like(known, np.nan) if row is None else row for row in rows])
