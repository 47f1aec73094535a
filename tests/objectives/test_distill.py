"""Student, heads and losses as one module."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from radioplat.losses.base.grid import Overlap
from radioplat.losses.base.reduce import to_grid
from radioplat.losses.terms import feature
from radioplat.models.features import Features
from radioplat.models.heads import HeadArchitecture
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.objectives.distill import ClassifyObjective, DistillObjective, MicroBatch
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers

B = 3
ARCHITECTURE = StudentArchitecture(
    "c_radio_v3_vit_base_patch16_reg4_dinov2",
    dict(embed_dim=16, depth=1, num_heads=2, patch_size=8),
    num_class_tokens=2,
    img_size=32,
    heads=(HeadArchitecture("a", summary_dim=6, spatial_dim=5), HeadArchitecture("b", logits_dim=7, token_slot=1)),
)


@pytest.fixture
def module() -> DistillObjective:
    spec = load_spec(
        {
            "dataset": {"img_size": 32},
            "distill": {
                "loss_lambda": 0.5,
                "teacher": [
                    {
                        "name": "a",
                        "mode": "combo",
                        "loss_type": "MSE",
                        "summary_loss_type": "cosine",
                        "summary_loss_weight": 3.0,
                        "fd_loss_weight": 0.25,
                    },
                    {"name": "b", "loss_type": "KL", "loss_lambda": 2.0},
                ],
            },
        }
    )
    torch.manual_seed(0)
    return DistillObjective(Student(ARCHITECTURE).eval(), resolve_teachers(spec), "32")


def batch(grid: int = 2, weight: tuple[float, ...] = (1.0,) * B) -> MicroBatch:
    torch.manual_seed(1)
    pixels = torch.randint(0, 256, (B, 3, 32, 32), dtype=torch.uint8)
    targets = {
        "a": Features(torch.randn(B, 6).bfloat16(), torch.randn(B, grid, grid, 5).bfloat16()),
        "b": Features(named={"logits": torch.randn(B, 7).bfloat16()}),
    }
    return MicroBatch({"32": pixels}, torch.tensor(weight), torch.full((B,), -1), targets)


@pytest.mark.parametrize("grid", [2, 4, 8])
def test_terms_and_their_sum(module, grid):
    given = batch(grid)
    losses = module(given)
    assert set(losses) == {"loss", "loss/a/summary", "loss/a/spatial", "loss/b/logits"}
    assert all(v.dtype is torch.float32 and v.ndim == 0 for v in losses.values())
    student = module.student
    features = student(given.views["32"])
    mine, theirs = student.head("a", features), given.targets["a"]
    summary = feature.cosine(mine.summary, theirs.summary.float()).mean()
    common = (min(grid, 4),) * 2  # the student's map is 4 x 4
    spatial = F.mse_loss(to_grid(mine.spatial, common), to_grid(theirs.spatial.float(), common))
    torch.testing.assert_close(losses["loss/a/summary"], summary)
    torch.testing.assert_close(losses["loss/a/spatial"], spatial)
    expected = 0.5 * (3.0 * summary + 0.25 * spatial) + 2.0 * losses["loss/b/logits"]
    torch.testing.assert_close(losses["loss"], expected)


def test_a_dead_sample_touches_neither_value_nor_gradient(module):
    def run(given: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        module.zero_grad()
        loss = module(given)["loss"]
        loss.backward()
        return loss.detach(), torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])

    dead = batch(weight=(1.0, 0.0, 1.0))
    for features in dead.targets.values():
        for tensor in (features.summary, features.spatial, *features.named.values()):
            if tensor is not None:
                tensor[1] = float("nan")
    living = batch()
    keep = torch.tensor([0, 2])
    living = dataclasses.replace(
        living,
        views={"32": living.views["32"][keep]},
        weight=living.weight[keep],
        label=living.label[keep],
        targets={name: features.map(lambda t: t[keep]) for name, features in living.targets.items()},
    )
    for found, expected in zip(run(dead), run(living), strict=True):
        torch.testing.assert_close(found, expected)


def test_all_dead_is_zero_and_finite(module):
    losses = module(batch(weight=(0.0,) * B))
    losses["loss"].backward()
    assert losses["loss"] == 0 and all(p.grad is None or not p.grad.any() for p in module.parameters())


def test_a_quarantined_teacher_has_no_term(module):
    whole = module(batch())
    module.quarantine("a")
    losses = module(batch())
    assert set(losses) == {"loss", "loss/b/logits"}
    torch.testing.assert_close(losses["loss"], 2.0 * whole["loss/b/logits"])


def test_classification():
    student = Student(dataclasses.replace(ARCHITECTURE, num_classes=4, heads=())).eval()
    module, given = ClassifyObjective(student, "32"), batch(weight=(1.0, 1.0, 0.0))
    given.label = torch.tensor([2, -1, 1])  # one label, one without, one unreadable
    losses = module(given)
    logits = student(given.views["32"], frozenset({"summary", "logits"})).named["logits"]
    torch.testing.assert_close(losses["loss"], F.cross_entropy(logits[:1], given.label[:1]))
    assert losses["accuracy"] == float(logits[0].argmax() == 2) and not losses["accuracy"].requires_grad
    given.label = torch.full((B,), -1)
    losses = module(given)
    losses["loss"].backward()
    assert losses["loss"] == 0


@pytest.mark.parametrize(
    ("distill", "of_labels", "of_teachers"),
    [({"alpha": 0.25}, 0.25, 0.75), ({"label_form": "tao"}, 1 - 0.5 - 0.125, 1.0)],
)
def test_labels_beside_every_kind_of_teacher(distill, of_labels, of_teachers):
    """One sample of three has a label, one is dead: weights by hand; class scores are the student's own."""
    one = {"name": "a", "mode": "combo", "loss_type": "MSE", "summary_loss_type": "cosine", "loss_lambda": 0.5}
    scores = {"name": "b", "loss_type": "KL", "loss_lambda": 0.125}
    spec = load_spec({"dataset": {"img_size": 32, "num_classes": 7}, "distill": {**distill, "teacher": [one, scores]}})
    torch.manual_seed(0)
    heads = (ARCHITECTURE.heads[0], HeadArchitecture("b", token_slot=1))
    student = Student(dataclasses.replace(ARCHITECTURE, num_classes=7, heads=heads)).eval()
    module = DistillObjective(student, resolve_teachers(spec), "32", spec.distill)
    given = batch(weight=(1.0, 1.0, 0.0))
    given.label = torch.tensor([4, -1, 2])
    losses = module(given)
    assert set(losses) == {"loss", "loss/a/summary", "loss/a/spatial", "loss/b/logits", "loss/labels"}
    logits = student(given.views["32"], frozenset({"summary", "logits"})).named["logits"]
    torch.testing.assert_close(losses["loss/labels"], F.cross_entropy(logits[:1], given.label[:1]))

    def of(sample: int) -> torch.Tensor:
        """What teachers ask of one sample."""
        alone = batch(weight=tuple(float(i == sample) for i in range(B)))
        terms = DistillObjective(student, resolve_teachers(spec), "32")(alone)
        return 0.5 * (terms["loss/a/summary"] + terms["loss/a/spatial"]) + 0.125 * terms["loss/b/logits"]

    expected = (of_labels * losses["loss/labels"] + of_teachers * of(0) + of(1)) / 2
    torch.testing.assert_close(losses["loss"], expected)
    meant = given.targets["b"].named["logits"][:2].float().log_softmax(-1)
    scores = F.kl_div(logits[:2].log_softmax(-1), meant, reduction="none", log_target=True).mean()
    torch.testing.assert_close(losses["loss/b/logits"], scores)


