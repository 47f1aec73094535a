"""``radioplat sensitivity``: what each layer loses alone."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from radioplat.cli.main import main
from radioplat.compression.quantization.quantize_model import quantize_model
from radioplat.models.student.checkpoint import load_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.models.vision_model import save_model
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.quantize import QuantizeConfig
from radioplat.tasks.quantize.calibration_images import calibration_images

SIZE = 32
VIT = StudentArchitecture("test_vit", {"img_size": SIZE, "depth": 2}, img_size=SIZE)
ONE = "backbone.model.blocks.1.mlp.fc1"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sensitivity")
    generator = np.random.default_rng(0)
    (folder / "images").mkdir()
    for i in range(8):
        pixels = generator.integers(0, 256, (4, 4, 3), np.uint8).repeat(12, 0).repeat(12, 1)
        Image.fromarray(pixels).save(folder / "images" / f"{i}.png")
    torch.manual_seed(0)
    student = Student(VIT).eval()
    save_model(student, folder / "student")
    spec = (
        f"results_dir: {folder}/results\ndataset: {{train_dataset: {{images_dir: {folder}/images}}, batch_size: 4}}\n"
    )
    (folder / "spec.yaml").write_text(spec + f"quantize: {{checkpoint: {folder}/student, calibration_batches: 2}}\n")
    return folder


@pytest.fixture(scope="module")
def plain(home):
    assert main(["sensitivity", "-e", str(home / "spec.yaml"), f"results_dir={home}/plain"]) == 0
    return json.loads((home / "plain/sensitivity/sensitivity.json").read_text())


def test_each_change_is_that_of_a_student_with_this_layer_alone_quantized(home, capsys):
    assert main(["sensitivity", "-e", str(home / "spec.yaml")]) == 0
    lines = capsys.readouterr().out
    result = json.loads((home / "results/sensitivity/sensitivity.json").read_text())
    changes = result["changes"]
    assert len(changes) == 9 and result["images"] == 8
    assert all(layer["w4a8"] > layer["int8"] > 0 for layer in changes.values())
    # A convolution has no blocks.
    assert [layer for layer, row in changes.items() if "w4a16" not in row] == ["backbone.model.patch_embed.proj"]
    assert all(row.get("w4a16", 1) > 0 for row in changes.values()) and not result["missing"]
    first = max(changes, key=lambda layer: changes[layer]["int8"])
    assert f"quantize.skip_names=[{first.removeprefix('backbone.model.')}]" in lines
    assert "all layers in fp8: mean cosine" in lines
    spec = load_spec(str(home / "spec.yaml"))
    images = torch.cat(calibration_images(spec, SIZE))
    student = load_student(home / "student").eval()
    in_blocks = {"default_layer_dtype": "int4", "default_activation_dtype": "native"}
    for layer, format, options in ((first, "int8", {}), (ONE, "int8", {}), (ONE, "w4a16", in_blocks)):
        config = QuantizeConfig(skip_names=[name for name in changes if name != layer], **options)
        alone = quantize_model(student, config, [images]).model
        with torch.no_grad():
            pairs = list(zip(alone.feature_probe(images), student.feature_probe(images), strict=True))
        wanted = sum(float((a - b).square().sum() / b.square().sum()) for (_, a), (_, b) in pairs)
        assert changes[layer][format] == pytest.approx(wanted, rel=1e-3)


def test_new_statistics_of_batchnorm_are_no_change_by_a_layer(home):
    torch.manual_seed(0)
    student = Student(StudentArchitecture("test_resnet", img_size=SIZE)).eval()
    save_model(student, home / "with_statistics")
    changes, cosines = [], []
    for i, value in enumerate(("false", "true")):
        fields = [f"quantize.checkpoint={home}/with_statistics", f"results_dir={home}/statistics_{i}"]
        fields.append(f"quantize.reestimate_batchnorm={value}")
        assert main(["sensitivity", "-e", str(home / "spec.yaml"), *fields]) == 0
        result = json.loads((home / f"statistics_{i}/sensitivity/sensitivity.json").read_text())
        changes.append(result["changes"])
        cosines.append(result["cosine"])
    assert changes[0] == changes[1] and cosines[0] != cosines[1]


def test_a_network_of_convolutions_has_no_blocks_and_the_other_formats(home, capsys):
    student = Student(StudentArchitecture("test_resnet", img_size=SIZE)).eval()
    save_model(student, home / "cnn")
    changes = [f"quantize.checkpoint={home}/cnn", f"results_dir={home}/of_cnn"]
    assert main(["sensitivity", "-e", str(home / "spec.yaml"), *changes]) == 0
    lines = " ".join(capsys.readouterr().out.split())
    assert "no layer in w4a16: nothing is left to quantize (a convolution: engines have 4-bit weights" in lines
    result = json.loads((home / "of_cnn/sensitivity/sensitivity.json").read_text())
    assert all(row.keys() == {"int8", "fp8", "w4a8"} for row in result["changes"].values())
    assert result["missing"].keys() == {"w4a16"}


@pytest.mark.parametrize(
    "fields",
    [
        ["quantize.mode=qat", "quantize.qat.num_epochs=2"],
        [
            "quantize.backend=modelopt.pytorch",
            "quantize.backend_kwargs.quant_cfg=INT8_SMOOTHQUANT_CFG",
            "quantize.default_layer_dtype=int8",
        ],
        [
            "quantize.mode=weight_only_ptq",
            "quantize.backend=modelopt.pytorch",
            "quantize.backend_kwargs.quant_cfg=INT4_AWQ_CFG",
            "quantize.default_layer_dtype=int4",
        ],
        ["quantize.mode=weight_only_ptq", "quantize.default_layer_dtype=int4", "quantize.block_size=64"],
    ],
)
def test_settings_of_other_modes_and_backends_change_nothing(home, plain, capsys, fields):
    fields = [*fields, f"results_dir={home}/chosen", "dataset.num_classes=3"]
    assert main(["plan", "sensitivity", "-e", str(home / "spec.yaml"), *fields]) == 0, capsys.readouterr().err
    assert main(["sensitivity", "-e", str(home / "spec.yaml"), *fields]) == 0, capsys.readouterr().err
    chosen = json.loads((home / "chosen/sensitivity/sensitivity.json").read_text())
    assert chosen["changes"] == plain["changes"] and chosen["cosine"] == plain["cosine"]


def test_blocks_have_the_size_of_the_spec(home):
    fields = ["quantize.block_size=128", f"results_dir={home}/of_128"]
    assert main(["sensitivity", "-e", str(home / "spec.yaml"), *fields]) == 0
    result = json.loads((home / "of_128/sensitivity/sensitivity.json").read_text())
    assert "no multiple of a block of 128" in result["missing"]["w4a16"]


def test_the_device_is_that_of_the_spec(home, capsys):
    assert main(["sensitivity", "-e", str(home / "spec.yaml"), "quantize.device=cuda:63"]) in (0, 1)
    said = " ".join("".join(capsys.readouterr()).split())
    assert "there is no GPU cuda:63" in said or "quantize.device is cuda:63 and there is no GPU here" in said


def test_wrong_fields_are_named(home, capsys):
    assert main(["sensitivity", "-e", str(home / "spec.yaml"), "quantize.percentile=10"]) == 1
    assert "quantize.percentile" in capsys.readouterr().err
    assert main(["sensitivity", "-e", str(home / "spec.yaml"), "quantize.block_size=32"]) == 1
    assert "engines have no blocks of 32" in capsys.readouterr().err
    assert main(["sensitivity", "-e", str(home / "spec.yaml"), "quantize.checkpoint=nowhere"]) == 1
    assert "quantize.checkpoint" in capsys.readouterr().err
