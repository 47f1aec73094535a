"""Every kind of bad input that the recipe can be given, as a user would write it: `radioplat plan` names the field."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch
import yaml

import radioplat
from radioplat.cli import main as cli
from radioplat.errors import RadioplatError
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.plan.plan import plan

EVA = "eva02_tiny_patch14_224, kwargs: {patch_size: 16}"
T, B, E = "distill.teacher", "distill.bindings", "distill.teacher[1].extra_losses"
BOUND = {"teacher": "vit", "teacher_module_name": "blocks.2", "student_module_name": "blocks.1", "criterion": "MSE"}


@pytest.fixture(scope="module")
def planned(make_spec, tmp_path_factory):
    """planned(overrides, file="spec.yaml") -> whether it stands; `radioplat plan` prints as ever."""
    folder = tmp_path_factory.mktemp("planned")
    spec = make_spec(folder / "results", {"dataset": {"knn_validation": False}})
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    (folder / "cnn.yaml").write_text(yaml.safe_dump(spec | {"model": {"backbone": {"type": "test_resnet"}}}))
    return lambda overrides, file="spec.yaml": cli.main(["plan", "-e", str(folder / file), *overrides]) == 0


def test_the_spec_itself_stands(planned):
    assert planned([f"{B}=[{BOUND}]"])


def test_sizes_with_probabilities_stand(planned):
    assert planned(["dataset.augmentation.multi_scales=[{64: 0.1}, {96: 0.2}]"])


def test_blocks_that_another_student_loses_stand(planned, weights):
    """The run's own student has two blocks; what is pruned is named, and is not that student."""
    assert planned([f"prune.checkpoint={weights['lite0']}", "prune.blocks=8", "prune.parts=[]"])


def binding(**changes) -> str:
    return f"{B}=[{BOUND | changes}]"


REFUSED = [
    # a family, or an amount, that cannot be pruned
    (["prune.amount=1"], "prune.amount"),
    (["prune.blocks=2"], "prune.blocks"),
    (["prune.score=taylor", "prune.parts=[width]", f"model.backbone={{type: {EVA}}}"], "model.backbone.type"),
    (["prune={rounds: 3}"], "prune.rounds"),
    # incompatible mode and loss
    ([f"{T}[1].loss_type=KL"], f"{T}[1].loss_type"),
    ([f"{T}[0].mode=spatial", "distill.loss_type=CE", f"{T}[1].loss_type=MSE"], f"{T}[0].loss_type"),
    ([f"{T}[0].mode=logits", f"{T}[0].loss_type=MSE"], f"{T}[0].loss_type"),
    ([f"{T}[1].mode=summary", f"{T}[1].loss_type=gram"], f"{T}[1].loss_type"),
    ([f"{T}[1].mode=summary", f"{T}[1].spatial_loss_type=gram"], f"{T}[1].spatial_loss_type"),
    ([f"{E}=[{{type: angle, kind: spatial}}]"], f"{E}[0].type"),
    (["distill.alpha=0.5"], "distill.alpha"),
    ([binding(criterion="angle")], f"{B}[0].criterion"),
    # a head wider than memory
    (["distill.mlp_hidden_size=4000000", "distill.mlp_num_inner=2"], "distill.mlp_hidden_size"),
    (["distill.mlp_hidden_size=100000", f"{T}[1].spatial_num_inner=3"], f"{T}[1].spatial_num_inner"),
    # a binding that names no module
    ([binding(student_module_name="blocks.9")], f"{B}[0].student_module_name"),
    ([binding(teacher_module_name="layers.2")], f"{B}[0].teacher_module_name"),
    ([binding(teacher="sam")], f"{B}[0].teacher"),
    ([binding(student_module_name="")], f"{B}[0].student_module_name"),
    # resolutions that do not divide
    (["dataset.img_size=65"], "dataset.img_size"),
    (["dataset.augmentation.multi_scales=[64, 50]"], "dataset.augmentation.multi_scales"),
    ([f"{T}[0].stochastic_resolutions={{50: 1.0}}"], f"{T}[0].stochastic_resolutions"),
    ([f"{T}[1].input_size=50"], f"{T}[1].input_size"),
    (["distill.stages=[{steps: 1, img_size: 50}]"], "distill.stages[0].img_size"),
    (["distill.partitions=[{share: 1.0, teachers: [vit], img_size: 50}]"], "distill.partitions[0].img_size"),
    ([f"{T}[1].mosaic=2", f"{T}[1].input_size=96"], f"{T}[1]."),
    (["distill.vitdet={prob: 0.5, num_windowed: 1, window_sizes: [3]}"], "distill.vitdet.window_sizes[0]"),
    (["dataset.val_img_size=50", "distill.then=[evaluate]"], "dataset.val_img_size"),
    (["evaluate.resolutions=[50]", "distill.then=[evaluate]"], "evaluate.resolutions[0]"),
    (["export.input_width=50", "distill.then=[export]"], "export.input_width"),
    # class-token slots out of range
    ([f"{T}[1].summary_token_idx=2"], f"{T}[1].summary_token_idx"),
    ([f"{T}[0].summary_token_idx=-1"], f"{T}[0].summary_token_idx"),
    # a mean or a std that is none
    ([f"{T}[1].norm_mean=[.5,.5]"], f"{T}[1].norm_mean"),
    ([f"{T}[1].norm_mean=[.5,.5,.nan]"], f"{T}[1].norm_mean"),
    ([f"{T}[1].norm_std=[.5,.5,.5,.5]"], f"{T}[1].norm_std"),
    ([f"{T}[1].norm_std=[.5,0,.5]"], f"{T}[1].norm_std"),
    ([f"{T}[1].norm_std=[.5,.inf,.5]"], f"{T}[1].norm_std"),
    (["model.backbone.student_norm_mean=[.5]"], "model.backbone.student_norm_mean"),
    (["model.backbone.student_norm_std=[.5,.5,.inf]"], "model.backbone.student_norm_std"),
    # sizes with probabilities, TAO's form
    (["dataset.augmentation.multi_scales=[{64: 0.1}, {50: 0.2}]"], "dataset.augmentation.multi_scales"),
    (["dataset.augmentation.multi_scales=[{64: -0.1}]"], "dataset.augmentation.multi_scales"),
    (["dataset.augmentation.multi_scales=[{64: 0.0}]"], "dataset.augmentation.multi_scales"),
    (["dataset.augmentation.multi_scales=[{64: .nan}]"], "dataset.augmentation.multi_scales"),
]
STRIDE = 3  # each check has a test of its own in tests/spec/checks or tests/launch/preflight


