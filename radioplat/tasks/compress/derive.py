"""The spec of one stage, made from the user's: what the stage reads, what it leaves, and what it depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from radioplat.errors import Problem, SpecError
from radioplat.models.vision_model import open_architecture
from radioplat.spec.checks.tasks.compress import QUANTIZES
from radioplat.spec.checks.tasks.export import export_problems
from radioplat.spec.checks.tasks.low_rank import low_rank_problems
from radioplat.spec.checks.tasks.prune import prune_problems
from radioplat.spec.checks.tasks.quantize import ONNX_BACKEND, quantize_problems
from radioplat.spec.checks.tasks.run import check
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.number_formats import ACTIVATIONS, DATA_TYPES, engine_type
from radioplat.spec.schema.compress import Stage
from radioplat.spec.schema.engine import TensorRTConfig
from radioplat.spec.schema.evaluate import ModelEntry
from radioplat.spec.schema.quantize import QatConfig, QuantizeMode
from radioplat.spec.schema.root import Spec
from radioplat.tasks.compress.groups import Step

TASKS = (
    {stage: stage.value for stage in Stage} | dict.fromkeys(QUANTIZES, "quantize") | {Stage.engine: "gen_trt_engine"}
)
_MODES = {Stage.ptq: QuantizeMode.ptq, Stage.qat: QuantizeMode.qat}
_TRAINING = ("model", "dataset", "train", "distill")
# The sections that a stage's outcome depends on. Where teachers run, what is cached and who watches, are not of them.
SECTIONS: dict[Stage, tuple[str, ...]] = {
    Stage.distill: _TRAINING,
    Stage.retrain: _TRAINING,
    Stage.prune: (*_TRAINING, "prune"),
    Stage.low_rank: (*_TRAINING, "low_rank"),
    **dict.fromkeys(sorted(QUANTIZES), (*_TRAINING, "quantize")),
    Stage.evaluate: ("dataset", "distill", "evaluate"),
    Stage.export: ("dataset", "export", "gen_trt_engine", "quantize"),
    Stage.engine: ("gen_trt_engine",),
}

_PROBLEMS = {
    Stage.prune: prune_problems,
    Stage.low_rank: low_rank_problems,
    **dict.fromkeys(QUANTIZES, quantize_problems),
    Stage.export: export_problems,
}


def task_of(spec: Spec, stage: Stage) -> str:
    """The task that does the stage's work."""
    if stage in (Stage.distill, Stage.retrain):
        return "distill" if spec.distill.teacher else "train"
    return TASKS[stage]


def stage_spec(spec: Spec, step: Step, milder: Sequence[str] = ()) -> Spec:
    """The spec of ``step`` before it is told where to read and write.

    Args:
        milder: overrides of a retry.

    Raises:
        SpecError: ``compress.changes`` cannot be applied.
    """
    asked = spec.compress.changes
    derived = load_spec(spec, [*asked.get(step.stage.value, ()), *asked.get(step.name, ()), *milder])
    derived.dataset.index_dir = spec.dataset.index_dir or str(Path(spec.results_dir) / "index")
    test = derived.dataset.test_dataset
    if step.stage is Stage.evaluate and (test.tar_data_sources or test.images_dir):
        derived.dataset.val_dataset = test
        derived.dataset.index_dir = str(Path(derived.dataset.index_dir).with_name("index_test"))
    derived.distill.then = []
    if step.stage in _MODES and not any(line.startswith("quantize.mode=") for line in milder):
        derived.quantize.mode = _MODES[step.stage]
    if derived.quantize.mode is not QuantizeMode.qat:
        derived.quantize.qat = QatConfig()  # what another stage of the chain trains by
    return derived


def stage_problems(spec: Spec, step: Step) -> list[Problem]:
    """What of the spec would stop ``step``, found before anything starts."""
    task = task_of(spec, step.stage)
    if step.stage in QUANTIZES and spec.quantize.backend == ONNX_BACKEND:
        hint = "Take another backend, or quantize what the chain has exported."
        return [Problem(f"{ONNX_BACKEND} leaves no student to go on with", "quantize.backend", hint)]
    if step.stage in _PROBLEMS:
        return list(_PROBLEMS[step.stage](spec))
    return check(spec, task) if task in ("distill", "train") else []


@dataclass
class Inputs:
    """What the stages before left.

    Attributes:
        student: a checkpoint folder; None before the first.
        onnx: of the last export.
        models: everything that can be judged, by the name of the stage that left it: students, ONNX files, engines.
    """

    student: Path | None = None
    onnx: Path | None = None
    models: dict[str, Path] = field(default_factory=dict)


