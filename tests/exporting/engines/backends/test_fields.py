"""Every field of a build is used by a backend, or refused by it."""

from __future__ import annotations

import dataclasses

import pytest

from radioplat.exporting.engines.backends import onnxruntime, openvino, tensorrt_rtx
from radioplat.spec.schema.engine import TensorRTConfig

# `layers_precision` changes the ONNX file before a backend reads it.
SINGLE = {"layers_precision"}
USED = {"data_type", "min_batch_size", "opt_batch_size", "max_batch_size"}


@pytest.mark.parametrize(
    ("backend", "more"),
    [(onnxruntime, SINGLE), (openvino, set()), (tensorrt_rtx, SINGLE | {"workspace_size", "compute_capabilities"})],
)
def test_a_field_is_used_or_refused(backend, more):
    fields = {field.name for field in dataclasses.fields(TensorRTConfig)} | {"timing_cache"}
    assert fields == USED | more | backend.UNSUPPORTED.keys(), "does this backend use a new field, or refuse it?"
