"""Detectors as ONNX: the file says what torch says, for any number of images, and as an engine of onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from radioplat.compression.quantization.quantize_model import quantize_model
from radioplat.errors import SpecError
from radioplat.exporting.engines.build import build_engine
from radioplat.exporting.engines.engine_runner import load_engine
from radioplat.exporting.onnx.compare import compare_with_torch
from radioplat.exporting.onnx.export import TOLERANCE, export_onnx
from radioplat.exporting.onnx.flat_detector import FlatDetector, reorder
from radioplat.models.detectors.base import Detector, DetectorArchitecture
from radioplat.models.detectors.checkpoint import save_detector
from radioplat.models.student.student import StudentArchitecture
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.engine import EngineBackend, TensorRTConfig
from radioplat.spec.schema.quantize import QuantizeConfig
from radioplat.tasks.export.export import export

pytest.importorskip("transformers")

SMALL = dict(
    d_model=16, encoder_ffn_dim=16, decoder_ffn_dim=16, decoder_layers=1, num_queries=12, encoder_attention_heads=2,
    decoder_attention_heads=2, num_denoising=4,
)  # fmt: skip
OPTIONS = {
    "rtdetr_v2": SMALL | dict(encoder_hidden_dim=16, hidden_expansion=0.5, decoder_layers=2),
    "dino": SMALL | dict(encoder_layers=1, num_feature_levels=3),
}
SIZE = 64


def detector_of(kind: str) -> Detector:
    torch.manual_seed(0)
    detector = Detector(DetectorArchitecture(StudentArchitecture("resnet10t"), 3, kind, OPTIONS[kind]))
    # What an untrained head says is nearly the same everywhere.
    detr = getattr(detector.detr, "model", detector.detr)
    for head in (detr.enc_score_head, *detr.decoder.class_embed):
        torch.nn.init.normal_(head.weight, std=0.5)
    for head in (detr.enc_bbox_head, *detr.decoder.bbox_embed):
        torch.nn.init.normal_(head.layers[-1].weight, std=0.2)
    return detector.eval()


@pytest.fixture(scope="module", params=[pytest.param("rtdetr_v2", marks=pytest.mark.proof), "dino"])
def exported(request, tmp_path_factory):
    """A detector through the task `export`: itself, the file, and the report."""
    folder = tmp_path_factory.mktemp(request.param)
    detector = detector_of(request.param)
    save_detector(detector, folder / "model")
    spec = spec_of(folder)
    return detector, export(spec), spec


def spec_of(folder, *overrides):
    written = {"results_dir": str(folder / "results"), "dataset": {"img_size": SIZE}}
    written["export"] = {"checkpoint": str(folder / "model"), "data_type": "fp32"}
    return load_spec(written, overrides)


def test_the_file_says_what_torch_says(exported):
    detector, report, _ = exported
    assert report.inputs == {"images": ["batch", 3, SIZE, SIZE]}
    assert report.outputs == {"logits": ["batch", 12, 3], "pred_boxes": ["batch", 12, 4]}
    assert report.max_relative_error < 1e-4
    session = onnxruntime.InferenceSession(str(report.path), providers=["CPUExecutionProvider"])
    images = FlatDetector(detector).noise(5, SIZE, SIZE, torch.Generator().manual_seed(1))
    with torch.no_grad():
        output = detector(images)
    wanted = {"logits": output.logits.numpy(), "pred_boxes": output.pred_boxes.numpy()}
    found = dict(zip(wanted, session.run(list(wanted), {"images": images.numpy()}), strict=True))
    for name, value in reorder(wanted, found).items():
        assert np.abs(value - wanted[name]).max() < 1e-4 * np.abs(wanted[name]).max()
        assert value.std(0).max() > 1e-3, "images differ, and so does what is said of them"


def test_it_is_built_and_run_as_an_engine(exported, tmp_path):
    _, report, _ = exported
    config = TensorRTConfig(data_type="fp32", min_batch_size=1, opt_batch_size=2, max_batch_size=4)
    engine = tmp_path / "detector.engine"
    built = build_engine(report.path, engine, config, backend=EngineBackend.onnxruntime)
    assert built.outputs == ["logits", "pred_boxes"] and built.executed
    assert built.execution["max_relative_error"] < 1e-4
    images = np.random.default_rng(0).random((3, 3, SIZE, SIZE), dtype=np.float32)
    assert load_engine(engine)(images)["pred_boxes"].shape == (3, 12, 4)


def test_a_file_that_says_something_else_is_told(exported, tmp_path):
    detector, report, _ = exported
    model = onnx.load(str(report.path))
    for tensor in model.graph.initializer:
        if tensor.name.endswith(".bias"):
            moved = onnx.numpy_helper.to_array(tensor) + np.float32(0.05)
            tensor.CopyFrom(onnx.numpy_helper.from_array(moved, tensor.name))
    onnx.save(model, str(tmp_path / "wrong.onnx"))
    module = FlatDetector(detector)
    told = compare_with_torch(
        tmp_path / "wrong.onnx",
        module,
        list(report.outputs),
        batches=(1,),
        sizes=[(SIZE, SIZE)],
        noise=module.noise,
        reorder=reorder,
    )
    assert told.max_relative_error > TOLERANCE


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["rtdetr_v2", "dino"])
def test_a_quantized_layer_that_decoder_layers_share_has_pairs_for_each(kind, tmp_path):
    """Both layers ask query_pos_head, and DINO's have their heads in common; names of nodes must be there once."""
    torch.manual_seed(0)
    options = OPTIONS[kind] | dict(decoder_layers=2)
    detector = Detector(DetectorArchitecture(StudentArchitecture("resnet10t", img_size=SIZE), 3, kind, options)).eval()
    images = torch.randint(0, 256, (4, 3, SIZE, SIZE), dtype=torch.uint8)
    quantized = quantize_model(detector, QuantizeConfig(), [images]).model
    report = export_onnx(quantized, tmp_path / "shared.onnx", height=SIZE, width=SIZE)
    graph = onnx.load(str(report.path)).graph
    names = [node.name for node in graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert len(set(names)) == len(names)
    shared = [name for name in names if "query_pos_head.layers.1.input_quantizer" in name]
    assert sorted(name.partition("input_quantizer")[2] for name in shared) == [".2.dq", ".2.q", ".dq", ".q"]
    assert report.quantized.cosine > 0.99
    assert not report.quantized.lint.errors, "what stays float, stays so on purpose"


def test_queries_are_matched_one_to_one():
    generator = np.random.default_rng(0)
    wanted = {"logits": generator.normal(size=(2, 9, 3)), "pred_boxes": generator.random((2, 9, 4))}
    order = np.stack([generator.permutation(9) for _ in range(2)])
    mixed = {name: np.take_along_axis(value, order[..., None], 1) for name, value in wanted.items()}
    back = reorder(wanted, mixed)
    assert all(np.array_equal(back[name], wanted[name]) for name in wanted)
    broken = mixed | {"logits": np.full_like(mixed["logits"], np.nan)}
    assert reorder(wanted, broken) is broken
    features = {"summary": generator.normal(size=(2, 5))}
    assert reorder(features, features) is features


@pytest.mark.parametrize(
    "override, says",
    [
        ("export.format=hf", "export.format"),
        ("export.dynamic_resolution=true", "one size"),
        ("export.adaptors=[clip]", "no heads"),
        ("export.force_ptq=true", "export.force_ptq"),
        ("export.input_height=72", "export.input_height: 72 is not a multiple"),
    ],
)
def test_what_a_detector_has_no_use_for_is_named(exported, override, says):
    with pytest.raises(SpecError, match=says):
        export(load_spec(exported[2], (override,)))
