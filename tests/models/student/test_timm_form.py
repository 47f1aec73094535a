"""Backbones under timm's names, opened by timm alone."""

from __future__ import annotations

import numpy as np
import pytest
import skimage.data
import timm
import torch
from PIL import Image
from safetensors.torch import load_file

from radioplat.compression.pruning.prune import prune_model
from radioplat.compression.pruning.scores import ChannelScore
from radioplat.errors import RadioplatError
from radioplat.exporting.weights.export import export_weights
from radioplat.models.heads import HeadArchitecture
from radioplat.models.student import timm_form as module
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.schema.export import ExportFormat
from radioplat.spec.schema.prune import PruneConfig


def timm_file(student, height, width, teacher=None) -> module.TimmForm:
    return module.timm_form(student.backbone, student.architecture, student.classifier, (height, width), teacher)


def created(found) -> torch.nn.Module:
    """As a user of timm does it: every name must fit."""
    model = timm.create_model(found.name, **found.kwargs)
    model.load_state_dict(found.tensors)
    return model.eval()


def normalised(student, pixels):
    return (pixels - student.mean) / student.std


HEADS = (HeadArchitecture("a", 4, 4, hidden=8),)


def test_timm_students_are_written_as_they_are(radio_student, image_batch):
    for name, kwargs, classes in (
        ("test_resnet", {}, 0),
        ("test_efficientnet", {}, 5),
        ("test_vit", {"depth": 2, "img_size": 48}, 3),
    ):
        student = radio_student(type=name, kwargs=kwargs, heads=HEADS, num_classes=classes)
        found = timm_file(student, 48, 48)
        assert found.name == name and any("heads of a" in n for n in found.notes)
        model, pixels = created(found), normalised(student, image_batch())
        with torch.no_grad():
            torch.testing.assert_close(model.forward_features(pixels), student.backbone.model.forward_features(pixels))
            assert model(pixels).shape[1] == (classes or model.num_features)


def test_a_radio_vit_is_timms_vit_with_the_other_tokens_as_registers(radio_student, image_batch):
    for size, teacher, slot in (((48, 48), None, 0), ((48, 48), "dino", 2), ((24, 64), "sam", 1)):
        student = radio_student()
        found = timm_file(student, *size, teacher)
        assert found.kwargs["reg_tokens"] == 3 - 1 + 5 and found.token == slot
        pixels = normalised(student, image_batch(*size))
        with torch.no_grad():
            own, said = student.backbone(pixels), created(found).forward_features(pixels)
        torch.testing.assert_close(said[:, 0], own.named["tokens"][:, slot], rtol=0, atol=1e-4)
        torch.testing.assert_close(said[:, 8:], own.spatial.flatten(1, 2), rtol=0, atol=1e-4)
        assert any(f"positions are for {size[0]} x {size[1]}" in note for note in found.notes)


def test_layer_scale_no_norm_and_no_registers(radio_student, image_batch):
    kwargs = {"embed_dim": 32, "depth": 1, "num_heads": 2, "init_values": 1e-2, "final_norm": False, "qk_norm": True}
    student = radio_student(kwargs=kwargs, num_class_tokens=1, num_registers=0, heads=())
    found = timm_file(student, 48, 48)
    assert "reg_tokens" not in found.kwargs
    pixels = normalised(student, image_batch())
    with torch.no_grad():
        own, said = student.backbone(pixels), created(found).forward_features(pixels)
    torch.testing.assert_close(said[:, 1:], own.spatial.flatten(1, 2), rtol=0, atol=1e-4)


def photograph() -> Image.Image:
    return Image.fromarray(skimage.data.astronaut())


def student_of(name: str, **fields) -> Student:
    """A student of 64 pixels with a normalisation of its own."""
    torch.manual_seed(0)
    fields = {"img_size": 64, "mean": (0.4, 0.5, 0.6), "std": (0.2, 0.25, 0.3), "heads": HEADS} | fields
    return Student(StudentArchitecture(name, **fields)).eval()


def by_timm(model: torch.nn.Module) -> torch.Tensor:
    """The photograph as timm's own helpers make it for ``model``: ``[1, 3, 64, 64]``."""
    config = timm.data.resolve_model_data_config(model)
    transform = timm.data.create_transform(**config)
    return transform(photograph())[None]


NAMES = ("test_vit", "test_resnet", "test_convnext")


