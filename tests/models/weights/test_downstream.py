"""Backbones inside TAO's checkpoints of downstream tasks: named, loaded by students and teachers, or refused.

The prefixes are those under which TAO 7.0.1's models keep their backbones; the tensors beside them are theirs too.
"""

from __future__ import annotations

import re

import pytest
import timm
import torch

from radioplat.cli.main import main
from radioplat.errors import WeightsError
from radioplat.models.backbones import names
from radioplat.models.pretrained.initial_weights import start_notes, start_student
from radioplat.models.student.student import StudentArchitecture
from radioplat.models.weights.layouts import convert_weights, inspect_weights
from radioplat.models.weights.read import fit, read_weights
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.teachers.adapters.registry import adapter_class
from radioplat.teachers.base.teacher import check_weights

BODY = "model.model.backbone.0.body."
# tao_model in the checkpoint (SegFormer's has none), the task's name, the backbone's prefix, tensors beside it
KINDS = {
    "classification": ("classification", "classification", "model.", []),
    "dino": ("dino", "DINO", BODY, ["model.model.label_enc.weight", "model.model.transformer.level_embed"]),
    "grounding_dino": ("grounding_dino", "Grounding DINO", BODY, ["model.model.bert.embeddings.word.weight"]),
    "mask_grounding_dino": (
        "mask_grounding_dino",
        "Mask Grounding DINO",
        BODY,
        ["model.model.bert.pooler.weight", "model.model.mask_head.lay1.weight"],
    ),
    "rtdetr": ("rtdetr", "RT-DETR", "model.model.backbone.", ["model.model.decoder.tgt_embed.weight"]),
    "segformer": (None, "SegFormer", "model.backbone.", ["model.decoder.linear_c4.proj.weight"]),
    "changenet": (
        "visual_changenet_segment",
        "Visual ChangeNet",
        "model.backbone.",
        ["model.decoder.linear_c4.proj.weight", "model.decoder.diff_c4.0.bias", "model.decoder.make_pred_c4.0.bias"],
    ),
    "changenet_classify": (
        "visual_changenet_classify",
        "Visual ChangeNet",
        "model.backbone.",
        ["model.decoder.linear_c4.proj.weight", "model.decoder.diff_c4.0.bias", "model.decoder.classifier.0.bias"],
    ),
    "mal": ("mal", "MAL", "student.backbone.", ["student.roi_head.mlp1.weight", "teacher.mask_head.mlp1.weight"]),
    "mae": ("mae", "MAE", "model.", ["model.decoder_embed.weight", "model.mask_token", "model.decoder_pred.bias"]),
    "mask2former": ("mask2former", "Mask2Former", "model.backbone.", ["model.sem_seg_head.predictor.x.weight"]),
}
BACKBONES = ["test_resnet", pytest.param("test_vit", marks=pytest.mark.proof)]


@pytest.fixture(scope="module", params=BACKBONES)
def backbone(request):
    torch.manual_seed(3)
    return request.param, timm.create_model(request.param, num_classes=0).state_dict()


@pytest.fixture
def stored(tmp_path):
    """stored(kind, tensors, named) -> a checkpoint as Lightning writes it for one of TAO's tasks; its path."""

    def store(kind: str, tensors: dict[str, torch.Tensor], named: bool = True):
        task, _, prefix, beside = KINDS[kind]
        state = {prefix + name: tensor for name, tensor in tensors.items()}
        if kind == "mal":  # the teacher is the student's moving average
            state |= {f"teacher.backbone.{name}": tensor + 1 for name, tensor in tensors.items()}
        state |= {name: torch.ones(3, 2) for name in beside}
        loops = {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 3}}}}
        content = {"epoch": 3, "global_step": 90, "pytorch-lightning_version": "2.4.0", "state_dict": state}
        content |= {"loops": loops, "callbacks": {}, "optimizer_states": [], "lr_schedulers": []}
        content |= {"tao_model": task} if task and named else {}
        torch.save(content, tmp_path / f"{kind}.pth")
        return tmp_path / f"{kind}.pth"

    return store


def student_of(path, name: str) -> tuple[dict[str, torch.Tensor], list[str]]:
    spec = load_spec(None, (f"model.backbone.pretrained_backbone_path={path}",))
    architecture = StudentArchitecture(names.resolve(name).name)
    return start_student(spec, architecture).backbone.model.state_dict(), start_notes(spec, architecture)


