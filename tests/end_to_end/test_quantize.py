"""A distilled student quantized on real images, judged, trained on with its quantizers: each by what it left."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

import radioplat
from radioplat.cli.main import main
from radioplat.compression.quantization.quantize_model import quantize_model
from radioplat.errors import DataError, EngineError, SpecError
from radioplat.models.quantized.quantizer import quantizers
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.models.weights.read import read_weights
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.quantize import Calibrator, QuantizeConfig
from radioplat.tasks.evaluate.evaluate import evaluate
from radioplat.tasks.export.export import export
from radioplat.tasks.quantize.quantize import quantize
from radioplat.tracking.status import read_status

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def spec(quiet_run):
    return load_spec(quiet_run.file)


@pytest.fixture(scope="module")
def quantized(spec, tmp_path_factory):
    return quantize(spec, ("quantize.calibration_batches=6", f"quantize.results_dir={tmp_path_factory.mktemp('q')}"))


def test_what_it_left(quantized, spec):
    student = radioplat.load_student(quantized.path)
    assert len(quantizers(student)) == 18 and quantized.images == 12  # two blocks of four layers, and the patches
    assert min(quantized.cosine.values()) > 0.99
    told = json.loads((quantized.path / "quantize.json").read_text())
    layer = told["layers"][0]
    assert layer["name"] == "backbone.blocks.0.attn.qkv" and layer["type"] == "Linear"
    assert layer["weights"]["format"] == layer["activations"]["format"] == "int8" and layer["weights"]["scales"] == 144
    own = student.backbone.blocks[0].attn.qkv.input_quantizer
    assert layer["activations"]["amax"] == pytest.approx(float(own.amax))
    assert set(told["skipped"].values()) == {"a regression", "a head, used in training only (quantize.heads)"}
    last = read_status(quantized.path.parent / "status.json")[-1]
    assert last["status"] == "SUCCESS" and last["kpi"]["cosine_spatial"] > 0.99 and last["kpi"]["layers"] == 9


def test_it_is_judged_as_any_student(quantized, spec, tmp_path):
    changes = (f"evaluate.checkpoint={quantized.path}", f"results_dir={tmp_path}", "evaluate.pictures=0")
    found = evaluate(spec, changes)
    assert found.fidelity["student"]["lite0"].keys() == {"summary", "spatial"}
    with pytest.raises(EngineError, match="export.format: format radio has no place for a quantized"):
        changes = (f"export.checkpoint={quantized.path}", f"results_dir={tmp_path}", "export.format=radio")
        export(load_spec(spec, changes))


@pytest.mark.proof
def test_it_trains_on_with_its_scales(quantized, spec, distil, tmp_path):
    changes = (f"train.pretrained_model_path={quantized.path}", f"results_dir={tmp_path}", "train.num_epochs=1")
    trail = distil(spec, *changes)
    before, after = radioplat.load_student(quantized.path), radioplat.load_student(trail.result.checkpoint)
    assert after.architecture.quantized == before.architecture.quantized
    moved = [not torch.equal(q.scale, quantizers(after)[n].scale) for n, q in quantizers(before).items()]
    assert all(moved) and all(bool((q.scale > 0).all()) for q in quantizers(after).values())
    assert not [line for line in trail.lines if "starts anew" in line]


def test_the_command_shows_every_layer(spec, quiet_run, tmp_path, capsys):
    changes = ["quantize.calibration_batches=1", "quantize.algorithm=percentile", "quantize.device=cuda"]
    changes.append(f"quantize.results_dir={tmp_path}")
    assert main(["quantize", "-e", str(quiet_run.file), *changes]) == 0
    said, noted = capsys.readouterr()
    assert "backbone.blocks.1.mlp.fc2" in said and "int8 x 48" in said and "model_quantized" in said
    assert torch.cuda.is_available() or "quantize.device is cuda and there is no GPU here" in " ".join(noted.split())


def test_a_trained_network_says_nearly_what_it_said(weights, crops):
    """EfficientNet-Lite0 as ImageNet trained it, judged on other pieces of photographs than it was calibrated on."""
    plain = Student(StudentArchitecture("tf_efficientnet_lite0", img_size=96, mean=(0.5,) * 3, std=(0.5,) * 3)).eval()
    tensors = {k: v for k, v in read_weights(weights["lite0"]).items() if not k.startswith("classifier")}
    plain.backbone.model.load_state_dict(tensors)

    def images(count: int, seed: int) -> torch.Tensor:
        return torch.tensor(np.stack([c for _, c in crops(count, 96, seed)])).permute(0, 3, 1, 2).contiguous()

    made = quantize_model(plain, QuantizeConfig(algorithm=Calibrator.percentile), [images(16, s) for s in range(3)])
    with torch.no_grad():
        ours, theirs = made.model(images(16, 77)), plain(images(16, 77))
    for kind in ("summary", "spatial"):
        likeness = torch.cosine_similarity(getattr(ours, kind), getattr(theirs, kind), dim=-1).mean()
        assert 0.95 < likeness < 0.9999


def one_colour(folder, count=3):
    folder.mkdir()
    for i in range(count):
        Image.fromarray(np.full((80, 80, 3), 40 * i, dtype=np.uint8)).save(folder / f"{i}.png")
    return folder


def test_bad_input_is_named(quantized, spec, tmp_path):
    def refused(kind, said, *changes):
        with pytest.raises(kind, match=said):
            quantize(spec, (f"quantize.results_dir={tmp_path / 'out'}", *changes))

    flat, empty = one_colour(tmp_path / "flat"), tmp_path / "empty"
    empty.mkdir()
    calibration = "dataset.quant_calibration_dataset.images_dir"
    refused(DataError, "quant_calibration_dataset: all calibration images are of one colour", f"{calibration}={flat}")
    refused(DataError, "quant_calibration_dataset", f"{calibration}={empty}")
    refused(SpecError, "checkpoint: this student is quantized already", f"quantize.checkpoint={quantized.path}")
    refused(SpecError, r"quantize.skip_names\[0\]: no layer is called 'layer9'", "quantize.skip_names=[layer9]")
    refused(SpecError, "quantize.layers: nothing is left", "quantize.default_layer_dtype=native")
    refused(SpecError, "default_layer_dtype: E5M2", "quantize.default_layer_dtype=fp8_e5m2")
    held_out = spec.dataset.val_dataset.tar_data_sources[0].root_dir
    own = f"dataset.quant_calibration_dataset.tar_data_sources=[{{root_dir: {held_out}}}]"
    refused(SpecError, "dataset.quant_calibration_dataset: .* is also in dataset.val_dataset", own)
