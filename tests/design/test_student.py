"""What `plan` says of a student that cannot be, and what a run does to one before it trains."""

from __future__ import annotations

import copy
import os

import pytest
import torch
from timm.layers import DropPath
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from radioplat.design.models import Models, design_models
from radioplat.design.student import compile_backbone, prepare_student
from radioplat.errors import SpecError
from radioplat.models.backbones.vitdet import Windows
from radioplat.models.features import Features
from radioplat.models.modifiers import spectral
from radioplat.models.pretrained.initial_weights import start_student
from radioplat.models.student.student import Student
from radioplat.objectives.distill import DistillObjective, MicroBatch
from radioplat.optim.optimizer import MOMENTS
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.spec.schema.root import Spec
from radioplat.training.checkpoints.persistence import trainable
from radioplat.training.engine.batchnorm_state import BatchNormStatistics
from radioplat.training.engine.registry import build_engine

RADIO = {"type": "radio_vit_tiny_patch16", "kwargs": {"embed_dim": 32, "depth": 5, "num_heads": 2, "patch_size": 8}}
NAMES = ("a", "b")


def spec_of(*overrides: str, backbone: dict | None = None) -> Spec:
    """Two timm teachers, one for each kind, at 64 pixels; the student's map is 8 x 8."""
    teachers = [
        {"name": name, "mode": mode, "loss_type": "MSE", "model": {"backbone": {"type": "test_vit"}}}
        for name, mode in zip(NAMES, ("spatial", "summary"), strict=True)
    ]
    tree = {
        "model": {"backbone": backbone or RADIO},
        "dataset": {"img_size": 64, "batch_size": 2},
        "distill": {"teacher": teachers, "mlp_hidden_size": 16},
    }
    return load_spec(tree, list(overrides))


def design(*overrides: str, backbone: dict | None = None) -> Models:
    return design_models(spec_of(*overrides, backbone=backbone), "distill")


def student_of(spec: Spec) -> Student:
    models = design_models(spec, "distill")
    return prepare_student(start_student(spec, models.architecture), spec, "distill")


@pytest.mark.parametrize("backbone", [None, {"type": "test_efficientnet"}, {"type": "test_vit"}])
def test_a_frozen_backbone_keeps_its_classifier_free(backbone):
    changes = ("dataset.num_classes=3", "distill.alpha=0.5", "model.backbone.freeze_backbone=true")
    student = student_of(spec_of(*changes, backbone=backbone))
    free = {name for name, p in student.named_parameters() if p.requires_grad and not name.startswith("heads.")}
    own = "classifier" if backbone is None else f"backbone.model.{student.backbone.classifier_prefix[0][:-1]}"
    assert free == {f"{own}.weight", f"{own}.bias"}


@pytest.mark.parametrize(
    ("name", "chosen"),
    [("mobilenetv3_small_050", True), ("test_resnet", False), ("mobileone_s0", False), ("test_vit", False)],
)
def test_depthwise_cnns_train_with_channels_last(name, chosen):
    student = student_of(spec_of(backbone={"type": name})).double().eval()  # random weights may give numbers of 1e10
    assert student.backbone.channels_last is chosen
    images = torch.rand(2, 3, 64, 64)
    taken = student(images)
    student.backbone.channels_last = not chosen
    with torch.no_grad():
        other = student(images)
    for kind in ("summary", "spatial"):
        largest = taken.of(kind).abs().max()
        torch.testing.assert_close(taken.of(kind) / largest, other.of(kind) / largest, rtol=1e-6, atol=1e-9)


W = "distill.vitdet"
CNN, RESNET = {"type": "test_efficientnet"}, {"type": "test_resnet"}