@pytest.mark.parametrize(
    ("overrides", "where"),
    [
        each if number % STRIDE == 0 else pytest.param(*each, marks=pytest.mark.proof)
        for number, each in enumerate(REFUSED)
    ],
)
def test_plan_names_the_field(planned, capfd, overrides, where):
    assert not planned(overrides)
    assert_named(where, capfd)


@pytest.mark.parametrize(
    ("override", "where"),
    [
        (f"{T}[0].summary_token_idx=1", f"{T}[0].summary_token_idx"),
        ("train.compile=true", "train.compile"),
        ("model.backbone.spectral_reparam=true", "model.backbone.spectral_reparam"),
    ],
)
def test_plan_names_the_field_of_a_cnn(planned, capfd, override, where):
    assert not planned([override], "cnn.yaml")
    assert_named(where, capfd)


def assert_named(where: str, capfd) -> None:
    _, err = capfd.readouterr()
    assert f"{where}" in err and "Traceback" not in err
    # and says nothing of fields that are right
    assert all(where in line for line in err.splitlines() if line.startswith("error ")), err


@pytest.mark.parametrize(
    ("overrides", "where"),
    [
        (
            (f"{T}[0].pretrained_teacher_model_path=/nowhere.safetensors", "train.keep_best=1", "distill.alpha=0.5"),
            {f"{T}[0].pretrained_teacher_model_path", "train.keep_best", "distill.alpha"},
        ),
        # the folder's own checkpoint is newer than the one that is named
        (("train.resume_training_checkpoint_path=/nowhere", "train.precision=fp16"), {"train.precision"}),
        (("cluster.mode=local", "train.num_gpus=2", "dataset.max_pixels=5"), {"cluster.mode"}),
        (("dataset.train_dataset.seed=5",), {"FOLDER"}),  # its checkpoint was trained on another order
        (
            ("train.pretrained_model_path=/nowhere", "dataset.val_dataset.tar_data_sources=[{root_dir: /nowhere}]"),
            {"train.pretrained_model_path", "dataset.val_dataset.tar_data_sources[0].root_dir"},
        ),
        (("evaluate.resolutions=[50]", "distill.then=[evaluate]"), {"evaluate.resolutions[0]"}),
        (("results_dir=s3://bucket/results",), {"results_dir"}),
    ],
)
def test_a_run_raises_what_plan_prints(quiet_run, tmp_path: Path, overrides, where):
    folder = tmp_path / "run" / "distill"
    shutil.copytree(quiet_run.folder, folder, symlinks=True)
    spec = load_spec(quiet_run.file, (f"results_dir={folder.parent}", *overrides))
    with pytest.raises(RadioplatError) as caught:
        radioplat.distill(spec, say=lambda line: None)
    assert set(caught.value.problems) == set(plan(spec).problems)
    assert {str(folder) if name == "FOLDER" else name for name in where} <= {p.where for p in caught.value.problems}


def test_a_section_of_another_task_refuses_its_own_task_only(make_spec, tmp_path: Path):
    spec = load_spec(make_spec(tmp_path / "run"), ["prune={score: taylor, rounds: 3}", "train.max_steps=1"])
    assert {problem.where for problem in plan(spec).problems} == {"prune.rounds"}
    assert radioplat.distill(spec, say=lambda line: None).global_step == 1


def test_a_hadamard_order_that_cannot_be_had(planned, tmp_path: Path, capfd):
    """66 is no multiple of 4: the run can be had, with a matrix that is nearly as good, and `plan` says so."""
    kwargs = {"embed_dim": 66, "num_heads": 2, "img_size": 64}
    torch.manual_seed(0)
    tensors = timm.create_model("test_vit", num_classes=0, **kwargs).state_dict()
    safetensors.torch.save_file(tensors, tmp_path / "vit66.safetensors")
    asked = [
        f"{T}[1].model.backbone.kwargs={kwargs}",
        f"{T}[1].pretrained_teacher_model_path={tmp_path / 'vit66.safetensors'}",
    ]
    assert planned([*asked, "distill.target_norm.type=phi_s", f"{T}[0].mode=spatial", f"{T}[0].spatial_norm_type=zca"])
    out, err = capfd.readouterr()
    assert "distill.target_norm.type: no Hadamard matrix of order 66" in " ".join((out + err).split())
    assert planned([*asked, f"{T}[1].spatial_norm_type=phi"])
    out, err = capfd.readouterr()
    assert f"{T}[1].spatial_norm_type: no Hadamard matrix of order 66" in " ".join((out + err).split())
