"""Losses between modules of a real small teacher and a real small student."""

from __future__ import annotations

import sys

import pytest
import timm
import torch
from safetensors.torch import save_file

from radioplat.design.models import design_models
from radioplat.errors import SpecError
from radioplat.models.student.student import Student
from radioplat.objectives.distill import DistillObjective, MicroBatch
from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.distill import LossType
from radioplat.teachers.base.teacher import FrozenTeacher

B, SIZE = 2, 64
STUDENTS = {
    "radio": {
        "type": "c_radio_v3_vit_base_patch16_reg4_dinov2",
        "kwargs": {"embed_dim": 32, "depth": 2, "num_heads": 2},
    },
    "vit": {"type": "test_vit2"},
    "cnn": {"type": "test_resnet"},
}


@pytest.fixture
def spec_of(tmp_path):
    """spec_of(student, bindings, **distill) -> a spec with one ViT of 64 channels as teacher, on disk."""
    torch.manual_seed(0)
    save_file(timm.create_model("test_vit", num_classes=0).state_dict(), tmp_path / "t.safetensors")

    def make(student: str, bindings: list[dict], **distill):
        teacher = {
            "name": "t",
            "model": {"backbone": {"type": "test_vit"}},
            "pretrained_teacher_model_path": str(tmp_path / "t.safetensors"),
            "mode": "summary",
            "loss_type": "CS",
            "loss_lambda": 0.0,
        }
        fields = {"teacher": [teacher], "bindings": bindings, "use_mlp": False, **distill}
        return load_spec({"dataset": {"img_size": SIZE}, "model": {"backbone": STUDENTS[student]}, "distill": fields})

    return make


def binding(teacher: str, student: str, criterion: str = "MSE", **more) -> dict:
    return {"teacher_module_name": teacher, "student_module_name": student, "criterion": criterion, **more}


def build(spec) -> tuple[DistillObjective, MicroBatch]:
    """The module in evaluation, where nothing is drawn, and a batch with what the teacher says of it."""
    models = design_models(spec, "distill")
    (teacher,) = models.teachers
    torch.manual_seed(1)
    module = DistillObjective(Student(models.architecture).eval(), models.teachers, str(SIZE))
    pixels = torch.randint(0, 256, (B, 3, SIZE, SIZE), dtype=torch.uint8)
    features = FrozenTeacher(teacher)(pixels, teacher.wanted)
    assert {k: tuple(v.shape[1:]) for k, v in features.named.items()} == models.infos["t"].named
    targets = {"t": features.map(torch.clone)}
    return module, MicroBatch({str(SIZE): pixels}, torch.ones(B), torch.full((B,), -1), targets)


@pytest.mark.parametrize(
    ("student", "pair"),
    [
        ("radio", ("blocks.0", "blocks.1")),  # tokens behind unlike prefixes, widths that differ
        ("vit", ("blocks.3.mlp.fc1", "blocks.1.attn")),
        ("cnn", ("blocks.5", "layer2")),  # tokens against a map on a coarser grid
        ("vit", ("norm", "norm")),
    ],
)
@pytest.mark.parametrize("criterion", ["MSE", "CS", "L1"])
def test_each_binding_alone_lowers_its_own_gap(spec_of, student, pair, criterion):
    module, batch = build(spec_of(student, [binding(*pair, criterion)]))
    module.train()
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)
    gaps = []
    for _ in range(12):
        torch.manual_seed(2)
        losses = module(batch)
        assert torch.equal(losses["loss"], losses["loss/t/binding_0"])
        gaps.append(losses["loss"].item())
        optimizer.zero_grad()
        losses["loss"].backward()
        optimizer.step()
    assert gaps[-1] < 0.97 * gaps[0], gaps
    assert not any(m._forward_hooks for m in module.modules())


def test_the_weight_is_applied_once(spec_of):
    gradients = []
    for weight in (1.0, 4.0):
        module, batch = build(spec_of("vit", [binding("blocks.2", "blocks.1", weight=weight)]))
        losses = module(batch)
        losses["loss"].backward()
        gradients.append(module.student.backbone.model.blocks[0].mlp.fc1.weight.grad)
        torch.testing.assert_close(losses["loss"], weight * losses["loss/t/binding_0"])
    torch.testing.assert_close(gradients[1], 4 * gradients[0])
    later = module.student.backbone.model.fc_norm.weight
    assert later.grad is None or not later.grad.any(), "what comes after the module learns nothing from it"


