"""Measure the range of every tensor of a graph on real images, for targets that need all scales (DLA)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import ModelProto, TensorProto, helper

from radioplat.compression.quantization.calibrate import amax_of
from radioplat.compression.quantization.histogram import Magnitudes
from radioplat.errors import DataError, EngineError
from radioplat.exporting.qdq.graph import Graph, read_graph, replace_entries
from radioplat.exporting.qdq.ranges import Range
from radioplat.exporting.reference_session import open_reference
from radioplat.models.quantized.fake_quantize import NumberFormat
from radioplat.spec.schema.quantize import Calibrator, QuantizeConfig

SOURCE, SILENT = "calibrated", "calibrated: zeros alone"


def observe(path: Path, batches: Sequence[np.ndarray], config: QuantizeConfig) -> tuple[list[Range], list[str]]:
    """Return INT8 scales of the input and of every float tensor that a node of ``path`` outputs.

    Also return the names of tensors without a scale, whose type ONNX's inference does not find.

    Args:
        path: an fp32 graph without Q/DQ, with one input.
        batches: float32 ``[B, 3, H, W]`` in [0, 1].
        config: its ``algorithm`` and ``percentile`` choose the range.

    Raises:
        EngineError: onnxruntime cannot run the file, or a tensor is not finite on these images.
        DataError: there are no batches.
    """
    if not batches:
        raise DataError("there are no calibration images", where="dataset.quant_calibration_dataset")
    model = read_graph(path)
    (images,) = model.graph.input
    names, untyped = _float_tensors(model)
    known = {value.name for value in model.graph.output}
    model.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names if name not in known
    )
    magnitudes = {name: Magnitudes() for name in (images.name, *names)}
    with tempfile.TemporaryDirectory(prefix="radioplat-") as scratch:
        file = Path(scratch) / "all_outputs.onnx"
        onnx.save(model, str(file), save_as_external_data=True, location="weights")
        session = open_reference(file, str(path))

        def run_with(update: Callable[[Magnitudes, torch.Tensor], None]) -> None:
            """Run the images; call ``update`` with each tensor's magnitudes and values."""
            for batch in batches:
                try:
                    values = session.run(names, {images.name: batch})
                except Exception as error:  # its errors have no common base class
                    problem = f"onnxruntime cannot run it: {' '.join(str(error).split())[:300]}"
                    raise EngineError(problem, where=str(path)) from error
                for name, array in zip((images.name, *names), (batch, *values), strict=True):
                    if array.size:
                        update(magnitudes[name], torch.from_numpy(np.asarray(array)))

        run_with(Magnitudes.update_amax)
        for name, each in magnitudes.items():
            if not each.finite:
                raise EngineError(f"tensor {name} is not finite on the calibration images", where=str(path))
        if config.algorithm not in (Calibrator.minmax, Calibrator.max):
            run_with(Magnitudes.update_counts)
    int8, ranges = NumberFormat.int8, []
    for name, each in magnitudes.items():  # zeros are exact at any scale, and a scale must not be 0
        value = amax_of(each, int8, config)
        scale = np.asarray(np.float32((value or 1.0) / int8.highest))
        ranges.append(Range(name, int8.value, scale, -1, SOURCE if value else SILENT))
    return ranges, untyped


def _float_tensors(model: ModelProto) -> tuple[list[str], list[str]]:
    """Return the names of tensors that depend on the image: those in floats, and those of unknown type."""
    graph = Graph(model)
    typed = onnx.shape_inference.infer_shapes(_without_weights(model)).graph
    values = [*typed.value_info, *typed.output]
    types = {v.name: v.type.tensor_type.elem_type for v in values}
    computed = [n for node in graph.nodes for n in node.output if n and not graph.is_constant(n)]
    floats = [name for name in computed if types.get(name) == TensorProto.FLOAT]
    return floats, [name for name in computed if not types.get(name)]


def _without_weights(model: ModelProto) -> ModelProto:
    """Return a copy without large weights: inference fails for models above protobuf's 2 GiB."""
    light = ModelProto()
    light.CopyFrom(model)
    for tensor in light.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and len(tensor.raw_data) > 1024:
            light.graph.input.append(helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, tensor.dims))
    small = [t for t in light.graph.initializer if t.data_type != TensorProto.FLOAT or len(t.raw_data) <= 1024]
    replace_entries(light.graph.initializer, small)
    return light