@pytest.mark.parametrize(
    ("overrides", "backbone", "where", "words"),
    [
        ([f"{W}={{prob: 0.5, window_sizes: [4, 3, 8]}}"], None, f"{W}.window_sizes[1]|{W}.window_sizes[2]", "2, 4"),
        ([f"{W}.prob=0.5"], None, f"{W}.window_sizes", "8 x 8"),
        ([f"{W}={{prob: 0.5, window_sizes: [4], num_global: 5}}"], None, f"{W}.num_global", "no block"),
        ([f"{W}={{prob: 0.5, window_sizes: [2]}}"], RESNET, f"{W}.prob", "RADIO ViT"),
        (["distill.teacher[1].summary_token_idx=2"], None, "distill.teacher[1].summary_token_idx", "2 class token"),
        (["distill.teacher[0].summary_token_idx=1"], CNN, "distill.teacher[0].summary_token_idx", "one summary"),
        (
            ["distill.teacher[0].spatial_mlp_version=attn"],
            {**RADIO, "kwargs": {**RADIO["kwargs"], "embed_dim": 24}},
            "distill.teacher[0].spatial_mlp_version",
            "24 wide",
        ),
        (["distill.teacher[1].use_head=false"], None, "distill.teacher[1].use_head", "student's is 32, its 64"),
        (["distill.mlp_hidden_size=4000000", "distill.mlp_num_inner=2"], None, "distill.mlp_hidden_size", "GiB"),
        (
            ["distill.mlp_hidden_size=1000000", "distill.teacher[0].spatial_num_inner=3"],
            None,
            "distill.teacher[0].spatial_num_inner",
            "head of a takes",
        ),
        (["distill.mlp_hidden_size=1000000000000", "distill.mlp_num_inner=1"], None, "distill.mlp_hidden_size", ""),
        (["model.backbone.freeze_norm=true"], {"type": "vgg11"}, "model.backbone.freeze_norm", "no normalization"),
        (["model.backbone.drop_path=0.1"], {"type": "vgg11"}, "model.backbone.drop_path", "DropPath"),
        (["model.backbone.spectral_reparam=true"], RESNET, "model.backbone.spectral_reparam", "no ViT"),
        (["model.backbone.cpe=false"], RESNET, "model.backbone.cpe", "RADIO ViT"),
        (["train.compile=true"], RESNET, "train.compile", "freeze_norm"),
        (["train.grad_checkpointing=true"], {"type": "dla34"}, "train.grad_checkpointing", "DLA"),
    ],
)
def test_refused(overrides, backbone, where, words):
    with pytest.raises(SpecError) as caught:
        design(*overrides, backbone=backbone)
    assert "|".join(dict.fromkeys(p.where for p in caught.value.problems)) == where
    assert words in str(caught.value)


def test_a_size_that_one_of_the_drawn_resolutions_can_use():
    drawn = "dataset.augmentation.multi_scales=[64, 96]"
    design(drawn, f"{W}={{prob: 0.5, window_sizes: [4, 3]}}")
    with pytest.raises(SpecError, match="8 x 8 or 12 x 12"):
        design(drawn, f"{W}={{prob: 0.5, window_sizes: [4, 3, 5]}}")


def test_a_head_that_makes_the_map_finer_is_sent_a_finer_grid():
    assert design().grids["a"] == (4, 4) == design("distill.teacher[0].fd_upsample_factor=2").grids["a"]  # its own
    coarse = {**RADIO, "kwargs": {**RADIO["kwargs"], "patch_size": 32}}
    assert design(backbone=coarse).grids["a"] == (2, 2)
    assert design("distill.teacher[0].fd_upsample_factor=2", backbone=coarse).grids["a"] == (4, 4)


def test_a_shared_class_token():
    heads = design("distill.teacher[1].summary_token_idx=0").architecture.heads
    assert [head.token_slot for head in heads] == [0, 0]


def test_windows_only_when_asked_for():
    assert student_of(spec_of()).backbone.windows is None
    asked = spec_of(f"{W}={{prob: 0.25, window_sizes: [4, 2], num_windowed: 1}}")
    assert student_of(asked).backbone.windows == Windows(0.25, (4, 2), frozenset({1, 3, 4}))


@pytest.mark.parametrize("asked", [True, False])
def test_positions_are_cropped_unless_switched_off(asked):
    generator = student_of(spec_of(f"model.backbone.cpe={asked}")).train().backbone.patch_generator
    first, second = (generator.positions(2, 8, 8) for _ in range(2))
    whole = generator.eval().positions(2, 8, 8)
    assert [torch.equal(first, second), torch.equal(first, whole)] == [not asked] * 2