@pytest.mark.parametrize("classes", [0, 5])
@pytest.mark.parametrize("name", NAMES)
def test_as_timm_is_the_model_that_timm_builds_of_the_exported_weights(name, classes, tmp_path):
    student = student_of(name, num_classes=classes)
    if classes:
        torch.nn.init.normal_(student.backbone.model.get_classifier().weight)
    model = student.as_timm()
    path = tmp_path / "student.safetensors"
    export_weights(student, ExportFormat.timm, path, height=64, width=64)
    arguments = {"dynamic_img_size": True} if "vit" in name else {}
    theirs = timm.create_model(name, num_classes=classes, **arguments).eval()
    theirs.load_state_dict(load_file(path))
    images, kind = by_timm(model), "logits" if classes else "summary"
    pixels = np.array(photograph().resize((64, 64), Image.Resampling.BILINEAR))
    with torch.no_grad():
        torch.testing.assert_close(model(images), theirs(images), rtol=0, atol=0)
        torch.testing.assert_close(model.forward_head(model.forward_features(images)), model(images))
        own = student(torch.from_numpy(pixels).permute(2, 0, 1)[None], frozenset({"summary", kind}))
    wanted = own.named["logits"] if classes else own.summary
    torch.testing.assert_close(model(images), wanted, rtol=1e-3, atol=1e-4)
    assert model.num_features == student.backbone.spatial_dim and not model.training
    assert all(weight.requires_grad for weight in model.parameters())
    assert {id(weight) for weight in model.parameters()}.isdisjoint(id(weight) for weight in student.parameters())


def test_its_configuration_is_the_students():
    model = student_of("test_vit", num_classes=2, class_names=("cat", "dog")).as_timm(size=96)
    config = timm.data.resolve_model_data_config(model)
    assert (config["input_size"], config["mean"], config["std"]) == ((3, 96, 96), (0.4, 0.5, 0.6), (0.2, 0.25, 0.3))
    assert (config["crop_pct"], config["interpolation"]) == (1.0, "bilinear")
    assert model.default_cfg is model.pretrained_cfg and model.pretrained_cfg["label_names"] == ("cat", "dog")
    model.reset_classifier(7)
    assert model(by_timm(model)).shape == (1, 7)


def test_a_pruned_student_keeps_its_shapes():
    student = student_of("resnet10t")
    config = PruneConfig(amount=0.5)
    small, _ = prune_model(student, config, ChannelScore(config))
    model = small.as_timm()
    images = by_timm(model)
    with torch.no_grad():
        torch.testing.assert_close(model(images), small.backbone(images).summary)
    assert sum(p.numel() for p in model.parameters()) < 0.6 * sum(p.numel() for p in student.backbone.parameters())


def test_a_radio_vit_pools_the_class_token_of_a_teacher(radio_student):
    student = radio_student()
    model = student.as_timm(teacher="sam")
    images = torch.rand(2, 3, student.architecture.img_size, student.architecture.img_size)
    with torch.no_grad():
        own, given = student(images), model(student.normalized(images))
    torch.testing.assert_close(given, own.named["tokens"][:, 1], rtol=0, atol=1e-4)
    assert model.num_features == student.backbone.token_dim
    with pytest.raises(RadioplatError, match="no head named 'sma'. Did you mean 'sam'"):
        student.as_timm(teacher="sma")
    with pytest.raises(RadioplatError, match="50 x 50 pixels are not multiples of the patch size"):
        student.as_timm(size=50)


def test_a_radio_classifier_keeps_its_classes(radio_student):
    student = radio_student(num_class_tokens=1, heads=(), num_classes=3)
    images = torch.rand(2, 3, student.architecture.img_size, student.architecture.img_size)
    with torch.no_grad():
        own = student(images, frozenset({"summary", "logits"})).named["logits"]
        torch.testing.assert_close(student.as_timm()(student.normalized(images)), own, rtol=0, atol=1e-4)


def test_a_student_with_a_sequence_is_refused():
    kwargs = {"embed_dim": 32, "depth": 2, "num_heads": 2, "decoder_depth": 2}
    student = student_of("radio1d_vit_tiny_patch16", kwargs=kwargs, heads=())
    with pytest.raises(RadioplatError, match="timm.create_model cannot build this radio1d"):
        student.as_timm()


def test_norms_inside_the_mlps_stay(image_batch, tmp_path):
    torch.manual_seed(0)
    student = Student(StudentArchitecture("c_radio_p1_vit_tiny_patch16_mlpnorm", {"depth": 2}, img_size=48)).eval()
    model, images = student.as_timm(), image_batch()
    tokens = student.backbone(normalised(student, images)).named["tokens"]
    torch.testing.assert_close(model(normalised(student, images)), tokens[:, 0], rtol=1e-4, atol=1e-5)
    path = tmp_path / "s.safetensors"
    with pytest.raises(RadioplatError, match=r"another epsilon than timm's, 1e-05\. Use student\.as_timm\(\)"):
        export_weights(student, ExportFormat.timm, path, height=48, width=48)
    assert list(tmp_path.iterdir()) == []
