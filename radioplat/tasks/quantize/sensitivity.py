"""The task ``sensitivity``: which layers of a student lose most by being quantized, and in which format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from radioplat.common import terminal
from radioplat.compression.quantization.quantize_model import quantize_model
from radioplat.compression.quantization.sensitivity import layer_changes
from radioplat.errors import SpecError
from radioplat.spec.checks.tasks.quantize import quantize_problems
from radioplat.spec.loading.load import load_spec, to_yaml
from radioplat.spec.schema.quantize import BLOCK_SIZES, QatConfig, QuantizeMode
from radioplat.spec.schema.root import Spec
from radioplat.tasks.quantize.calibration_images import calibration_images
from radioplat.tasks.quantize.post_training import choose_device, open_checkpoint
from radioplat.tracking.results import TaskFolder, write_atomic
from radioplat.tracking.task_log import log_task

# Formats by the name in the table: of weights, and of activations.
FORMATS = {
    "int8": ("int8", "int8"),
    "fp8": ("fp8_e4m3fn", "fp8_e4m3fn"),
    "w4a8": ("int4", "int8"),
    "w4a16": ("int4", "native"),  # in blocks, the 4-bit scheme that TensorRT has
}
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
        missing: reasons by format why no layer can have it.
        notes: deviations from the request, one sentence each.
    """

    path: Path
    checkpoint: Path
    images: int
    changes: dict[str, dict[str, float]]
    cosine: dict[str, dict[str, float]]
    missing: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def ordered(self) -> list[str]:
        """The layers, those first that change most in INT8."""
        first = next(iter(FORMATS))
        return sorted(self.changes, key=lambda layer: -self.changes[layer].get(first, 0.0))


def sensitivity(
    spec: str | Path | Mapping[str, Any] | Spec,
    overrides: Sequence[str] = (),
) -> Sensitivity:
    """Measure how much each layer of ``quantize.checkpoint``, by default the latest student, loses in each format.

    Layers that ``quantize.skip_names`` names are left out; ``quantize.mode``, ``qat``, ``backend``, ``backend_kwargs``,
    rules of ``layers`` and default formats do not apply. The images are those of the calibration.

    Args:
        spec: a YAML file, a mapping of sections, or a :class:`~radioplat.spec.schema.root.Spec`; it is not changed.
        overrides: ``key=value``, applied to it in order.

    Returns:
        The change of the features by layer and format, and the layers in the order of it at ``ordered``.

    Raises:
        SpecError: fields of ``quantize`` contradict each other, or the student is quantized already.
        DataError: there are no calibration images, or they are of one colour.
        EngineError, WeightsError: there is no checkpoint, or it cannot be read.

    Example:
        >>> result = radioplat.sensitivity("spec.yaml")
        >>> list(result.changes[result.ordered[0]])  # of the layer that loses most
        ['int8', 'fp8', 'w4a8', 'w4a16']
    """
    spec = load_spec(spec, overrides)
    if problems := list(quantize_problems(without_choices(spec))):
        raise SpecError(*problems)
    folder = TaskFolder(spec.results_dir, "sensitivity", None)
    return log_task(folder, "sensitivity", to_yaml(spec), lambda: _measure(spec, folder), lambda result: {})


def without_choices(spec: Spec) -> Spec:
    """Return the spec without what chooses a backend, a training, or the formats of single layers.

    A block size is checked where no layer has blocks, too, since those of the format ``w4a16`` have it.
    """
    config = spec.quantize
    config = replace(
        config,
        mode=QuantizeMode.ptq,
        backend="native",
        backend_kwargs={},
        layers=[],
        qat=QatConfig(),
        block_size=None if config.block_size in BLOCK_SIZES else config.block_size,
    )
    return replace(spec, quantize=config)


def _measure(spec: Spec, folder: TaskFolder) -> Sensitivity:
    config = without_choices(spec).quantize
    path, model = open_checkpoint(spec)
    device, notes = choose_device(config.device)
    batches = calibration_images(spec, model.architecture.img_size, model.whole_images)
    on_device = [images.to(device) for images in batches]
    changes: dict[str, dict[str, float]] = {}
    cosine, missing = {}, {}
    for name, (weights, activations) in FORMATS.items():
        of_format = replace(
            config,
            block_size=spec.quantize.block_size,
            default_layer_dtype=weights,
            default_activation_dtype=activations,
        )
        try:
            done = quantize_model(model, of_format, batches, device)
        except SpecError as error:
            blocks = activations == "native"  # of linear layers alone, of a multiple of inputs
            if not blocks or error.problems[0].where != "quantize.layers":
                raise
            missing[name] = error.problems[0].message
            continue
        cosine[name] = done.cosine
        if config.reestimate_batchnorm:  # with new statistics it is another student, also in floats
            done = quantize_model(model, replace(of_format, reestimate_batchnorm=False), batches, device)
        for layer, change in layer_changes(done.model.to(device), on_device).items():
            changes.setdefault(layer, {})[name] = change
    result = Sensitivity(folder.path / FILE, path, sum(map(len, batches)), changes, cosine, missing, notes)
    write_atomic(
        result.path, json.dumps(asdict(result) | {"path": str(result.path), "checkpoint": str(path)}, indent=1)
    )
    return result


def show(result: Sensitivity) -> None:
    """Print the layers that change the features most, and the cosine with all of them quantized."""
    formats = [name for name in FORMATS if name not in result.missing]
    rows = [[layer, *(_number(result.changes[layer].get(name)) for name in formats)] for layer in result.ordered[:MOST]]
    rest = len(result.changes) - len(rows)
    note = f"{result.images} images; relative squared change of the features if this layer alone is quantized"
    note += f"; {rest} more layers in {result.path}" if rest > 0 else ""
    terminal.show_table("Sensitivity", ["layer", *formats], rows, note)
    for name, kinds in result.cosine.items():
        values = ", ".join(f"{kind} {value:.5f}" for kind, value in kinds.items())
        terminal.say(f"all layers in {name}: mean cosine {values}")
    for name, reason in result.missing.items():
        terminal.say(f"no layer in {name}: {reason}")
    for line in result.notes:
        terminal.say(line)
    terminal.say(f"keep a layer in floats: quantize.skip_names=[{_short(result.ordered[0])}]")
    terminal.say(f"{result.path}")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2e}"


def _short(layer: str) -> str:
    return layer.removeprefix("backbone.model.").removeprefix("backbone.")