def test_compiled_only_when_asked_for():
    for asked in (False, True):
        student = student_of(spec_of(f"train.compile={asked}"))
        assert (student.backbone._compiled_call_impl is not None) == asked
        assert copy.deepcopy(student).backbone._compiled_call_impl is None


@pytest.mark.parametrize("name", ["radio_vit_tiny_patch16", "test_vit", "test_convnext", "test_resnet"])
def test_drop_path(name):
    backbone = {**RADIO} if name.startswith("radio") else {"type": name}
    student = student_of(spec_of("model.backbone.drop_path=0.4", backbone=backbone))
    rates = [m.drop_prob for m in student.backbone.modules() if isinstance(m, DropPath) and m.drop_prob]
    assert rates and max(rates) == pytest.approx(0.4) and rates == sorted(rates)


@pytest.mark.parametrize("name", ["test_resnet", "test_convnext", "test_vit", "radio_vit_tiny_patch16"])
def test_frozen_norms_keep_weights_and_statistics(name):
    backbone = {**RADIO} if name.startswith("radio") else {"type": name}
    student = student_of(spec_of("model.backbone.freeze_norm=true", backbone=backbone)).train()
    kinds = (_BatchNorm, nn.LayerNorm, nn.GroupNorm)
    norms = {n: copy.deepcopy(m.state_dict()) for n, m in student.backbone.named_modules() if isinstance(m, kinds)}
    assert norms and any(p.requires_grad for p in student.backbone.parameters())
    running = BatchNormStatistics(student)
    optimizer = torch.optim.SGD([p for p in student.parameters() if p.requires_grad], lr=1.0)
    features = student(torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8))
    (features.summary.sum() + features.spatial.square().sum()).backward()
    optimizer.step()
    running.step()
    for name, before in norms.items():
        after = student.backbone.get_submodule(name).state_dict()
        assert all(torch.equal(after[k], before[k]) for k in before), name
    head = student.heads["a"].spatial
    assert all(p.requires_grad for p in head.parameters())  # its own norms are trained


def micro_batch(seed: int) -> MicroBatch:
    torch.manual_seed(seed)
    pixels = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    targets = {name: Features(torch.randn(2, 64), torch.randn(2, 4, 4, 64)) for name in NAMES}
    return MicroBatch({"64": pixels}, torch.ones(2), torch.full((2,), -1), targets)


