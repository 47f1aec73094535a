"""Which layer loses most, where it is known beforehand."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from radioplat.compression.quantization.calibrate import calibrate
from radioplat.models.quantized.architecture import LayerFormats, Quantization
from radioplat.models.student.checkpoint import save_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.compress import Stage
from radioplat.spec.schema.distill import TeacherConfig
from radioplat.spec.schema.quantize import QuantizeConfig, QuantizeMode
from radioplat.tasks.compress.derive import stage_spec
from radioplat.tasks.compress.groups import Step
from radioplat.tasks.compress.relax import milder_quantize
from radioplat.tasks.compress.sensitivity import most_sensitive

LAYERS = [f"backbone.blocks.{i}.{name}" for i in (0, 1) for name in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")]


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    """Six noise images to train on."""
    folder = tmp_path_factory.mktemp("images") / "noise"
    folder.mkdir()
    for i in range(6):
        pixels = np.random.default_rng(i).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    train = {"images_dir": str(folder.parent)}
    return load_spec({"results_dir": str(folder.parent / "out"), "dataset": {"workers": 1, "train_dataset": train}})


@pytest.fixture(scope="module")
def student() -> Student:
    """Quantized and calibrated: little is lost."""
    kwargs = {"embed_dim": 32, "depth": 2, "num_heads": 2}
    plain = StudentArchitecture(type="radio_vit_tiny_patch16", kwargs=kwargs, img_size=32)
    torch.manual_seed(0)
    student = Student(replace(plain, quantized=Quantization({name: LayerFormats() for name in LAYERS})))
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    calibrate(student, QuantizeConfig(), lambda: student(images))
    return student


@pytest.mark.parametrize("coarse", LAYERS)
def test_the_layer_of_a_coarse_scale_comes_first(spec, student, coarse, tmp_path):
    quantizer = student.get_submodule(coarse).weight_quantizer
    before = quantizer.scale.data.clone()
    quantizer.scale.data *= 60
    save_student(student, student.state_dict(), tmp_path)
    quantizer.scale.data.copy_(before)
    found = most_sensitive(spec, tmp_path)
    assert found[0] == coarse and sorted(found) == sorted(LAYERS)


def test_a_retry_leaves_more_layers_float_each_time(spec, student, tmp_path):
    save_student(student, student.state_dict(), tmp_path)
    order = most_sensitive(spec, tmp_path)
    spec.quantize.skip_names = ["patch_generator"]
    for attempt in (1, 2, 3):
        (line,) = milder_quantize(spec, attempt, tmp_path)
        names = load_spec(spec, [line]).quantize.skip_names
        assert names == ["patch_generator", *order[: math.ceil(8 * (1 - 0.75**attempt))]]
    assert milder_quantize(spec, 20, tmp_path) == []


def test_the_last_retry_trains_where_there_is_a_teacher(spec, student, tmp_path):
    save_student(student, student.state_dict(), tmp_path)
    taught = copy.deepcopy(spec)
    taught.distill.teacher = [TeacherConfig()]
    assert milder_quantize(taught, 3, tmp_path) == ["quantize.mode=qat"]
    trained = load_spec(taught, ["quantize.mode=qat"])
    assert "skip_names" in milder_quantize(trained, 3, tmp_path)[0]
    assert "skip_names" in milder_quantize(taught, 2, tmp_path)[0]
    taught.compress.stages, step = [Stage.ptq], Step(Stage.ptq, "01_ptq")
    taught.quantize.qat.max_steps = 7
    assert stage_spec(taught, step).quantize.qat.max_steps is None
    again = stage_spec(taught, step, ["quantize.mode=qat"]).quantize
    assert again.mode is QuantizeMode.qat and again.qat.max_steps == 7