def placed(spec: Spec, step: Step, folder: Path, inputs: Inputs, said: str) -> Spec:
    """Tell a stage's spec where to read and write; changes ``spec`` and returns it.

    Args:
        said: the hash of all that the stage's outcome depends on.

    Raises:
        WeightsError: the student cannot be read.
    """
    task = task_of(spec, step.stage)
    spec.results_dir = str(folder)
    section = getattr(spec, task)
    if hasattr(section, "results_dir"):
        section.results_dir = None
    if hasattr(section, "checkpoint"):
        section.checkpoint = str(inputs.student)
    if step.stage in QUANTIZES:
        section.model_path = section.qat.results_dir = None
    if step.changes_student:  # each may train, prune and low_rank as well as distill
        spec.train.resume_training_checkpoint_path = None
        if spec.train.checkpoint_dir:  # the hash: what another setting left there under this name is another student
            spec.train.checkpoint_dir = f"{spec.train.checkpoint_dir.rstrip('/')}/compress/{folder.name}-{said[:8]}"
    if step.stage is Stage.retrain:
        spec.train.pretrained_model_path = str(inputs.student)
        spec.model.backbone.pretrained_backbone_path = None
    if step.stage is Stage.evaluate and not section.resolutions:  # which are of one checkpoint
        section.checkpoint = None
        section.models = [*section.models, *(ModelEntry(name, str(path)) for name, path in inputs.models.items())]
    if step.stage is Stage.engine:
        section.onnx_file = str(inputs.onnx)
        if (formats := _formats(inputs.student)) and section.tensorrt.data_type == TensorRTConfig().data_type:
            section.tensorrt.data_type = formats
    return spec


def _formats(student: Path | None) -> str:
    """What an engine of a quantized student is typed, int8 or fp8; empty where it multiplies in floats.

    A layer with quantized weights alone multiplies in floats, and its file is built as one in floats; all but 4-bit
    weights, which stand under int8 (:func:`radioplat.exporting.engines.onnx_input.check_data_type`).
    """
    parts = open_architecture(student).quantizations.values() if student else ()
    layers = [layer for how in parts for layer in how.layers.values()]
    types = {
        layer.activations or engine_type(str(layer.weights))
        for layer in layers
        if layer.activations is not None or layer.weights not in (None, *ACTIVATIONS)
    }
    return max(types, key=lambda name: DATA_TYPES[name].first_sm, default="")  # of several, what fewest GPUs compute in


def depends_on(spec: Spec, stage: Stage) -> str:
    """YAML of what the stage's outcome depends on."""
    sections = {name: OmegaConf.structured(getattr(spec, name)) for name in SECTIONS[stage]}
    tree: dict[str, Any] = {name: OmegaConf.to_container(section) for name, section in sections.items()}
    for name, section in tree.items():
        section.pop("results_dir", None)
        if name == "dataset":
            section.pop("index_dir")  # where it lies changes nothing
        if name == "train":
            section.pop("restart")  # nor what becomes of checkpoints that cannot be read
    return OmegaConf.to_yaml(OmegaConf.create(tree))


def fingerprint(*parts: str) -> str:
    """A hash of texts, in order."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def check_chain(spec: Spec, steps: Sequence[Step]) -> None:
    """Find what would stop any of ``steps``, before the first one starts.

    Raises:
        SpecError: with every problem, and the stage that it would stop.
    """
    found: dict[Problem, None] = {}
    written: dict[str, str] = {}
    for step in steps:
        derived = stage_spec(spec, step)
        found.update(dict.fromkeys(stage_problems(derived, step)))
        for where, path in _named_outputs(derived, step.stage).items():
            other = written.setdefault(str(Path(path).absolute()), step.name)
            if other != step.name:
                hint = (
                    f"Leave it out, and each writes into its own folder; or give compress.changes.{step.name} another."
                )
                found[Problem(f"{other} and {step.name} would both write {path}", where, hint)] = None
    if found:
        raise SpecError(*found)


def _named_outputs(spec: Spec, stage: Stage) -> dict[str, str]:
    """What a stage writes outside its own folder, by the field that says so."""
    if stage is Stage.engine:
        named = {"gen_trt_engine.trt_engine": spec.gen_trt_engine.trt_engine}
        cache = spec.gen_trt_engine.tensorrt.calibration.cal_cache_file
        if cache and not Path(cache).exists():  # the first engine writes it, and the next would read its ranges
            named["gen_trt_engine.tensorrt.calibration.cal_cache_file"] = cache
    elif stage is Stage.export:
        named = {f"export.{name}": getattr(spec.export, name) for name in ("onnx_file", "output", "bundle")}
        cache = (spec.export.calibration_cache or "").strip()
        named["export.calibration_cache"] = None if cache.lower() in ("true", "false") else cache
    else:
        named = {}
    return {where: path for where, path in named.items() if path}
