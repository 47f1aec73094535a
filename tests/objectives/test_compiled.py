"""Heads and losses under ``train.compile``: the same numbers, in one graph for each teacher and form of its inputs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._dynamo.utils import counters

from radioplat.losses.base.grid import Overlap
from radioplat.losses.base.running_statistics import Running
from radioplat.models.features import Features
from radioplat.models.heads import HeadArchitecture
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.objectives import compiled
from radioplat.objectives.distill import ClassifyObjective, DistillObjective
from radioplat.objectives.micro_batch import MicroBatch
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]
B, SIZE, TEACHERS = 4, 32, 3
VIT = ("c_radio_v3_vit_base_patch16_reg4_dinov2", dict(embed_dim=16, depth=1, num_heads=2, patch_size=8))


@pytest.fixture(autouse=True)
def no_graphs() -> Iterator[None]:
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


def module_of(summary: str = "cosine", spatial: str = "MSE", classes: int = 0, **distill: object) -> DistillObjective:
    """A student of three teachers: of a summary and a map, of class scores, of a map on the student's own grid."""
    heads = (
        HeadArchitecture(
            "a", summary_dim=6, spatial_dim=16, hidden=8, spatial_norm="matrix", summary_norm="channels", upsample=2
        ),
        HeadArchitecture("b", logits_dim=7, token_slot=1),
        HeadArchitecture("c", spatial_dim=16, hidden=8),
    )
    architecture = StudentArchitecture(*VIT, num_class_tokens=2, img_size=SIZE, heads=heads, num_classes=classes)
    teachers = [
        {"name": "a", "mode": "combo", "loss_type": spatial, "summary_loss_type": summary, "fd_loss_weight": 0.25},
        {"name": "b", "loss_type": "KL", "loss_lambda": 2.0},
        {"name": "c", "mode": "spatial", "loss_type": "BALANCED"},
    ]
    labels = {"num_classes": classes} if classes else {}
    spec = load_spec({"dataset": {"img_size": SIZE, **labels}, "distill": {**distill, "teacher": teachers}})
    torch.manual_seed(0)
    return DistillObjective(Student(architecture), resolve_teachers(spec), "student", spec.distill).train()


def batch_of(form: str, size: int = SIZE) -> MicroBatch:
    """A micro-batch in one of the forms that runs have: all of it, with gaps, of shifted views, of a finer map."""
    generator = torch.Generator().manual_seed(1)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).bfloat16()

    side = size // 8
    fine = 3 * side if form == "finer" else side // 2
    targets = {
        "a": Features(drawn(B, 6), drawn(B, fine, fine, 16)),
        "b": Features(named={"logits": drawn(B, 7)}),
        "c": Features(None, drawn(B, side, side, 16)),
    }
    pixels = torch.randint(0, 256, (B, 3, size, size), dtype=torch.uint8, generator=generator)
    micro = MicroBatch({"student": pixels}, torch.ones(B), torch.tensor([1, -1, 3, 0]), targets)
    if form == "gaps":
        micro.weight[1] = 0
        targets["a"].of("spatial")[1] = targets["a"].of("summary")[1] = torch.nan
        micro.factors = {"a": 2.0, "b": 0.0}
    if form == "shifted":
        warp, shown = torch.eye(3).repeat(B, 1, 1), torch.ones(B, size, size, dtype=torch.bool)
        warp[:, 0, 2], shown[0, :8] = 0.25, False
        micro.overlaps = {"a": Overlap(warp, shown, None), "c": Overlap(None, shown, shown)}
    return micro


def learnt(module: DistillObjective | ClassifyObjective, forms: tuple[str, ...]) -> list[dict[str, torch.Tensor]]:
    """Losses, gradients and running statistics of a step for each of ``forms``."""
    found = []
    for step, form in enumerate(forms):
        module.zero_grad()
        torch.manual_seed(step)
        losses = module(batch_of(form))
        losses["loss"].backward()
        gradients = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in module.named_parameters()}
        for part in module.modules():
            if isinstance(part, Running):
                part.update(part.sums())
                part.clear()
        now = {**losses, **gradients, **dict(module.named_buffers())}
        found.append({name: value.detach().clone() for name, value in now.items()})
    return found


def assert_same(module: DistillObjective | ClassifyObjective, plain: list, forms: tuple[str, ...]) -> None:
    names = list(module.state_dict())
    module.compile_losses("aot_eager")
    for one, other in zip(learnt(module, forms), plain, strict=True):
        assert list(one) == list(other)
        for name, value in other.items():
            torch.testing.assert_close(one[name], value, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
    assert list(module.state_dict()) == names  # no `_orig_mod`
    assert not counters["graph_break"]


@pytest.mark.parametrize(
    ("summary", "spatial", "distill"),
    [
        ("cosine", "MSE", {"teacher_drop_prob": 0.5}),
        ("balanced", "FD", {"alpha": 0.3}),
        pytest.param("angle", "phi_s", {"balance": "adaloss"}, marks=pytest.mark.proof),
        pytest.param("tangent_sphere", "gram", {}, marks=pytest.mark.proof),
        pytest.param("similarity", "attention", {"classes": 7, "alpha": 0.3}, marks=pytest.mark.proof),
    ],
)
def test_each_teacher_is_one_graph_with_the_same_numbers(summary, spatial, distill):
    forms = ("plain", "gaps")
    plain = learnt(module_of(summary, spatial, **distill), forms)
    assert_same(module_of(summary, spatial, **distill), plain, forms)
    assert counters["stats"]["unique_graphs"] == TEACHERS


@pytest.mark.proof
def test_shifted_views_and_finer_maps_are_other_graphs():
    forms = ("plain", "shifted", "finer", "plain", "shifted")
    assert_same(module_of(), learnt(module_of(), forms), forms)
    assert counters["stats"]["unique_graphs"] == TEACHERS + 2 + 1  # shifted: a and c; finer: a


def test_classification_is_one_graph():
    def module() -> ClassifyObjective:
        torch.manual_seed(0)
        architecture = StudentArchitecture(*VIT, img_size=SIZE, num_classes=7)
        return ClassifyObjective(Student(architecture), "student").train()

    forms = ("plain", "gaps")
    assert_same(module(), learnt(module(), forms), forms)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.skipif(not compiled._APART, reason="torch has one limit for all teachers")
def test_mixed_sizes_make_no_more_graphs_than_the_limit(monkeypatch):
    monkeypatch.setitem(compiled._APART, "recompile_limit", 2)
    module, plain = module_of(), module_of()
    module.compile_losses("eager")
    for size in (32, 48, 64, 80, 32, 64):
        torch.manual_seed(size)
        loss = module(batch_of("plain", size))["loss"]
        torch.manual_seed(size)
        torch.testing.assert_close(loss, plain(batch_of("plain", size))["loss"])
    assert counters["stats"]["unique_graphs"] <= 2 * TEACHERS
