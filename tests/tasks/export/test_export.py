"""The two tasks, from a spec and a real checkpoint to an engine."""

from __future__ import annotations

import os

import pytest

from radioplat.errors import EngineError
from radioplat.models.heads import HeadArchitecture
from radioplat.models.student.checkpoint import save_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.schema.engine import TensorRTConfig
from radioplat.spec.schema.root import Spec
from radioplat.tasks.export.engine import build_engine, engine_file
from radioplat.tasks.export.export import export, onnx_file
from radioplat.tasks.shared.find_checkpoint import find_checkpoint


@pytest.fixture
def spec(tmp_path) -> Spec:
    spec = Spec(results_dir=str(tmp_path / "results"))
    spec.dataset.img_size = 32
    spec.gen_trt_engine.tensorrt = TensorRTConfig(compute_capabilities=["SM89"])
    return spec


VIT = StudentArchitecture(
    type="radio_vit_tiny_patch16",
    kwargs={"embed_dim": 32, "depth": 1, "num_heads": 2},
    num_class_tokens=2,
    num_registers=2,
    img_size=32,
    heads=(HeadArchitecture("clip", summary_dim=12, hidden=16), HeadArchitecture("sam", spatial_dim=8, token_slot=1)),
)


def checkpoint(folder, seconds: int = 0):
    """A checkpoint and the link to it, last changed ``seconds`` after 2001."""
    made = folder / "model_epoch_000"
    made.mkdir(parents=True)
    student = Student(VIT)
    save_student(student, student.state_dict(), made)
    os.utime(made, (10**9 + seconds,) * 2)
    (folder / "model_latest").symlink_to(made.name)
    return made


def test_checkpoint_to_onnx_to_engine_by_default_paths(spec, tmp_path):
    pytest.importorskip("tensorrt_rtx_bindings", reason="the `engine` extra is not installed")
    checkpoint(tmp_path / "results" / "distill")
    spec.export.adaptors, spec.export.batch_size = ["clip", "sam"], 4
    spec.gen_trt_engine.tensorrt.data_type = "bf16"
    written = export(spec)
    assert written.path == tmp_path / "results" / "export" / "student.onnx"
    assert written.data_type == "bf16"  # follows the engine's
    assert written.outputs == {
        "summary": [4, 32],
        "spatial": [4, 2, 2, 32],
        "clip.summary": [4, 12],
        "sam.spatial": [4, 2, 2, 8],
    }
    built = build_engine(spec)
    assert built.path == tmp_path / "results" / "gen_trt_engine" / "student.engine" and built.path.exists()
    assert built.batch == (4, 4, 4) and built.compute_capabilities == ["SM89"] and set(built.kernels) == {"bf16"}


def test_the_batch_is_dynamic_by_default_and_one_size_in_the_engine_if_asked(spec, tmp_path):
    pytest.importorskip("tensorrt_rtx_bindings", reason="the `engine` extra is not installed")
    checkpoint(tmp_path / "results" / "distill")
    spec.gen_trt_engine.batch_size = 4
    assert export(spec).outputs == {"summary": ["batch", 32], "spatial": ["batch", 2, 2, 32]}
    assert build_engine(spec).batch == (4, 4, 4)


def test_fields_override_the_default_paths(spec, tmp_path):
    spec.export.results_dir = str(tmp_path / "e")
    spec.gen_trt_engine.results_dir = str(tmp_path / "g")
    assert (onnx_file(spec), engine_file(spec)) == (tmp_path / "e" / "student.onnx", tmp_path / "g" / "student.engine")
    spec.export.onnx_file, spec.gen_trt_engine.trt_engine = "a/b.onnx", "c/d.engine"
    assert (str(onnx_file(spec)), str(engine_file(spec))) == ("a/b.onnx", "c/d.engine")


def test_the_newest_of_distill_and_train_is_taken(spec, tmp_path):
    spec.distill.results_dir = str(tmp_path / "elsewhere")
    old = checkpoint(tmp_path / "results" / "train", seconds=5)
    assert find_checkpoint(spec, None, "export.checkpoint").resolve() == old
    new = checkpoint(tmp_path / "elsewhere", seconds=9)
    assert find_checkpoint(spec, None, "export.checkpoint").resolve() == new
    assert find_checkpoint(spec, str(old), "export.checkpoint") == old


def test_what_is_missing_names_the_task_to_run(spec, tmp_path):
    with pytest.raises(EngineError, match=r"export.checkpoint: no trained student.*Run `radioplat distill`"):
        export(spec)
    spec.export.checkpoint = str(tmp_path / "none")
    with pytest.raises(EngineError, match=r"export.checkpoint: there is no checkpoint .*none"):
        export(spec)
    with pytest.raises(EngineError, match=r"gen_trt_engine.onnx_file: .*Run `radioplat export` first"):
        build_engine(spec)


def test_other_channels_are_refused(spec):
    spec.export.input_channel = 4
    with pytest.raises(EngineError, match=r"export.input_channel: a student has 3 input channels, not 4"):
        export(spec)
