"""Spec section ``inference``."""

from __future__ import annotations

from dataclasses import dataclass

from radioplat.spec.ranges import number


@dataclass
class InferenceConfig:
    """Spec section ``inference``: use a model on the images of ``dataset.test_dataset.images_dir``."""

    # default: results_dir/distill's (or train's) latest; a checkpoint or an ONNX file
    checkpoint: str | None = None
    trt_engine: str | None = None  # an engine in place of the checkpoint
    results_dir: str | None = None
    batch_size: int | None = number(None, at_least=1)  # unset: dataset.batch_size
    # boxes with at least this score are drawn and written as KITTI labels; the table has all
    conf_threshold: float = number(0.5, at_least=0, at_most=1)
    top_k: int = number(5, at_least=1)  # (+) classes of a classifier for each image
    maps: bool = False  # (+) write the spatial maps, too
    # (+) number of images with a picture of their features or boxes
    pictures: int = number(4, at_least=0, hint="0: no pictures.")
