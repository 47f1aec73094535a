"""The task ``export``: write a trained student or detector as an ONNX file or as weights in another layout."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radioplat.errors import EngineError, SpecError
from radioplat.exporting.weights.export import FORMATS, WeightsReport, export_weights, format_problems
from radioplat.models.model_kind import ModelKind
from radioplat.models.quantized.quantizer import in_float, quantizers
from radioplat.models.source import Source, source_of
from radioplat.models.student.student import sequence_problems
from radioplat.models.vision_model import open_model
from radioplat.spec.checks.tasks.export import detector_export_problems, export_problems
from radioplat.spec.loading.load import load_spec, to_yaml
from radioplat.spec.resolved.number_formats import ACTIVATIONS
from radioplat.spec.schema.export import ExportFormat
from radioplat.spec.schema.root import Spec
from radioplat.tasks.shared.find_checkpoint import find_checkpoint, task_folder
from radioplat.tracking.results import TaskFolder
from radioplat.tracking.task_log import log_task
from radioplat.tracking.weights_and_biases.artifacts import Product
from radioplat.tracking.weights_and_biases.task_record import kind_of, log_task_to_wandb

if TYPE_CHECKING:
    from radioplat.exporting.onnx.export import OnnxReport
    from radioplat.tasks.export.side_files import Needs


def export(spec: str | Path | Mapping[str, Any] | Spec, overrides: Sequence[str] = ()) -> OnnxReport | WeightsReport:
    """Export the trained student or detector of ``export.checkpoint`` in ``export.format``.

    Args:
        spec: a YAML file, a mapping of sections, or a :class:`~radioplat.spec.schema.root.Spec`; it is not changed.
        overrides: ``key=value``, applied to it in order.

    Returns:
        The ONNX file at ``path``, with its inputs, outputs and difference from torch; of other formats the file or
        folder of weights at ``path``, and the line of Python that opens it, ``load``.

    Raises:
        SpecError: fields of ``export`` contradict each other.
        EngineError: there is no checkpoint, or the student cannot be exported with these settings.
        WeightsError: the checkpoint cannot be read.

    Example:
        >>> radioplat.export("spec.yaml", ["export.format=timm"]).load
        "timm.create_model('resnet10t', ...)..."
    """
    spec = load_spec(spec, overrides)
    if problems := list(export_problems(spec)):  # before the folder is made
        raise SpecError(*problems)
    folder = TaskFolder(spec.results_dir, "export", spec.export.results_dir)
    report = log_task(folder, "export", to_yaml(spec), lambda: _export(spec), _export_kpi)
    checkpoint = find_checkpoint(spec, spec.export.checkpoint, "export.checkpoint").resolve()
    made = Product(report.path, kind_of(report.path), [checkpoint])
    log_task_to_wandb(spec, folder.path, "export", figures=_export_kpi(report), made=made)
    return report


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A model that can be exported.

    Attributes:
        needs: what the side files of an ONNX file need; None for other formats.
        source: the checkpoint.
    """

    model: Any
    needs: Needs | None
    source: Path


def prepare_export(spec: Spec) -> Prepared:
    """Open the model of ``export.checkpoint``, and check everything that the export needs.

    Raises:
        RadioplatError: as :func:`export`.
    """
    if problems := list(export_problems(spec)):
        raise SpecError(*problems)
    config = spec.export
    check_channels(config.input_channel, "export")
    source = find_checkpoint(spec, config.checkpoint, "export.checkpoint").resolve()
    model: Any = open_model(source, "export.checkpoint", config.use_ema)
    if config.num_tokens:
        if problems := list(sequence_problems(model.architecture.student, "export.num_tokens")):
            raise SpecError(*problems)
        model.backbone.num_tokens = config.num_tokens
    height, width = config.input_height, config.input_width
    if model.model_kind is ModelKind.detector:
        side = spec.dataset.img_size
        if problems := list(detector_export_problems(config, height or side, width or side, model.stride)):
            raise SpecError(*problems)
    if model.model_kind is not ModelKind.detector and (
        problems := format_problems(model, config.format, config.adaptors, config.adaptor_types)
    ):
        raise EngineError(*problems)
    if config.format is not ExportFormat.onnx:
        return Prepared(model, None, source)
    from radioplat.tasks.export.side_files import find_needs  # of the extra onnx

    return Prepared(model, find_needs(spec, model, onnx_file(spec)), source)


def _export(spec: Spec) -> OnnxReport | WeightsReport:
    config, prepared = spec.export, prepare_export(spec)
    model, needs, height, width = prepared.model, prepared.needs, config.input_height, config.input_width
    sources = [source_of(prepared.source, config.use_ema)]
    if needs is None:
        size = model.architecture.img_size
        path = Path(config.output or task_folder(spec, "export") / FORMATS[config.format].file_name)
        return export_weights(
            model,
            config.format,
            path,
            height=height or size,
            width=width or size,
            adaptors=config.adaptors,
            types=config.adaptor_types,
            sources=sources,
        )
    return _export_onnx(spec, model, needs, sources)


def _export_onnx(spec: Spec, model: Any, needs: Needs, sources: list[Source]) -> OnnxReport:
    from radioplat.exporting.onnx.export import export_in_halves, export_onnx  # of the extra onnx, as all that follows
    from radioplat.tasks.export.side_files import write_side_files

    config = spec.export
    # As in TAO: with force_ptq, weights trained by QAT without its scales, which cover too few tensors for DLA.
    with in_float(model) if config.force_ptq else contextlib.nullcontext():
        data_type = _float_type(spec, model)
        report = (export_in_halves if data_type is None else partial(export_onnx, data_type=data_type))(
            model,
            onnx_file(spec),
            height=config.input_height or spec.dataset.img_size,
            width=config.input_width or spec.dataset.img_size,
            batch_size=config.batch_size,
            dynamic_resolution=config.dynamic_resolution,
            opset=config.opset_version,
            tensorrt_version=config.tensorrt_version,
            adaptors=config.adaptors,
            stored_weights=config.stored_weights,
            float_path=needs.floats,
            images=needs.judged,
            least_cosine=config.least_cosine,
            verbose=config.verbose,
            sources=sources,
        )
    return dataclasses.replace(report, side_files=write_side_files(spec, model, report, needs))


def _float_type(spec: Spec, model: Any) -> str | None:
    """Return the data type of layers that are not quantized: ``export.data_type``, else the engine's.

    None: for a quantized student the fastest that it does not overflow in.
    """
    config, of_engine = spec.export, spec.gen_trt_engine.tensorrt.data_type.strip().lower()
    if not quantizers(model):
        return config.data_type or ("fp32" if of_engine in ACTIVATIONS else of_engine)
    stated = (config.data_type or of_engine).strip().lower()
    if stated not in ACTIVATIONS and (config.data_type or stated != "fp32"):
        return stated
    return "fp32" if config.force_ptq or config.cpu is not None else None  # ranges are measured in fp32


def _export_kpi(report: OnnxReport | WeightsReport) -> dict[str, float]:
    return {"bytes": report.bytes, "max_abs_error": report.max_abs_error}


def onnx_file(spec: Spec) -> Path:
    """Return the path of the file that task ``export`` writes in format ``onnx``."""
    return Path(spec.export.onnx_file or task_folder(spec, "export") / "student.onnx")


def check_channels(channels: int, section: str) -> None:
    """Check ``input_channel``, which TAO has and a student does not vary.

    Raises:
        EngineError: it is not 3.
    """
    if channels != 3:
        raise EngineError(f"a student has 3 input channels, not {channels}", where=f"{section}.input_channel")
