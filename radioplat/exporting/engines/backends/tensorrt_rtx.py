"""Backend TensorRT for RTX: engines for several GPU generations, built without a GPU. Networks are strongly typed."""

from __future__ import annotations

from types import ModuleType

from radioplat.errors import EngineError
from radioplat.exporting.engines.backends.builder_log import EngineLog
from radioplat.exporting.engines.backends.network import finish_build, make_logger, reporting, start_build
from radioplat.exporting.engines.interface import BuildRequest, BuiltEngine, refuse_unsupported
from radioplat.exporting.engines.library import RTX, load_tensorrt
from radioplat.exporting.engines.onnx_input import OnnxInput
from radioplat.exporting.engines.targets import choose_targets, known_targets

UNSUPPORTED = {
    "calibration": "It reads INT8 ranges from Q/DQ nodes only: `radioplat quantize`, then `radioplat export` on the "
    "checkpoint that it writes.",
    # Its timing cache has had no effect since version 1.2: kernels are timed where the engine runs.
    "dla_core": "A Jetson needs an engine of backend tensorrt, built there: docs/how_to/jetson.md.",
    "timing_cache": "Remove it; kernels are chosen on the GPU where the engine runs.",
}


def build(file: OnnxInput, request: BuildRequest, data_types: list[str]) -> BuiltEngine:
    """Build for the GPUs of ``compute_capabilities``.

    Args:
        data_types: data types of ``file``.

    Raises:
        EngineError: an unsupported field, a GPU without the data type, or TensorRT's reason.
    """
    refuse_unsupported(request, "TensorRT for RTX", UNSUPPORTED)
    trt = load_tensorrt(RTX)
    known = known_targets(trt)
    targets = choose_targets(known, request.config.compute_capabilities, data_types, f"TensorRT {trt.__version__}")
    log = EngineLog(echo=request.verbose)
    with reporting(log, file.path):
        typed = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
        build = start_build(trt, log, file, request, 0 if typed is None else 1 << int(typed))
        build.config.num_compute_capabilities = len(targets)
        for i, name in enumerate(targets):
            build.config.set_compute_capability(getattr(trt.ComputeCapability, name), i)
        try:
            engine = finish_build(build, log, file.path)
        except EngineError:
            _reset_builder(trt)
            raise
    return BuiltEngine(
        data=engine,
        library="tensorrt_rtx",
        version=trt.__version__,
        targets=targets,
        input_shape=build.shape,
        batch=build.batch,
        kernels=log.kernel_list(),
        layers=log.layer_count(),
        requantizing=log.requantizing_count(),
    )


def _reset_builder(trt: ModuleType) -> None:
    """Build one ReLU, because the build after a failed one uses the failed one's GPUs (seen in 1.7.1).

    An INT8 network for SM89 was built in fp16 after a failure for SM75, without a message; the second one was not.
    """
    builder = trt.Builder(make_logger(trt, EngineLog()))
    network = builder.create_network(0)
    layer = network.add_activation(network.add_input("x", trt.float32, (1,)), trt.ActivationType.RELU)
    network.mark_output(layer.get_output(0))
    builder.build_serialized_network(network, builder.create_builder_config())