def test_a_map_is_compared_where_both_look(module):
    """The teacher sees the image one of the student's positions further right; one more is hidden from it."""
    shift = torch.tensor([[1, 0, -0.25], [0, 1, 0], [0, 0, 1.0]]).expand(B, 3, 3)
    valid = torch.ones(B, 16, 16, dtype=torch.bool)
    valid[:, 0, 0] = False

    def run(filling: float) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        given = batch(grid=4)
        given.overlaps = {"a": Overlap(shift, None, valid)}
        given.targets["a"].spatial[:, :, 3] = filling  # right of what the student sees
        given.targets["a"].spatial[:, 0, 0] = filling
        module.zero_grad()
        losses = module(given)
        losses["loss"].backward()
        return losses, torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])

    losses, gradient = run(0.0)
    given = batch(grid=4)
    mine = module.student.head("a", module.student(given.views["32"])).spatial[:, :, 1:]
    squares = (mine - given.targets["a"].spatial[:, :, :3].float()).square().mean(-1)
    squares[:, 0, 0] = torch.nan
    torch.testing.assert_close(losses["loss/a/spatial"], squares.flatten(1).nanmean(1).mean(), rtol=1e-4, atol=1e-5)
    corrupted, also = run(1e4)
    torch.testing.assert_close(corrupted["loss"], losses["loss"], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(also, gradient, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(losses["loss/a/summary"], module(batch(grid=4))["loss/a/summary"])