def test_several_bindings_add_up_and_samples_of_no_weight_count_for_nothing(spec_of):
    ends = [("blocks.0", "blocks.0"), ("blocks.5", "blocks.1")]
    module, batch = build(spec_of("vit", [binding(*pair, weight=0.5) for pair in ends]))
    losses = module(batch)
    torch.testing.assert_close(losses["loss"], 0.5 * (losses["loss/t/binding_0"] + losses["loss/t/binding_1"]))
    alone = MicroBatch({str(SIZE): batch.views[str(SIZE)][:1]}, torch.ones(1), batch.label[:1])
    alone.targets = {"t": batch.targets["t"].map(lambda t: t[:1])}
    batch.weight = torch.tensor([1.0, 0.0])
    batch.targets["t"].named["module:blocks.0"][1] = torch.nan
    torch.testing.assert_close(module(batch)["loss"], module(alone)["loss"])


def test_batch_norm_of_a_teacher_stays_where_a_module_is_wanted(tmp_path, spec_of):
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=0).eval()
    save_file(model.state_dict(), tmp_path / "r.safetensors")
    spec = spec_of("cnn", [binding("layer1", "layer1")])
    spec.distill.teacher[0].model.backbone.type = "test_resnet"
    spec.distill.teacher[0].pretrained_teacher_model_path = str(tmp_path / "r.safetensors")
    module, batch = build(spec)
    teacher = FrozenTeacher(module.teachers[0])
    found = {}
    model.layer1.register_forward_hook(lambda m, a, output: found.update(output=output))
    with torch.no_grad():
        model(teacher.normalise(batch.views[str(SIZE)]))
    own = found["output"].permute(0, 2, 3, 1)
    torch.testing.assert_close(batch.targets["t"].named["module:layer1"].float(), own, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(
    ("bad", "field", "said"),
    [
        (binding("blocks.77", "blocks.0"), "distill.bindings[0].teacher_module_name", "no module 'blocks.77'"),
        (binding("blocks.0", "blockz.0"), "distill.bindings[0].student_module_name", "no module 'blockz.0'"),
        (binding("blocks.0", "patch_generator.cls_token"), "distill.bindings[0].student_module_name", "does not run"),
    ],
)
def test_what_cannot_be_bound_is_named(spec_of, bad, field, said):
    with pytest.raises(SpecError, match=said) as caught:
        design_models(spec_of("radio", [bad]), "distill")
    assert field in str(caught.value)


def test_a_vector_against_a_map_is_named(spec_of):
    with pytest.raises(SpecError, match="a vector of the student against a map of the teacher") as caught:
        design_models(spec_of("cnn", [binding("blocks.0", "global_pool")]), "distill")
    assert "distill.bindings[0]" in str(caught.value)


def test_a_binding_names_its_teacher_where_there_are_two(spec_of):
    spec = spec_of("vit", [binding("blocks.0", "blocks.0"), {**binding("a", "b"), "teacher": "u"}])
    spec.distill.teacher = [*spec.distill.teacher, spec.distill.teacher[0]]
    spec.train.grad_checkpointing = True
    found = {(p.where, p.message) for p in check(spec)}
    assert ("distill.bindings[0].teacher", "there is more than one teacher") in found
    assert ("distill.bindings[1].teacher", "no teacher is called 'u'") in found
    assert any(where == "train.grad_checkpointing" for where, _ in found)


def test_a_users_own_function_is_tried_before_the_run_and_teaches(spec_of, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "bound_losses.py").write_text("def cubes(x, y):\n    return (x - y).abs().pow(3).mean(-1)\n")
    spec = spec_of("vit", [binding("blocks.0", "blocks.0", "bound_losses:cubes")])
    spec.distill.teacher[0].loss_type = LossType("bound_losses:cubes")
    spec.distill.teacher[0].loss_lambda = 1.0
    module, batch = build(spec)
    found = module(batch)
    assert found["loss/t/binding_0"] > 0 and found["loss/t/summary"] > 0
    torch.testing.assert_close(found["loss"], found["loss/t/binding_0"] + found["loss/t/summary"])
    found["loss"].backward()
    (tmp_path / "bound_losses.py").write_text("")
    monkeypatch.delitem(sys.modules, "bound_losses")
    with pytest.raises(SpecError) as error:
        design_models(spec, "distill")
    assert [p.where for p in error.value.problems] == ["distill.bindings[0].criterion", "distill.teacher[0].loss_type"]