def teacher_of(path, name: str) -> dict[str, torch.Tensor]:
    entry = {"mode": "spatial", "loss_type": "MSE", "model": {"backbone": {"type": name}}}
    spec = load_spec({"distill": {"teacher": [entry | {"pretrained_teacher_model_path": str(path)}]}})
    (teacher,) = resolve_teachers(spec)
    check_weights(teacher)
    model = adapter_class(teacher).build(teacher)
    model.load(teacher)
    return model.target.state_dict()


def equal(found: dict[str, torch.Tensor], tensors: dict[str, torch.Tensor]) -> bool:
    return found.keys() == tensors.keys() and all(torch.equal(found[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("named", [True, False])
def test_inspect_names_task_and_type(kind, named, stored, backbone, capsys):
    (name, tensors), (_, task, prefix, beside) = backbone, KINDS[kind]
    path = stored(kind, tensors, named)
    found = inspect_weights(path)
    if named or kind != "classification":  # without tao_model a classifier's file has nothing that is only TAO's
        assert task in found.layout
    assert f"{prefix!r}" in found.layout and name in found.types and set(beside) <= set(found.dropped)
    assert main(["weights", "inspect", str(path)]) == 0
    assert f"model.backbone.type: {name}" in capsys.readouterr().out
    out = convert_weights(path, path.with_suffix(".safetensors"))[1]
    assert equal(read_weights(out), tensors)


@pytest.mark.parametrize("kind", KINDS)
def test_a_student_starts_from_it(kind, stored, backbone):
    (name, tensors), (_, task, _, beside) = backbone, KINDS[kind]
    found, notes = student_of(stored(kind, tensors), name)
    assert equal(found, tensors)
    if not beside:
        assert notes == []
        return
    (note,) = notes
    assert note.startswith("model.backbone.pretrained_backbone_path: ") and f"TAO's {task}" in note
    count = len(beside) + (len(tensors) if kind == "mal" else 0)
    modules = [".".join(each.split(".")[: 3 if each.startswith("model.model.") else 2]) for each in beside]
    assert f"({count} tensor" in note and all(module in note for module in modules) and "is left out" in note


@pytest.mark.parametrize("kind", KINDS)
def test_it_teaches(kind, stored, backbone):
    assert equal(teacher_of(stored(kind, backbone[1]), backbone[0]), backbone[1])


def test_a_classifier_of_other_labels_is_no_obstacle(stored):
    tensors = timm.create_model("resnet18", num_classes=0).state_dict()
    path = stored("classification", {**tensors, "fc.weight": torch.ones(7, 512), "fc.bias": torch.ones(7)})
    assert equal(student_of(path, "resnet18")[0], tensors) and equal(teacher_of(path, "resnet18"), tensors)
    assert "resnet18" in inspect_weights(path).types


def test_fan_in_a_detector(stored):
    """FAN, which timm lacks, with the norms and the convolution that TAO's DINO adds to it."""
    torch.manual_seed(3)
    tensors = timm.create_model(names.resolve("fan_tiny_8_p4_hybrid").name, num_classes=0).state_dict()
    path = stored("dino", tensors | {"out_norm0.weight": torch.ones(2), "learnable_downsample.bias": torch.ones(2)})
    assert inspect_weights(path).types == ["fan_tiny_8_p4_hybrid"]
    for load in (teacher_of, lambda path, name: student_of(path, name)[0]):
        assert equal(load(path, "fan_tiny_8_p4_hybrid"), tensors)


def by_metas_names(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A ConvNeXt V2 as in Meta's repository and in TAO: Woo et al. 2023."""
    renamed = {}
    for name, tensor in tensors.items():
        name = re.sub(r"^stem\.", "downsample_layers.0.", name)
        name = re.sub(r"^stages\.(\d)\.downsample", r"downsample_layers.\1", name).replace(".blocks.", ".")
        name = re.sub(r"^head\.norm\.", "norm.", name.replace("conv_dw", "dwconv"))
        name = name.replace("mlp.grn.weight", "grn.gamma").replace("mlp.grn.bias", "grn.beta")
        name = name.replace("mlp.fc", "pwconv")
        renamed[name] = tensor.view(1, 1, 1, -1) if ".grn." in name else tensor
    return renamed


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("kind", ["classification", "rtdetr", "mae"])
def test_a_convnext_by_metas_names(kind, named, stored):
    torch.manual_seed(3)
    tensors = timm.create_model("convnextv2_atto", num_classes=0).state_dict()
    theirs = by_metas_names(tensors)
    assert not set(theirs) & set(tensors)
    path = stored(kind, theirs | ({"conv_512.weight": torch.ones(2)} if kind == "rtdetr" else {}), named)
    if named or kind != "classification":
        assert inspect_weights(path).types == ["convnextv2_atto"]
    assert equal(student_of(path, "convnextv2_atto")[0], tensors)
    assert equal(teacher_of(path, "convnextv2_atto"), tensors)
    with pytest.raises(WeightsError, match="does not fit"):
        student_of(path, "convnextv2_femto")


@pytest.mark.parametrize(
    ("kind", "inside"), [("classification", ""), ("changenet", ""), ("rtdetr", ""), ("segformer", "spm")]
)
def test_a_radio_vit_in_a_task(kind, inside, stored, radio_student):
    """TAO's RADIO has the ViT at radio.radio.model of its backbone; SegFormer's adapter is beside that."""
    student = radio_student()
    tensors = {f"radio.radio.model.{name}": tensor for name, tensor in student.backbone.state_dict().items()}
    path = stored(kind, tensors | ({"spm.stem.0.weight": torch.ones(2)} if inside else {}))
    assert repr(f"{KINDS[kind][2]}radio.radio.model.") in inspect_weights(path).layout
    spec = load_spec(None, (f"model.backbone.pretrained_backbone_path={path}",))
    assert equal(start_student(spec, student.architecture).backbone.state_dict(), student.backbone.state_dict())
    assert bool(start_notes(spec, student.architecture)) is (kind != "classification")


ADDED = {  # what TAO adds inside the backbone's module
    "FAN's norms": ["out_norm0.weight", "out_norm3.bias", "learnable_downsample.weight"],
    "ConvNeXt's widths": ["conv_512.weight", "conv_2048.bias"],
    "EfficientViT's norms": ["norm1.weight", "norm3.bias"],
    "ViT-Adapter": ["spm.stem.0.weight", "interactions.0.injector.gamma", "level_embed", "up.bias", "norm1.weight"],
}


@pytest.mark.parametrize("added", ADDED.values(), ids=ADDED)
@pytest.mark.parametrize("kind", ["dino", "rtdetr", "segformer", "changenet"])
def test_what_a_task_adds_to_the_backbone_is_left_out(kind, added, stored, backbone):
    name, tensors = backbone
    if "level_embed" in added and name != "test_vit":
        return  # an adapter for ViTs alone
    path = stored(kind, tensors | {each: torch.ones(2) for each in added})
    assert name in inspect_weights(path).types
    assert {KINDS[kind][2] + each for each in added} <= set(inspect_weights(path).dropped)
    assert equal(student_of(path, name)[0], tensors) and equal(teacher_of(path, name), tensors)


@pytest.mark.parametrize("load", [student_of, teacher_of])
def test_another_architecture_is_refused_with_what_is_there(load, stored, backbone):
    name, tensors = backbone
    other = "resnet18" if name == "test_resnet" else "test_vit2"
    with pytest.raises(WeightsError) as caught:
        load(stored("rtdetr", tensors), other)
    assert "does not fit" in str(caught.value) and name in str(caught.value)


@pytest.mark.parametrize("load", [student_of, teacher_of])
def test_a_file_without_the_backbone_is_refused(load, stored):
    with pytest.raises(WeightsError, match="does not fit"):
        load(stored("dino", {}), "resnet18")


def test_an_encrypted_checkpoint(tmp_path):
    """As TAO writes it with a key: pickled tensors, encrypted."""
    torch.save({"state_dict": b"\x93\x01\x7f", "state_dict_encrypted": "aes", "tao_model": "dino"}, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match="encrypted") as caught:
        inspect_weights(tmp_path / "w.pth")
    assert "without a key" in str(caught.value)


def test_a_student_beside_its_teacher_is_no_backbone_that_is_meant(tmp_path):
    """Checkpoints of self-distillation have both; only MAL's decoder says which one is used."""
    model = timm.create_model("test_resnet", num_classes=0)
    tensors = {f"{side}.backbone.{k}": v for side in ("student", "teacher") for k, v in model.state_dict().items()}
    with pytest.raises(WeightsError, match="more than once"):
        fit(model, tensors, tmp_path / "f.pth", "x")
