"""Labels, balance, dropping and further terms in the module as a whole."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from radioplat.losses.terms import relational, spatial
from radioplat.losses.terms.angle import Angle, angle_between
from radioplat.losses.terms.feature import mse
from radioplat.losses.terms.logits import kl_hinton, kl_tao
from radioplat.models.features import Features
from radioplat.models.heads import HeadArchitecture
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.objectives.distill import DistillObjective, MicroBatch
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.training.engine.loss_statistics import LossStatistics

B = 4
ARCHITECTURE = StudentArchitecture(
    "c_radio_v3_vit_base_patch16_reg4_dinov2",
    dict(embed_dim=16, depth=1, num_heads=2, patch_size=8),
    num_class_tokens=2,
    img_size=32,
    heads=(HeadArchitecture("a", summary_dim=6, spatial_dim=5), HeadArchitecture("b", logits_dim=7, token_slot=1)),
)
A = {"name": "a", "mode": "combo", "loss_type": "MSE", "summary_loss_type": "cosine", "loss_lambda": 0.5}
C = {"name": "b", "loss_type": "KL", "loss_lambda": 2.0}


def module(a: dict | None = None, **distill) -> DistillObjective:
    spec = load_spec({"dataset": {"img_size": 32}, "distill": {"teacher": [{**A, **(a or {})}, C], **distill}})
    torch.manual_seed(0)
    return DistillObjective(Student(ARCHITECTURE).eval(), resolve_teachers(spec), "32", spec.distill)


def batch(seed: int = 1, label: tuple[int, ...] = (-1,) * B, weight: tuple[float, ...] = (1.0,) * B) -> MicroBatch:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (B, 3, 32, 32), dtype=torch.uint8, generator=generator)
    targets = {
        "a": Features(torch.randn(B, 6, generator=generator), torch.randn(B, 4, 4, 5, generator=generator)),
        "b": Features(named={"logits": 2 * torch.randn(B, 7, generator=generator)}),
    }
    return MicroBatch({"32": pixels}, torch.tensor(weight), torch.tensor(label), targets)


def heads(found: DistillObjective, given: MicroBatch) -> tuple[Features, Features]:
    features = found.student(given.views["32"])
    return found.student.head("a", features), found.student.head("b", features)


def test_further_terms_are_logged_and_counted_by_name():
    extra = [
        {"type": "gram", "kind": "spatial", "weight": 0.25},
        {"type": "rkd_distance", "kind": "summary", "weight": 3},
        {"type": "angle", "kind": "summary", "weight": 0},
    ]
    found, given = module({"extra_losses": extra}), batch()
    losses = found(given)
    mine, _ = heads(found, given)
    theirs = given.targets["a"]
    gram = spatial.gram(mine.spatial, theirs.spatial).mean()
    relations = relational.rkd_distance(mine.summary, theirs.summary, torch.ones(B)).mean()
    torch.testing.assert_close(losses["loss/a/spatial_gram"], gram)
    torch.testing.assert_close(losses["loss/a/summary_rkd_distance"], relations)
    torch.testing.assert_close(
        losses["loss/a/summary_angle"], angle_between(mine.summary, theirs.summary).square().mean()
    )
    plain = losses["loss/a/summary"] + losses["loss/a/spatial"]
    expected = 0.5 * (plain + 0.25 * gram + 3 * relations) + 2 * losses["loss/b/logits"]
    torch.testing.assert_close(losses["loss"], expected)


def test_angles_are_taken_of_raw_features_whatever_the_target_norm():
    found, given = module({"summary_loss_type": "angle"}), batch()
    before = found(given)["loss/a/summary"]
    mine, _ = heads(found, given)
    head = found.student.heads["a"]
    # the same raw features by another scale and mean
    head.summary_scale.fill_(2.0)
    head.summary_mean.fill_(1.0)
    with torch.no_grad():
        head.summary.weight.div_(2.0)
        head.summary.bias.sub_(1.0).div_(2.0)
    torch.testing.assert_close(heads(found, given)[0].summary, mine.summary, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found(given)["loss/a/summary"], before, rtol=1e-4, atol=1e-5)


def test_the_hinton_form_and_its_temperature():
    found, given = module(kl_form="hinton", temperature=2.0), batch()
    _, mine = heads(found, given)
    expected = kl_hinton(mine.named["logits"], given.targets["b"].named["logits"], 2.0).mean()
    torch.testing.assert_close(found(given)["loss/b/logits"], expected)


@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_labels_are_mixed_in_where_there_are_any(alpha):
    label, alive = (3, -1, 0, 6), (1.0, 1.0, 1.0, 0.0)
    found, given = module(alpha=alpha), batch(label=label, weight=alive)
    given.targets["b"].named["logits"][3] = float("nan")
    losses = found(given)
    _, mine = heads(found, given)
    logits = mine.named["logits"]
    soft = kl_tao(logits, given.targets["b"].named["logits"])
    hard = F.cross_entropy(logits, torch.tensor(label).clamp(min=0), reduction="none")
    mixed = torch.stack([alpha * hard[0] + (1 - alpha) * soft[0], soft[1], alpha * hard[2] + (1 - alpha) * soft[2]])
    a = 0.5 * (losses["loss/a/summary"] + losses["loss/a/spatial"])
    torch.testing.assert_close(losses["loss"], a + 2.0 * mixed.mean())
    torch.testing.assert_close(losses["loss/b/logits"], soft[:3].mean())
    torch.testing.assert_close(losses["loss/b/labels"], (hard[0] + hard[2]) / 2)


def test_without_labels_alpha_changes_nothing():
    plain, mixing = module()(batch()), module(alpha=0.7)(batch())
    torch.testing.assert_close(mixing["loss"], plain["loss"])
    assert mixing["loss/b/labels"] == 0


@pytest.mark.parametrize("rule", ["loss_scale", "adaloss"])
def test_balance_follows_the_running_means(rule):
    found = module(balance=rule)
    state = LossStatistics(found)
    first = found(batch(1))
    torch.testing.assert_close(first["loss"], module()(batch(1))["loss"])
    state.step()
    means = {"a": first["loss/a/summary"] + first["loss/a/spatial"], "b": first["loss/b/logits"]}
    sums = sum(1 / mean for mean in means.values())
    factors = {name: 1 / mean if rule == "loss_scale" else 2 / mean / sums for name, mean in means.items()}
    second = found(batch(2))
    torch.testing.assert_close(
        second["loss"],
        0.5 * factors["a"] * (second["loss/a/summary"] + second["loss/a/spatial"])
        + 2.0 * factors["b"] * second["loss/b/logits"],
    )
    # no gradient goes through the means
    second["loss"].backward()
    gradient = found.student.heads["b"].logits.weight.grad
    plain = module()
    plain(batch(2))["loss"].backward()
    torch.testing.assert_close(gradient, factors["b"].detach() * plain.student.heads["b"].logits.weight.grad)


@pytest.mark.parametrize("size", [1, 2])
def test_running_means_are_those_of_the_step_however_it_is_cut(size):
    whole, cut = module(balance="adaloss"), module(balance="adaloss")
    states = LossStatistics(whole), LossStatistics(cut)
    given = batch(weight=(1.0, 0.0, 1.0, 1.0))
    whole(given)
    for start in range(0, B, size):
        rows = slice(start, start + size)
        cut(
            dataclasses.replace(
                given,
                views={"32": given.views["32"][rows]},
                weight=given.weight[rows],
                label=given.label[rows],
                targets={name: features.map(lambda t: t[rows]) for name, features in given.targets.items()},  # noqa: B023
            )
        )
    for state in states:
        state.step()
    found, expected = states[1].state_dict(), states[0].state_dict()
    assert found.keys() == expected.keys() == {"balance.total", "balance.samples"}
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)
    assert expected["balance.samples"].tolist() == [3, 3]


def test_a_teacher_that_was_not_asked_is_in_no_mean_and_never_the_worst():
    found = module({"summary_loss_type": "angle"}, balance="loss_scale", teacher_drop_prob=1.0)
    state = LossStatistics(found)
    given = dataclasses.replace(batch(), factors={"a": 0.0, "b": 2.0})
    losses = found(given)
    torch.testing.assert_close(losses["loss"], 2.0 * losses["loss/b/logits"])
    losses["loss"].backward()
    for name, parameter in found.student.heads["a"].named_parameters():
        assert parameter.grad is not None and not parameter.grad.any(), name
    state.step()
    found_state = state.state_dict()
    assert found_state["balance.samples"].tolist() == [0, B]
    torch.testing.assert_close(found_state["balance.total"][1].float(), B * losses["loss/b/logits"].detach() / 2)
    assert not any(value.any() for name, value in found_state.items() if "criteria" in name)


def test_dropping_keeps_the_worst_teacher_of_each_image():
    found, given = module(teacher_drop_prob=1.0), batch(weight=(1.0, 1.0, 0.0, 1.0))
    losses, plain = found(given), module()(given)
    for name in ("loss/a/summary", "loss/a/spatial", "loss/b/logits"):
        torch.testing.assert_close(losses[name], plain[name], msg="what is logged is whole")
    mine, classes = heads(found, given)
    a = given.targets["a"]
    first = 0.5 * (1 - F.cosine_similarity(mine.summary, a.summary) + mse(mine.spatial, a.spatial).mean((1, 2)))
    second = 2.0 * kl_tao(classes.named["logits"], given.targets["b"].named["logits"])
    alive = torch.tensor([0, 1, 3])
    torch.testing.assert_close(losses["loss"], torch.maximum(first, second)[alive].mean())


def test_dropping_is_drawn_from_torchs_generator():
    found, given = module(teacher_drop_prob=0.5), batch()
    torch.manual_seed(5)
    first = found(given)["loss"]
    torch.manual_seed(5)
    assert found(given)["loss"] == first
    assert len({found(given)["loss"].item() for _ in range(20)}) > 1


def test_a_dropped_nan_is_still_seen():
    found, given = module(teacher_drop_prob=1.0), batch()
    given.targets["b"].named["logits"][2] = float("nan")
    losses = found(given)
    assert losses["loss/b/logits"].isnan() and losses["loss"].isnan()


def test_a_quarantined_teacher_moves_no_statistics():
    found = module({"summary_loss_type": "angle"}, balance="adaloss", teacher_drop_prob=0.5)
    found.quarantine("a")
    state = LossStatistics(found)
    losses = found(batch())
    torch.testing.assert_close(losses["loss"], 2.0 * losses["loss/b/logits"])
    state.step()
    assert isinstance(found.criteria["a/summary"], Angle) and not found.criteria["a/summary"].direction.any()
    assert state.state_dict()["balance.samples"].tolist() == [0, B]
