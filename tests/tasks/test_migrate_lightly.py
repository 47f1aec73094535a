"""``radioplat migrate lightly``: every argument of LightlyTrain's becomes a field or a note, and no script is run."""

from __future__ import annotations

import inspect
import json
import re

import pytest
import timm
import yaml

from radioplat.cli import main as cli
from radioplat.errors import SpecError
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.train import Tracker
from radioplat.tasks.migrate import migrate_lightly as module
from radioplat.tasks.migrate.lightly_models import find_model
from radioplat.tasks.migrate.migrate_lightly import migrate_lightly

# The arguments of lightly_train.pretrain, with values that are not the defaults.
ARGUMENTS = {
    "out": "out/run", "data": "images", "model": "torchvision/resnet18", "method": "distillation",
    "method_args": {"teacher": "dinov2/vits14", "temperature_global": 0.1, "loss_local_weight": 0.5},
    "embed_dim": 64, "epochs": 20, "batch_size": 96, "gradient_accumulation_steps": 2, "num_workers": 6, "devices": 2,
    "num_nodes": 2, "resume_interrupted": True, "checkpoint": "last.ckpt", "overwrite": True, "accelerator": "gpu",
    "strategy": "ddp", "precision": "bf16-mixed", "float32_matmul_precision": "high", "seed": 3,
    "loggers": {"wandb": {"project": "p", "offline": True, "prefix": "x"}, "mlflow": {"uri": "u"}},
    "callbacks": {"model_checkpoint": {"every_n_epochs": 5}}, "optim": "adamw",
    "optim_args": {"lr": 0.001, "betas": (0.9, 0.95), "weight_decay": 0.04, "amsgrad": True},
    "transform_args": {"image_size": (192, 192), "random_flip": {"horizontal_prob": 0.25}, "random_gray_scale": 0.1,
                       "normalize": {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}},
    "loader_args": {"pin_memory": True}, "trainer_args": {"max_steps": 5}, "model_args": {"drop_path_rate": 0.1},
    "activation_checkpoint_args": {"enabled": True, "every_n_blocks": 2}, "resume": True, "new_in_lightly": 5,
}  # fmt: skip
SCRIPT = """
import os
from pathlib import Path
import lightly_train as lt
open("was_run", "w").write("")
MODEL = "dinov3/convnext-tiny-notpretrained"
ROOT = Path("photos")
if __name__ == "__main__":
    lt.pretrain(out="out", data=ROOT, model=MODEL, method="distillationv2", epochs=int(os.environ["E"]),
                method_args=dict(teacher="dinov3/vith16plus", teacher_weights="w.pth"), devices=[0, 1])
"""


def test_every_argument_is_a_field_or_a_note(tmp_path):
    (tmp_path / "call.json").write_text(json.dumps(ARGUMENTS))
    migrated = migrate_lightly([str(tmp_path / "call.json")])
    spec = load_spec(yaml.safe_load(migrated.text))
    teacher = spec.distill.teacher[0]
    assert (spec.results_dir, spec.dataset.train_dataset.images_dir, spec.model.backbone.type) == (
        "out/run", "images", "resnet18",
    )  # fmt: skip
    assert teacher.model.backbone.type == "vit_small_patch14_reg4_dinov2.lvd142m" and teacher.fd_loss_weight == 0.5
    assert teacher.pretrained_teacher_model_path == f"timm:{teacher.model.backbone.type}"
    assert (spec.global_batch_size, spec.dataset.batch_size, spec.world_size) == (192, 24, 4)
    train = spec.train
    assert (train.num_epochs, train.seed, train.precision.value, train.grad_checkpointing) == (20, 3, "bf16", True)
    assert (train.optim.optim.value, train.optim.lr, train.optim.betas) == ("adamw", 0.001, [0.9, 0.95])
    assert spec.dataset.img_size == 192 and spec.dataset.augmentation.random_flip.hflip_probability == 0.25
    assert spec.dataset.augmentation.mean == [0.5] * 3 and spec.dataset.workers == 6
    assert spec.wandb.project == "p" and spec.wandb.mode == "offline" and spec.tracked_by(Tracker.wandb)
    fields = {  # those that are fields of the spec, asserted above
        "out", "data", "model", "epochs", "batch_size", "gradient_accumulation_steps", "num_workers", "devices",
        "num_nodes", "precision", "seed", "optim",
    }  # fmt: skip
    noted = {name.split(".")[0].split("=")[0] for name in migrated.notes}
    assert set(ARGUMENTS) - fields - {"model_args"} <= noted and spec.model.backbone.kwargs == {"drop_path_rate": 0.1}
    inner = {
        "method_args.temperature_global", "loggers.mlflow", "loggers.wandb.prefix", "optim_args.amsgrad",
        "transform_args.random_gray_scale", "activation_checkpoint_args.every_n_blocks", "new_in_lightly",
    }  # fmt: skip
    assert inner <= set(migrated.notes)