def losses_of(spec: Spec, steps: int = 3, backend: str | None = None) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses of a few plain steps, and what the student then is."""
    student = student_of(spec)
    if backend:
        torch.compiler.reset()
        compile_backbone(student.backbone, backend)
    module = DistillObjective(student, resolve_teachers(spec), "64").train()
    if backend:
        module.compile_losses(backend)
    running = BatchNormStatistics(module)
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.05)
    found = []
    for step in range(steps):
        optimizer.zero_grad()
        given = micro_batch(step)
        torch.manual_seed(1000 + step)
        loss = module(given)["loss"]
        loss.backward()
        optimizer.step()
        spectral.follow(module)
        running.step()
        found.append(float(loss.detach()))
    return found, {k: v.clone() for k, v in student.state_dict().items()}


EVERYTHING = (
    f"{W}={{prob: 0.6, window_sizes: [4, 2], num_global: 2}}",
    "model.backbone.drop_path=0.2",
    "model.backbone.spectral_reparam=true",
    "train.damp=0.05",
    "distill.teacher[0].spatial_mlp_version=attn",
)


@pytest.mark.parametrize("overrides", [(), EVERYTHING], ids=["plain", "everything"])
def test_recomputed_blocks_learn_the_same(overrides):
    losses, state = losses_of(spec_of(*overrides))
    again, recomputed = losses_of(spec_of(*overrides, "train.grad_checkpointing=true"))
    assert again == pytest.approx(losses, rel=1e-5) and list(recomputed) == list(state)
    for name, value in state.items():
        torch.testing.assert_close(recomputed[name], value, rtol=1e-4, atol=1e-5)


SMALL = {**RADIO, "kwargs": {**RADIO["kwargs"], "depth": 2}}
ONE_SIZE = f"{W}={{prob: 1.0, window_sizes: [4], num_global: 1}}"  # each size is a graph of its own


@pytest.mark.parametrize(
    ("backend", "overrides", "backbone"),
    [
        pytest.param(
            "inductor",
            ["model.backbone.drop_path=0.2"],
            {**RADIO, "kwargs": {**RADIO["kwargs"], "depth": 1}},
            marks=pytest.mark.proof,  # it compiles C++
        ),
        ("aot_eager", [*EVERYTHING[1:], ONE_SIZE, "train.grad_checkpointing=true"], SMALL),
        ("aot_eager", ["model.backbone.freeze_norm=true"], RESNET),
    ],
    ids=["inductor", "everything", "cnn"],
)
@pytest.mark.timeout(300)
def test_a_compiled_student_learns_the_same(backend, overrides, backbone):
    spec = spec_of(*overrides, backbone=backbone)
    losses, state = losses_of(spec, 2)
    again, compiled = losses_of(spec, 2, backend)
    assert again == pytest.approx(losses, rel=1e-4) and list(compiled) == list(state)  # names do not change
    for name, value in state.items():
        torch.testing.assert_close(compiled[name], value, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def test_noise_and_drop_path_make_a_difference():
    """Else the two tests above would show nothing."""
    plain, _ = losses_of(spec_of(), 1)
    for override in (*EVERYTHING, "model.backbone.cpe=false"):
        if "spectral" not in override:  # which starts as the plain one
            assert losses_of(spec_of(override), 1)[0] != plain, override


@pytest.mark.usefixtures("process_group")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("precision", "stage"), [("fp32", 0), ("bf16", 1), ("fp32", 2)])
def test_a_reparametrized_student_goes_through_the_engine_and_back(precision, stage):
    spec = spec_of(*EVERYTHING, f"train.precision={precision}", f"train.zero_stage={stage}", "train.optim.lr=0.001")
    moments = MOMENTS[spec.train.optim.optim]

    def start() -> tuple:
        module = DistillObjective(student_of(spec), resolve_teachers(spec), "64").train()
        return module, build_engine(module, spec, 1)

    def step(module, engine, number: int) -> float:
        given = micro_batch(number)
        torch.manual_seed(1000 + number)
        loss = engine(given)["loss"]
        engine.backward(loss)
        engine.step()
        spectral.follow(module)
        return float(loss.detach())

    module, engine = start()
    first = [step(module, engine, n) for n in range(2)]
    whole = engine.full_state(trainable(module), moments)
    assert any(name.endswith("gamma") for name in whole)
    tensors = {k: v.detach().clone().float() for k, v in module.student.state_dict().items()} | {
        k: whole[k] for k in trainable(module)
    }
    quiet = step(module, engine, 2)
    again, other = DistillObjective(student_of(spec), resolve_teachers(spec), "64").train(), None
    again.student.load_state_dict(tensors)
    other = build_engine(again, spec, 1)
    other.load_full_state(trainable(again), moments, whole, 2)
    assert step(again, other, 2) == pytest.approx(quiet, rel=1e-6) and first[0] != first[1]


def test_a_head_that_only_the_optimizer_makes_too_wide():
    """Its weights and gradients take two thirds of this machine's memory, Adam's moments as much again."""
    room = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if torch.cuda.is_available():
        room = torch.cuda.get_device_properties(0).total_memory
    width = int((room / 12) ** 0.5)
    wide = ("train.precision=fp32", "cluster.mode=local", f"distill.mlp_hidden_size={width}", "distill.mlp_num_inner=1")
    with pytest.raises(SpecError, match="distill.mlp_hidden_size: the head of a takes") as caught:
        design(*wide)
    assert "the optimizer" in str(caught.value)
    design("train.precision=fp32", "cluster.mode=local", f"distill.mlp_hidden_size={width // 2}", wide[-1])
