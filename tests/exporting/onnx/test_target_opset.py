"""A file for a version of TensorRT: in an operator set that it reads, of operators that it has."""

from __future__ import annotations

import json

import onnx
import pytest
import torch

from radioplat.errors import EngineError, SpecError
from radioplat.exporting.onnx.export import export_onnx
from radioplat.exporting.onnx.opset import choose_opset
from radioplat.models.features import Features
from radioplat.models.quantized.architecture import LayerFormats
from radioplat.models.student.checkpoint import save_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.export.export import export

from ..qdq.conftest import CNN, SIZE, VIT, quantized_student

NEWER = {"Gelu", "GroupNormalization", "Mish"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A ViT, a net with SiLU and one with GELU and LayerNorm in floats; two in INT8 and one in FP8."""
    folder = tmp_path_factory.mktemp("students")
    torch.manual_seed(0)
    plain = {"vit": VIT, "cnn": CNN}
    plain["silu"] = StudentArchitecture("test_efficientnet", img_size=SIZE)
    plain["gelu"] = StudentArchitecture("test_convnext", img_size=SIZE)
    students = {name: Student(form).eval() for name, form in plain.items()}
    students["int8_vit"], students["int8_cnn"] = (
        quantized_student(form, LayerFormats("int8", "int8")) for form in (VIT, CNN)
    )
    students["fp8_vit"] = quantized_student(VIT, LayerFormats("fp8", "fp8"))
    for name, student in students.items():
        (folder / name).mkdir()
        save_student(student, student.state_dict(), folder / name)
    return {name: folder / name for name in students}


def written(tmp_path, checkpoint, *changes):
    fixed = [f"results_dir={tmp_path}", f"export.checkpoint={checkpoint}", f"dataset.img_size={SIZE}"]
    return export(load_spec(None, [*fixed, *(f"export.{change}" for change in changes)]))


def opset_of(path) -> int:
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    return {entry.domain: entry.version for entry in model.opset_import}[""]


def operators(path) -> set[str]:
    return {node.op_type for node in onnx.load(path).graph.node}


def proof(*values):
    return pytest.param(*values, marks=pytest.mark.proof)


@pytest.mark.parametrize(
    ("version", "name"),
    [("8.5.2", "vit"), proof("8.4", "silu"), *(proof("8.6.1", name) for name in ("gelu", "vit", "silu", "cnn"))],
)
def test_a_file_for_tensorrt_8_is_in_operator_set_17(name, version, folders, tmp_path):
    """`export` itself compares the file with torch on onnxruntime before it gets its name."""
    report = written(tmp_path, folders[name], f"tensorrt_version={version}")
    assert report.opset == opset_of(report.path) == 17 and not operators(report.path) & NEWER
    assert ("LayerNormalization" in operators(report.path)) == (version == "8.6.1" and name in ("vit", "gelu"))


def test_fp16_needs_no_newer_set_than_fp32(folders, tmp_path):
    """Scales of Q/DQ do; here there are none."""
    report = written(tmp_path, folders["vit"], "tensorrt_version=8.5.2", "data_type=fp16")
    assert report.opset == opset_of(report.path) == 17 and report.data_type == "fp16"


@pytest.mark.parametrize("version", ["9.3", "10.0", "10.3.1", "11", None])
def test_a_newer_target_keeps_the_usual_set(version):
    assert choose_opset(None, "fp32", [], version) == (18, [])


def test_the_set_that_is_chosen_is_the_files(folders, tmp_path):
    report = written(tmp_path, folders["vit"], "tensorrt_version=9.3")
    assert report.opset == opset_of(report.path) == 18


@pytest.mark.parametrize(
    ("version", "name"),
    [("8.5", "int8_cnn"), proof("8.6", "int8_vit"), proof("8.6", "int8_cnn"), proof("8.5", "int8_vit")],
)
def test_int8_for_tensorrt_8(name, version, folders, tmp_path):
    report = written(tmp_path, folders[name], f"tensorrt_version={version}", "stored_weights=false")
    assert report.opset == opset_of(report.path) == 17 and report.quantized.formats == ["int8"]
    assert not [finding for finding in report.quantized.lint.findings if finding.rule == "weight-without-dq"]
    if version == "8.6":
        newer = written(tmp_path / "10", folders[name], "tensorrt_version=10.3")
        assert len(report.quantized.lint.findings) == len(newer.quantized.lint.findings)


def test_the_graph_of_a_cache_is_lowered_too(folders, tmp_path):
    changes = ["tensorrt_version=8.6.1", "calibration_cache=true", f"bundle={tmp_path / 'bundle'}"]
    report = written(tmp_path, folders["int8_vit"], *changes)
    floats = report.path.with_name("student.float.onnx")
    assert opset_of(report.path) == opset_of(floats) == opset_of(tmp_path / "bundle" / floats.name) == 17
    cached = json.loads(report.path.with_name("ranges.json").read_text())
    values = {name for node in onnx.load(floats).graph.node for name in (*node.input, *node.output)}
    assert {entry["tensor"] for entry in cached if entry["kind"] == "activation"} <= values


@pytest.mark.parametrize(
    ("name", "changes", "error", "says"),
    [
        (
            "vit",
            ["tensorrt_version=8.6.1", "opset_version=18"],
            SpecError,
            "export.opset_version: TensorRT 8.6.1 reads ONNX up to operator set 17",
        ),
        (
            "vit",
            ["tensorrt_version=9.2", "opset_version=20"],
            SpecError,
            "export.opset_version: TensorRT 9.2 reads ONNX up to operator set 19",
        ),
        (
            "vit",
            ["tensorrt_version=8.2"],
            SpecError,
            "export.tensorrt_version: TensorRT 8.2 reads ONNX up to operator set 13",
        ),
        (
            "vit",
            ["tensorrt_version=10.1", "opset_version=21"],
            EngineError,
            "export.opset_version: operator set 21 is unknown to TensorRT 10.1",
        ),
        (
            "vit",
            ["tensorrt_version=9.2", "data_type=bf16"],
            EngineError,
            "reads ONNX up to operator set 19, and bf16 needs 22",
        ),
        ("fp8_vit", ["tensorrt_version=8.6"], EngineError, "TensorRT 8.6 has no fp8. Use 9 or newer"),
        (
            "int8_vit",
            ["tensorrt_version=8.6"],
            EngineError,
            "export.stored_weights: the parser of TensorRT 8.6 reads no",
        ),
        (
            "int8_vit",
            ["tensorrt_version=8.6", "stored_weights=false", "data_type=fp16"],
            EngineError,
            "operator set 17, and fp16, int8 needs 19",
        ),
    ],
)
def test_what_the_target_does_not_read_is_one_sentence(name, changes, error, says, folders, tmp_path):
    with pytest.raises(error) as caught:
        written(tmp_path, folders[name], *changes)
    assert says in str(caught.value) and len(str(caught.value).splitlines()) == 1
    assert not list(tmp_path.rglob("*.onnx"))


class Made(torch.nn.Module):
    """A student whose map is what ``how`` makes of the images."""

    head_names: list[str] = []

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, images):
        return Features(None, self.how(images).permute(0, 2, 3, 1))


def antialiased(x):
    return torch.nn.functional.interpolate(x, size=(5, 5), mode="bilinear", antialias=True)


@pytest.mark.parametrize(
    ("how", "asked", "says"),
    [
        (antialiased, {"tensorrt_version": "8.6"}, "TensorRT 8.6 does not support Resize with antialiasing"),
        (antialiased, {"opset": 17}, "opset_version: operator set 17 does not support Resize with antialiasing"),
        (torch.nn.functional.mish, {"tensorrt_version": "8.6"}, "TensorRT 8.6 does not support Mish"),
        (torch.nn.functional.hardswish, {"tensorrt_version": "8.4"}, "TensorRT 8.4 does not support HardSwish"),
    ],
)
def test_an_operator_that_the_target_has_not_is_named(how, asked, says, tmp_path):
    with pytest.raises(EngineError, match=says):
        export_onnx(Made(how), tmp_path / "a.onnx", height=8, width=8, batch_size=2, **asked)


@pytest.mark.parametrize(
    "how",
    [
        lambda x: torch.cat([part * (i + 1) for i, part in enumerate(x.chunk(3, 1))], 1),
        lambda x: torch.nn.functional.pad(x, (1, 2, 0, 1)),
        lambda x: torch.nn.functional.group_norm(torch.cat([x, x * 2], 1), 2),
        lambda x: torch.nn.functional.interpolate(x, scale_factor=2, mode="nearest"),
        lambda x: x.amax((2, 3), keepdim=True) - x.mean((2, 3), keepdim=True) + x.norm(dim=1, keepdim=True),
        torch.nn.functional.hardswish,
    ],
)
def test_what_changed_between_the_sets_is_rewritten(how, tmp_path):
    report = export_onnx(Made(how), tmp_path / "a.onnx", height=8, width=8, batch_size=2, tensorrt_version="8.6")
    assert opset_of(report.path) == 17 and report.max_relative_error < 1e-5


def test_set_17_can_be_asked_for_by_itself(tmp_path):
    report = export_onnx(Made(torch.relu), tmp_path / "a.onnx", height=8, width=8, batch_size=2, opset=17)
    assert opset_of(report.path) == 17 and not report.notes
