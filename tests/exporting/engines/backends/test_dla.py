"""Engines for the DLA of a Jetson: which layers fall back to the GPU, and what is refused. A substitute for the module
tensorrt notes what is asked of it; without a Jetson nothing of it can be run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from radioplat.errors import EngineError
from radioplat.exporting.engines.backends.network import Build
from radioplat.exporting.engines.backends.tensorrt import _use_dla
from radioplat.exporting.engines.backends.tensorrt_session import deserialize
from radioplat.exporting.engines.build import build_engine
from radioplat.spec.schema.engine import EngineBackend, TensorRTConfig

TRT = SimpleNamespace(DeviceType=SimpleNamespace(DLA="dla"), BuilderFlag=SimpleNamespace(GPU_FALLBACK="fallback"))


class Config:
    """A builder's config on which the DLA computes convolutions alone."""

    def __init__(self) -> None:
        self.flags: list[str] = []

    def set_flag(self, flag: str) -> None:
        self.flags.append(flag)

    def can_run_on_DLA(self, layer) -> bool:  # noqa: N802 - TensorRT's name
        return layer.name.startswith("conv")


def build(cores: int, layers: list[str]) -> Build:
    rows = [SimpleNamespace(name=name) for name in layers]
    network = SimpleNamespace(num_layers=len(rows), get_layer=rows.__getitem__)
    return Build(TRT, SimpleNamespace(num_DLA_cores=cores), network, None, Config(), [3, 8, 8], (1, 1, 1))


def test_the_layers_that_fall_back_are_named():
    made = build(2, ["conv_a", "softmax", "conv_b", "gather"])
    assert _use_dla(TRT, made, 1) == ["DLA core 1 computes 2 of 4 layers; on the GPU: softmax, gather"]
    assert (made.config.default_device_type, made.config.DLA_core, made.config.flags) == ("dla", 1, ["fallback"])
    assert _use_dla(TRT, build(1, ["conv_a"]), 0) == ["DLA core 0 computes 1 of 1 layers"]


@pytest.mark.parametrize(("cores", "core"), [(0, 0), (2, 2)])
def test_a_core_that_the_machine_does_not_have_is_refused(cores, core):
    with pytest.raises(EngineError, match=f"dla_core: this machine has {cores} DLA cores, counted from 0"):
        _use_dla(TRT, build(cores, ["conv"]), core)


@pytest.mark.parametrize(("config", "core"), [({"dla_core": 1}, 1), ({"dla_core": 0}, 0), ({"dla_core": None}, -1)])
def test_an_engine_runs_on_the_core_that_it_was_built_for(config, core, tmp_path):
    """The core is set before the engine is read; later it has no effect."""

    class Runtime:
        def __init__(self, logger: str) -> None:
            self.DLA_core = -1

        def deserialize_cuda_engine(self, data: bytes) -> tuple[bytes, int]:
            return data, self.DLA_core

    (tmp_path / "a.engine").write_bytes(b"engine")
    runtime, engine = deserialize(SimpleNamespace(Runtime=Runtime), "log", tmp_path / "a.engine", {"config": config})
    assert isinstance(runtime, Runtime) and engine == (b"engine", core)


def test_a_file_with_pairs_is_refused_before_anything_is_imported(conv_int8, conv_file, tmp_path):
    config = TensorRTConfig(data_type="int8", dla_core=0)
    with pytest.raises(EngineError) as error:
        build_engine(conv_int8, tmp_path / "a.engine", config, backend=EngineBackend.tensorrt)
    (problem,) = error.value.problems
    assert problem.where == "gen_trt_engine.tensorrt.dla_core" and "the DLA reads no Q/DQ" in problem.message
    assert "export.force_ptq" in problem.hint and not (tmp_path / "a.engine").exists()
    with pytest.raises(EngineError) as error:  # a file without gets as far as the library or the GPU that are missing
        build_engine(conv_file, tmp_path / "a.engine", TensorRTConfig(dla_core=0), backend=EngineBackend.tensorrt)
    (problem,) = error.value.problems
    assert problem.where == "gen_trt_engine.tensorrt.dla_core" and "of one size, not 1 to 16 images" in problem.message
    one = TensorRTConfig(dla_core=0, min_batch_size=1, opt_batch_size=1, max_batch_size=1)
    with pytest.raises(EngineError) as error:  # TensorRT or its GPU is not here
        build_engine(conv_file, tmp_path / "a.engine", one, backend=EngineBackend.tensorrt)
    assert error.value.problems[0].where != "gen_trt_engine.tensorrt.dla_core"
