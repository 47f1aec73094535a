"""The chain on a detector, in small: what is measured, how engines are typed, which layers relax first, a rerun."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.composites import CLASSES, write_set
from radioplat.compression.quantization.quantize_model import quantize_model
from radioplat.errors import SpecError
from radioplat.models.detectors.base import Detector, DetectorArchitecture
from radioplat.models.detectors.checkpoint import DETECTOR_FILE, save_detector
from radioplat.models.quantized.architecture import LayerFormats, Quantization
from radioplat.models.quantized.quantizer import quantizers
from radioplat.models.student.student import StudentArchitecture
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.compress import Stage
from radioplat.spec.schema.quantize import QuantizeConfig
from radioplat.tasks.compress.compress import compress
from radioplat.tasks.compress.definition import Inputs, Product
from radioplat.tasks.compress.derive import place, stage_spec
from radioplat.tasks.compress.groups import Step
from radioplat.tasks.compress.relax import milder_quantize
from radioplat.tasks.compress.sensitivity import most_sensitive
from radioplat.tasks.compress.tables import tables_of
from radioplat.tasks.evaluate.gate_metrics import gate_metric

pytest.importorskip("transformers")
pytest.importorskip("pycocotools")

OPTIONS = dict(
    d_model=16, encoder_ffn_dim=16, decoder_ffn_dim=16, encoder_layers=1, decoder_layers=1, num_queries=8,
    encoder_attention_heads=2, decoder_attention_heads=2, num_denoising=4, num_feature_levels=3,
)  # fmt: skip


@pytest.fixture(scope="module")
def detector() -> Detector:
    torch.manual_seed(0)
    student = StudentArchitecture("resnet10t", img_size=64)
    return Detector(DetectorArchitecture(student, len(CLASSES), "dino", OPTIONS, class_names=CLASSES)).eval()


@pytest.fixture(scope="module")
def spec(detector, tmp_path_factory):
    """Of a chain that begins with that detector."""
    folder = tmp_path_factory.mktemp("chain")
    sets = {name: write_set(folder / name, 6, name == "val", side=64) for name in ("train", "val")}
    splits = {f"{name}_dataset": dict(images_dir=str(i), coco=str(c)) for name, (i, c) in sets.items()}
    save_detector(detector, folder / "start")
    return {
        "results_dir": str(folder / "results"),
        "model": {"task": "detection", "backbone": {"type": "resnet10t"}},
        "dataset": {"img_size": 64, "batch_size": 4, "workers": 1, **splits},
        "compress": {"checkpoint": str(folder / "start"), "stages": ["prune", "evaluate"]},
        "cluster": {"mode": "local"},
    }


def assert_lines_of_stages(printed):
    """A line at the start and at the end of each stage on standard error, which is no terminal here."""
    starts = [line for line in printed.err.splitlines() if re.match(r"0\d_", line)]
    assert [re.sub(r"(after) \d+ s: .*", r"\1", line) for line in starts] == [
        "00_start is measured on dataset.val_dataset",
        "00_start is measured after",
        "01_prune starts",
        "01_prune is done after",
        "01_prune is measured on dataset.val_dataset",
        "01_prune is measured after",
        "02_evaluate starts",
        "02_evaluate is done after",
    ]


def test_a_chain_measures_map_and_goes_on(spec, detector, capsys):
    report = compress(spec)
    assert_lines_of_stages(capsys.readouterr())
    assert report.report == report.folder / "report.html" and "02_evaluate: By class" in report.report.read_text()
    start, pruned, judged = report.entries
    assert report.metric == "mAP" and all(set(entry.metrics) == {"mAP"} for entry in report.entries)
    assert start.outcome.params == sum(p.numel() for p in detector.student.backbone.parameters())
    assert start.outcome.bytes == (Path(start.outcome.path) / DETECTOR_FILE).stat().st_size
    assert pruned.outcome.params < start.outcome.params and pruned.outcome.macs < start.outcome.macs
    assert judged.metrics["mAP"] == pruned.metrics["mAP"]
    assert [row["name"] for row in judged.outcome.facts["models"]] == ["00_start", "01_prune"]
    assert [table.title for table in tables_of(report.entries, report.metric)] == [
        "Compression",
        "02_evaluate: Detectors side by side",
        "02_evaluate: Difference from 00_start in percentage points",
        "02_evaluate: By class",
    ]
    lines: list[str] = []
    again = compress(spec, say=lines.append)
    assert [line for line in lines if "is done already" in line] == [
        f"{name} is done already" for name in ("00_start", "01_prune", "02_evaluate")
    ]
    assert [e.outcome for e in again.entries[:2]] == [e.outcome for e in report.entries[:2]]
    assert [t.rows for t in tables_of(again.entries, again.metric)] == [
        t.rows for t in tables_of(report.entries, report.metric)
    ]


def test_a_gate_on_what_a_detector_has_not(spec):
    with pytest.raises(SpecError, match="compress.gates.metric: knn was not measured after 01_prune; measured: mAP"):
        compress(spec, ("compress.gates.min_kept=1", "compress.gates.metric=knn"))


def test_what_gates_look_at():
    for asked, metric in (
        ([], "fidelity"),
        (["model.task=detection"], "mAP"),
        (["model.task=detection", "compress.gates.metric=knn"], "knn"),
    ):
        assert gate_metric(load_spec(None, asked)) == metric


@pytest.mark.parametrize(
    ("backbone", "decoder", "said"),
    [("int8", "fp8", "fp8"), ("int8", None, "int8"), (None, "int8", "int8"), (None, None, "fp32")],
)
def test_an_engine_is_typed_by_backbone_and_decoder(detector, backbone, decoder, said, tmp_path):
    def of(layer: str, formats: str | None) -> Quantization | None:
        return Quantization({layer: LayerFormats(formats, formats)}) if formats else None

    form = detector.architecture
    student = replace(form.student, quantized=of("backbone.model.layer1.0.conv1", backbone))
    quantized = of("detr.decoder.layers.0.mlp.fc1", decoder)
    save_detector(Detector(replace(form, student=student, quantized=quantized)), tmp_path)
    step = Step(Stage.engine, "02_engine")
    spec = load_spec(None, ["compress.stages=[export,engine]"])
    there = place(
        stage_spec(spec, step),
        step,
        tmp_path / "out",
        Inputs({Product.student: tmp_path, Product.onnx: Path("s.onnx")}),
        "0123456789",
    )
    assert there.gen_trt_engine.tensorrt.data_type == said


@pytest.mark.parametrize("coarse", ["student.backbone.model.layer3.0.downsample.1", "detr.encoder.layers.0.mlp.fc1"])
def test_the_layer_of_a_coarse_scale_relaxes_first(spec, detector, coarse, tmp_path):
    images = [torch.randint(0, 256, (4, 3, 64, 64), dtype=torch.uint8)]
    quantized = quantize_model(detector, QuantizeConfig(), images).model
    for name, quantizer in quantizers(quantized).items():
        if name.startswith(f"{coarse}."):
            quantizer.scale.data *= 60
    save_detector(quantized, tmp_path)
    asked = load_spec(spec)
    layers = most_sensitive(asked, tmp_path)
    assert layers[0] == coarse and len(layers) > 20
    assert f'"{coarse}"' in milder_quantize(asked, 1, tmp_path)[0]