def test_a_script_is_read_and_not_run(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pretrain.py").write_text(SCRIPT)
    assert cli.main(["migrate", "lightly", "pretrain.py", "--out", "spec.yaml"]) == 0
    assert not (tmp_path / "was_run").exists()
    spec = load_spec("spec.yaml")
    assert spec.model.backbone.type == "convnext_tiny" and spec.model.backbone.pretrained_backbone_path is None
    teacher = spec.distill.teacher[0]
    assert teacher.model.backbone.type == "vit_huge_plus_patch16_dinov3.lvd1689m"
    assert (teacher.pretrained_teacher_model_path, teacher.mode.value) == ("w.pth", "spatial")
    assert (spec.train.num_gpus, spec.global_batch_size, spec.train.seed) == (2, 128, 0)
    noted = capfd.readouterr().err
    assert "epochs: its value is not a literal of the script (int(os.environ['E']))" in noted and "optim:" in noted
    assert (
        cli.main(["migrate", "lightly", "pretrain.py", "--out", "spec.yaml"]) == 1
        and "exists" in capfd.readouterr().err
    )


def test_words_are_those_of_the_command(capfd):
    words = [
        "out=o",
        "data=[a, b]",
        "model=timm/vit_tiny_patch16_224",
        "method_args.teacher=dinov2/vitb14-noreg",
        "epochs=3",
    ]
    assert cli.main(["migrate", "lightly", *words]) == 0
    printed = capfd.readouterr()
    tree = yaml.safe_load(printed.out)
    assert tree["model"]["backbone"]["type"] == "vit_tiny_patch16_224" and tree["train"]["num_epochs"] == 3
    assert tree["distill"]["teacher"][0]["model"]["backbone"]["type"] == "vit_base_patch14_dinov2.lvd142m"
    assert (
        tree["dataset"]["train_dataset"]["images_dir"] == "a"
        and "data: a split has one folder of images" in printed.err
    )


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("dinov2/vitg14", "vit_giant_patch14_reg4_dinov2.lvd142m"),
        ("dinov2_vit/vitb14_pretrain", "vit_base_patch14_dinov2.lvd142m"),
        ("dinov2/vits14-noreg-notpretrained", "vit_small_patch14_dinov2"),
        ("dinov3/vitb16", "vit_base_patch16_dinov3.lvd1689m"),
        ("dinov3/vits16plus", "vit_small_plus_patch16_dinov3.lvd1689m"),
        ("dinov3/vit7b16", "vit_7b_patch16_dinov3.lvd1689m"),
        ("dinov3/convnext-large", "convnext_large.dinov3_lvd1689m"),
        ("torchvision/convnext_small", "convnext_small"),
        ("torchvision/wide_resnet50_2", "wide_resnet50_2"),
        ("timm/resnet18.a1_in1k", "resnet18.a1_in1k"),
        ("ultralytics/yolo11s", None),
        ("torchvision/shufflenet_v2_x1_0", None),
    ],
)
def test_models_are_timms(name, ours):
    model = find_model(name)
    assert (model and model.type) == ours
    assert ours is None or timm.is_model(ours.partition(".")[0])
    if model and model.pretrained:
        assert ours in timm.list_models(pretrained=True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import lightly_train\nlightly_train.export(out='x')", "no call of lightly_train.pretrain"),
        ("import lightly_train as l\nl.train(out='x')\nl.pretrain(out='y')", "at lines 2, 3"),
        ("from lightly_train import train\ntrain(method='dinov2', out='x')", "dinov2 learns without a teacher"),
        ("def (", "not a Python file"),
        ("import other\nother.train(out='x')", "no call"),
    ],
)
def test_other_scripts_are_refused(text, words, tmp_path):
    (tmp_path / "s.py").write_text(text)
    with pytest.raises(SpecError) as error:
        migrate_lightly([str(tmp_path / "s.py")])
    assert words in str(error.value)


def test_values_of_another_kind_are_reported_and_not_used(capfd):
    words = ["out=o", "data=d", "model=timm/resnet18", "method_args.teacher=dinov2/vitb14-noreg", "num_nodes=two"]
    words += ["devices=all", "transform_args.random_flip=false", "transform_args.normalize=yes", "loggers.wandb=true"]
    assert cli.main(["migrate", "lightly", *words]) == 0
    printed = capfd.readouterr().err
    assert "num_nodes: a whole number is expected, not 'two'" in printed and "devices: a whole number" in printed
    for name in ("transform_args.random_flip", "transform_args.normalize", "loggers.wandb"):
        assert f"{name}: a mapping is expected" in printed


def test_nothing_is_taken_without_an_answer():
    """Every name that the code takes is one of LightlyTrain's: a misspelt one would never be found."""
    taken = set(re.findall(r'work\.(?:take|section|number)\("(\w+)"', inspect.getsource(module)))
    assert taken <= set(ARGUMENTS) and len(taken) > 15
