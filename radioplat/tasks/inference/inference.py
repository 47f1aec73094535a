"""The task ``inference``: features, classes or boxes of the images of ``dataset.test_dataset.images_dir``."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from radioplat.common.atomic_files import aside_of, written_aside
from radioplat.common.cpu_threads import decode_threads, limit_torch_threads
from radioplat.data.loading.image_files import ImageFile, ImageView, images_in
from radioplat.errors import DataError, SpecError
from radioplat.evaluation.inference.infer import Prediction, infer
from radioplat.evaluation.inference.inference_model import InferenceModel, open_inference_model
from radioplat.evaluation.inference.table import TableWriter, columns_of
from radioplat.spec.checks.tasks.inference import IMAGES, inference_image_problems, inference_problems
from radioplat.spec.loading.load import load_spec, to_yaml
from radioplat.spec.schema.root import Spec
from radioplat.tasks.inference.pictures import predictions_panel
from radioplat.tasks.inference.tao_results import ResultCsv, shared_stems, write_kitti
from radioplat.tasks.shared.find_checkpoint import find_checkpoint
from radioplat.tracking.results import TaskFolder
from radioplat.tracking.task_log import log_task

TABLE, RESULT, PICTURES = "predictions.parquet", "result.csv", "pictures.png"
Progress = Callable[[int, int], None] | None


@dataclass(frozen=True)
class InferenceResult:
    """Path and counts of the table of an inference.

    Attributes:
        model: the checkpoint, the ONNX file or the engine.
        kind: format and precision: ``torch fp32``, ``ONNX int8``.
        table: path of ``predictions.parquet``.
        images: rows of the table.
        errors: number of images that could not be read, by reason.
        first_error: name and reason of the first of them; empty if there is none.
        without_effect: fields of TAO's ``inference`` that the spec has and that are ignored, with the reasons.
    """

    model: Path
    kind: str
    table: Path
    images: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    first_error: str = ""
    without_effect: dict[str, str] = field(default_factory=dict)

    def figures(self) -> dict[str, float]:
        """Return the counts for ``status.json``."""
        return {"images": self.images, "unreadable": sum(self.errors.values())}


def inference(
    spec: str | Path | Mapping[str, Any] | Spec,
    overrides: Sequence[str] = (),
    *,
    progress: Progress = None,
) -> InferenceResult:
    """Use ``inference.checkpoint`` or ``inference.trt_engine`` on a folder of images; default: the latest checkpoint.

    ``embed`` and ``predict`` do the same without a spec.

    Args:
        spec: a YAML file, a mapping of sections, or a :class:`~radioplat.spec.schema.root.Spec`; it is not changed.
        overrides: ``key=value``, applied to it in order.
        progress: called with (images done, images in all).

    Returns:
        The path of the Parquet table of features, classes or boxes at ``table``, and the numbers of images.

    Raises:
        SpecError: fields of the section or of ``dataset.test_dataset`` contradict each other, or there is no folder.
        DataError: the folder contains no image, or none that can be decoded.
        EngineError, WeightsError: there is no model, it cannot be read, or cannot run on this machine.

    Example:
        >>> result = radioplat.inference("spec.yaml", ["dataset.test_dataset.images_dir=photographs"])
        >>> result.table
        PosixPath('results/inference/predictions.parquet')
    """
    spec = load_spec(spec, overrides)
    if problems := [*inference_problems(spec), *inference_image_problems(spec)]:
        raise SpecError(*problems)
    folder = TaskFolder(spec.results_dir, "inference", spec.inference.results_dir)
    return log_task(
        folder, "inference", to_yaml(spec), lambda: _inference(spec, folder, progress), InferenceResult.figures
    )


@dataclass(frozen=True)
class InferenceInputs:
    """The images of an inference, and its model with the path."""

    images: Sequence[ImageFile]
    path: Path
    model: InferenceModel


def open_inputs(spec: Spec) -> InferenceInputs:
    """Find the images and open the model.

    Raises:
        RadioplatError: as :func:`inference`.
    """
    if problems := [*inference_problems(spec), *inference_image_problems(spec)]:
        raise SpecError(*problems)
    config = spec.inference
    images = images_in(str(spec.dataset.test_dataset.images_dir), IMAGES)
    if config.trt_engine:
        path, where = Path(config.trt_engine), "inference.trt_engine"
    else:
        where = "inference.checkpoint"
        path = find_checkpoint(spec, config.checkpoint, where).resolve()
    return InferenceInputs(images, path, open_inference_model(spec, path, where))


def _inference(spec: Spec, folder: TaskFolder, progress: Progress) -> InferenceResult:
    config, dataset, inputs = spec.inference, spec.dataset, open_inputs(spec)
    images, path, model = inputs.images, inputs.path, inputs.model
    threads = decode_threads(dataset.workers)
    errors, first, done, shown = Counter[str](), "", 0, list[tuple[ImageView, Prediction]]()
    shared = shared_stems(image.name for image in images)
    with limit_torch_threads(threads), _files(folder.path, model, spec, shared) as write:
        batches = infer(
            model,
            images,
            config.batch_size or dataset.batch_size,
            top_k=config.top_k,
            threads=threads,
            max_pixels=dataset.max_pixels,
        )
        for batch in batches:
            write(batch)
            bad = [row for _, row in batch if row.error]
            errors.update(row.error.partition(":")[0] for row in bad)
            first = first or (f"{bad[0].name}: {bad[0].error}" if bad else "")
            shown += [each for each in batch if not each[1].error][: config.pictures - len(shown)]
            done += len(batch)
            if progress:
                progress(done, len(images))
        if errors.total() == done:
            message = f"none of the {done} images can be read; {first}"
            raise DataError(message, where=IMAGES)
    if shown:
        with written_aside(folder.path / PICTURES) as aside:
            aside.write_bytes(predictions_panel(shown, config.conf_threshold))
    ignored = {name: why for name, why in spec.without_effect.items() if name.startswith("inference.")}
    return InferenceResult(path, model.kind, folder.path / TABLE, done, dict(errors), first, ignored)


@contextlib.contextmanager
def _files(
    folder: Path, model: InferenceModel, spec: Spec, shared: Collection[str]
) -> Iterator[Callable[[Sequence[tuple[ImageView, Prediction]]], None]]:
    """Yield a function that appends a batch to the table and TAO's files.

    They get their names at the end of the block, and then those of an earlier run are gone. If the block raises,
    nothing changes.
    """
    labels = folder / "labels"
    aside = aside_of(labels)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, aside, ignore_errors=True)
        path = stack.enter_context(written_aside(folder / TABLE))
        table = stack.enter_context(contextlib.closing(TableWriter(path, columns_of(model, spec.inference.maps))))
        result_csv = None
        if model.classifies:
            path = stack.enter_context(written_aside(folder / RESULT))
            file = path.open("w", newline="", encoding="utf-8", errors="replace")
            result_csv = ResultCsv(stack.enter_context(file))

        def add(batch: Sequence[tuple[ImageView, Prediction]]) -> None:
            rows = [row for _, row in batch]
            table.add(rows)
            if result_csv is not None:
                result_csv.add(batch)
            if model.detect is not None:
                write_kitti(aside, rows, spec.inference.conf_threshold, shared)

        yield add
        shutil.rmtree(labels, ignore_errors=True)
        if aside.is_dir():
            aside.rename(labels)
        for stale in (folder / RESULT, folder / PICTURES):
            stale.unlink(missing_ok=True)
