"""The task ``sensitivity``: which layers of a student lose most by being quantized, and in which format."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from radioplat.common import terminal
from radioplat.compression.quantization.quantize_model import quantize_model
from radioplat.compression.quantization.sensitivity import layer_changes
from radioplat.errors import SpecError
from radioplat.spec.checks.tasks.quantize import quantize_problems
from radioplat.spec.loading.load import to_yaml
from radioplat.spec.schema.quantize import QuantizeMode
from radioplat.spec.schema.root import Spec
from radioplat.tasks.quantize.calibration_images import calibration_images
from radioplat.tasks.quantize.post_training import open_checkpoint
from radioplat.tracking.results import TaskFolder, write_atomic
from radioplat.tracking.task_log import log_task

# Formats by the name in the table: of weights, and of activations.
FORMATS = {"int8": ("int8", "int8"), "fp8": ("fp8_e4m3fn", "fp8_e4m3fn"), "w4a8": ("int4", "int8")}
FILE, MOST = "sensitivity.json", 30


@dataclass(frozen=True)
class Sensitivity:
    """Result of the task.

    Attributes:
        path: the JSON file with all layers.
        checkpoint: the student.
        images: number of calibration images.
        changes: relative squared change of the features by layer and format, if this layer alone is quantized.
        cosine: mean cosine of the features by format and kind, if all layers are.
    """

    path: Path
    checkpoint: Path
    images: int
    changes: dict[str, dict[str, float]]
    cosine: dict[str, dict[str, float]]

    @property
    def ordered(self) -> list[str]:
        """The layers, those first that change most in INT8."""
        first = next(iter(FORMATS))
        return sorted(self.changes, key=lambda layer: -self.changes[layer].get(first, 0.0))


def sensitivity(spec: Spec) -> Sensitivity:
    """Measure ``quantize.checkpoint``, by default the latest student, on the calibration images.

    Layers that ``quantize.skip_names`` names are left out; rules of ``quantize.layers`` do not apply.

    Raises:
        SpecError: fields of ``quantize`` contradict each other, or the student is quantized already.
        DataError: there are no calibration images, or they are of one colour.
        EngineError, WeightsError: there is no checkpoint, or it cannot be read.
    """
    if problems := list(quantize_problems(without_choices(spec))):
        raise SpecError(*problems)
    folder = TaskFolder(spec.results_dir, "sensitivity", None)
    return log_task(folder, "sensitivity", to_yaml(spec), lambda: _measure(spec, folder), lambda result: {})


def without_choices(spec: Spec) -> Spec:
    """Return the spec with the settings that hold for all layers and formats: by radioplat's own quantizers."""
    config = replace(spec.quantize, mode=QuantizeMode.ptq, backend="native", layers=[])
    return replace(spec, quantize=config)


def _measure(spec: Spec, folder: TaskFolder) -> Sensitivity:
    config = spec.quantize
    path, model = open_checkpoint(spec)
    batches = calibration_images(spec, model.architecture.img_size, model.whole_images)
    changes: dict[str, dict[str, float]] = {}
    cosine = {}
    for name, (weights, activations) in FORMATS.items():
        of_format = replace(
            config,
            mode=QuantizeMode.ptq,
            backend="native",
            layers=[],
            default_layer_dtype=weights,
            default_activation_dtype=activations,
        )
        done = quantize_model(model, of_format, batches)
        cosine[name] = done.cosine
        for layer, change in layer_changes(done.model, batches).items():
            changes.setdefault(layer, {})[name] = change
    result = Sensitivity(folder.path / FILE, path, sum(map(len, batches)), changes, cosine)
    write_atomic(
        result.path, json.dumps(asdict(result) | {"path": str(result.path), "checkpoint": str(path)}, indent=1)
    )
    return result


def show(result: Sensitivity) -> None:
    """Print the layers that change the features most, and the cosine with all of them quantized."""
    rows = [[layer, *(_number(result.changes[layer].get(name)) for name in FORMATS)] for layer in result.ordered[:MOST]]
    rest = len(result.changes) - len(rows)
    note = f"{result.images} images; relative squared change of the features if this layer alone is quantized"
    note += f"; {rest} more layers in {result.path}" if rest > 0 else ""
    terminal.show_table("Sensitivity", ["layer", *FORMATS], rows, note)
    for name, kinds in result.cosine.items():
        values = ", ".join(f"{kind} {value:.5f}" for kind, value in kinds.items())
        terminal.say(f"all layers in {name}: mean cosine {values}")
    terminal.say(f"keep a layer in floats: quantize.skip_names=[{_short(result.ordered[0])}]")
    terminal.say(f"{result.path}")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2e}"


def _short(layer: str) -> str:
    return layer.removeprefix("backbone.model.").removeprefix("backbone.")
