"""Checks of section ``inference``."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.checks.unused_fields import unused_fields
from radioplat.spec.schema.root import Spec

IMAGES = "dataset.test_dataset.images_dir"


def inference_problems(spec: Spec) -> Iterator[Problem]:
    """Yield contradictions of the section, whatever the task."""
    config = spec.inference
    if config.checkpoint and config.trt_engine:
        hint = "Give the one that is to be used."
        yield Problem("there is a checkpoint and an engine", "inference.trt_engine", hint)
    elif config.trt_engine and not config.trt_engine.lower().endswith(".engine"):
        hint = "Checkpoints, weights and ONNX files are given in inference.checkpoint."
        yield Problem(f"{config.trt_engine} is no .engine", "inference.trt_engine", hint)


def inference_image_problems(spec: Spec) -> Iterator[Problem]:
    """Yield problems of the split that the task ``inference`` reads; other tasks may read it otherwise."""
    split = spec.dataset.test_dataset
    if not split.images_dir:
        yield Problem("inference needs a folder of images", IMAGES, "Images in its sub-folders are read, too.")
    names = ("tar_data_sources", "coco", "native_resolution_filter", "dedup", "reject_uniform_color")
    message = "inference reads every image of images_dir, and nothing else"
    yield from unused_fields(split, names, "dataset.test_dataset", message, "Leave it out for this command.")
