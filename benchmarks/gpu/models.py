"""The models of radioplat as its trainer builds them from a spec, with random weights, and inputs in memory."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.gpu.loop import HIDDEN
from benchmarks.gpu.setting import Model, Setting
from radioplat.design.models import Models, design_models
from radioplat.design.student import prepare_student
from radioplat.models.features import Features
from radioplat.models.pretrained.initial_weights import start_student
from radioplat.objectives.distill import DistillObjective
from radioplat.objectives.micro_batch import MicroBatch
from radioplat.objectives.objective import Objective
from radioplat.spec.resolved.teacher import resolve_teachers, student_view
from radioplat.spec.schema.cluster import (
    ClusterConfig,
    ClusterMode,
    Placement,
    TeacherPrecision,
    TeacherServiceConfig,
)
from radioplat.spec.schema.dataset import DatasetConfig
from radioplat.spec.schema.distill import (
    DistillConfig,
    LossType,
    Mode,
    SummaryLoss,
    TargetNormConfig,
    TargetNormType,
    TeacherConfig,
)
from radioplat.spec.schema.model import BackboneConfig, ModelConfig
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import EngineName, OptimConfig, Precision, TrainConfig
from radioplat.teachers.adapters.registry import adapter_class

NORM = [0.5, 0.5, 0.5]


def spec_of(setting: Setting, engine: str = "ddp", stage: int = 0, compiles: bool | None = None) -> Spec:
    """Return the spec of a run of the setting; made without omegaconf, which a bare image lacks.

    Args:
        engine: ``train.engine``.
        stage: ``train.zero_stage``.
        compiles: whether the student is compiled; default: as the setting says.
    """
    precision, compiles = setting.precision, setting.compiles if compiles is None else compiles
    return Spec(
        cluster=ClusterConfig(mode=ClusterMode.local),
        model=ModelConfig(BackboneConfig(type=setting.student.type, kwargs=dict(setting.student.kwargs))),
        dataset=DatasetConfig(img_size=setting.student.size, batch_size=setting.batch),
        train=TrainConfig(
            num_gpus=setting.gpus,
            global_batch_size=setting.images_a_step,
            precision=Precision(precision),
            tf32=True,
            engine=EngineName(engine),
            zero_stage=stage,
            compile=compiles,
            optim=OptimConfig(lr=1e-4),
        ),
        distill=DistillConfig(
            mode=Mode.combo,
            loss_type=LossType.BALANCED,
            use_mlp=True,
            mlp_hidden_size=HIDDEN,
            target_norm=TargetNormConfig(type=TargetNormType.standardize, fit_batches=1),
            teacher=[_teacher(setting, model) for model in setting.teachers],
        ),
        teachers={
            model.name: TeacherServiceConfig(
                placement=Placement.inline, precision=TeacherPrecision(precision), compile=compiles
            )
            for model in setting.teachers
        },
    )


def _teacher(setting: Setting, model: Model) -> TeacherConfig:
    return TeacherConfig(
        name=model.name,
        model=ModelConfig(BackboneConfig(type=model.type, kwargs=dict(model.kwargs))),
        pretrained_teacher_model_path=str(weights_path(setting, model)),
        input_size=model.size,
        norm_mean=NORM,
        norm_std=NORM,
        summary_loss_type=SummaryLoss.cosine,
    )


def objective_of(spec: Spec, device: str) -> tuple[Models, Objective]:
    """Return the student, its heads and the losses, as ``radioplat.design.tasks.features`` builds them."""
    models = design_models(spec, "distill")
    student = prepare_student(start_student(spec, models.architecture), spec, "distill")
    objective = DistillObjective(student, models.teachers, student_view(spec), spec.distill)
    if spec.train.compile:
        objective.compile_losses()
    return models, objective.to(device).train()


def micro_batches(spec: Spec, models: Models, device: str, count: int = 4) -> list[MicroBatch]:
    """Return micro-batches of random images and features on the device."""
    batch, size, view = spec.dataset.batch_size, spec.dataset.img_size, student_view(spec)
    made = []
    for _ in range(count):
        targets = {}
        for name, info in models.infos.items():
            vectors = torch.randn(batch, info.summary_dim), torch.randn(batch, *models.grids[name], info.spatial_dim)
            targets[name] = Features(*(tensor.bfloat16() for tensor in vectors), {})
        images = {view: torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8)}
        labels = torch.full((batch,), -1)
        made.append(MicroBatch(images, torch.ones(batch), labels, targets).to(torch.device(device)))
    return made


def weights_path(setting: Setting, model: Model) -> Path:
    """Return the file of a teacher's weights."""
    return Path(setting.scratch) / f"{model.name}.safetensors"


def write_weights(setting: Setting, spec: Spec) -> None:
    """Write random weights of the teachers in bf16, unless they are there; they are drawn on the device.

    Zeros would be multiplied faster than what trained models have.
    """
    for number, (model, teacher) in enumerate(zip(setting.teachers, resolve_teachers(spec), strict=True)):
        path = weights_path(setting, model)
        if path.exists():
            continue
        torch.manual_seed(number)
        with torch.device(setting.device):
            built = adapter_class(teacher).build(teacher).target
        aside = path.with_suffix(".part")
        save_file({name: _plain(value) for name, value in built.state_dict().items()}, aside)
        aside.rename(path)


def _plain(value: torch.Tensor) -> torch.Tensor:
    value = value.detach().to(torch.bfloat16) if value.is_floating_point() else value.detach()
    return value.cpu().contiguous()
