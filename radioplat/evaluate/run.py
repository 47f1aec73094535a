"""The task ``evaluate``: what a trained student is worth, beside its teachers and its untrained self."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from radioplat.cores import torch_beside, torch_callers
from radioplat.data.split_images import Images
from radioplat.errors import SpecError
from radioplat.evaluate.fidelity import FidelityResult
from radioplat.evaluate.images import open_images
from radioplat.evaluate.knn import KnnResult
from radioplat.evaluate.masks import Masked, find_pairs, read_pairs
from radioplat.evaluate.measure import Findings, Texts, measure
from radioplat.evaluate.needs import missing, not_asked
from radioplat.evaluate.processes import Processes
from radioplat.evaluate.segmentation import MapOf, SegmentationResult, segment
from radioplat.evaluate.subjects import Subject, size_of, subjects_of, teachers_of
from radioplat.evaluate.zero_shot import text_embeddings
from radioplat.export.run import find_checkpoint
from radioplat.models.checkpoint import has_average, load_student
from radioplat.spec.load import load_spec, to_yaml
from radioplat.spec.root import Spec
from radioplat.track.diary import keep_diary
from radioplat.track.results import TaskFolder, write_atomic


@dataclass(frozen=True)
class EvaluateResult:
    """What an evaluation found.

    Attributes:
        checkpoint: the student that was evaluated.
        knn: by model: ``student``, ``student at 448`` (``evaluate.resolutions``), ``untrained student`` and each
            teacher's name; empty without labels.
        fidelity: by student, teacher and kind (``summary``, ``spatial``).
        accuracy: top-1 of the student's own classifier, None without one.
        report: path of ``report.html``.
        found: all the rest: linear probe, zero-shot, correspondence, segmentation, agreement over resolutions.
    """

    checkpoint: Path
    folder: Path
    knn: dict[str, KnnResult]
    fidelity: dict[str, dict[str, dict[str, FidelityResult]]]
    accuracy: float | None
    report: Path
    found: Findings = field(default_factory=Findings)


def evaluate(
    spec: Spec | dict | str | Path, overrides: tuple[str, ...] = (), progress: Callable[[int, int], None] | None = None
) -> EvaluateResult:
    """Evaluate ``evaluate.checkpoint``, by default the latest student there is, on ``dataset.val_dataset``.

    Args:
        progress: called with (batches done, batches in all).

    Raises:
        RadioplatError: no checkpoint, no held-out images, or weights that cannot be read.
    """
    spec = load_spec(spec, overrides)
    if not (spec.dataset.val_dataset.tar_data_sources or spec.dataset.val_dataset.images_dir):
        raise SpecError("an evaluation needs held-out images", where="dataset.val_dataset.tar_data_sources")
    path = find_checkpoint(spec, spec.evaluate.checkpoint, "evaluate.checkpoint").resolve()
    folder = TaskFolder(spec.results_dir, "evaluate", spec.evaluate.results_dir)
    return keep_diary(folder, "evaluate", to_yaml(spec), lambda: _evaluate(spec, path, folder, progress), _kpi)


def _evaluate(
    spec: Spec, path: Path, folder: TaskFolder, progress: Callable[[int, int], None] | None
) -> EvaluateResult:
    from radioplat.evaluate.summary import write_summary

    device = "cuda" if torch.cuda.is_available() else "cpu"
    student = load_student(path, "evaluate.checkpoint", spec.evaluate.use_ema).to(device)
    teachers = teachers_of(spec, student)
    sizes = {size_of(spec, student)} | {t.view_size for t in teachers} | set(spec.evaluate.resolutions)
    bank, queries, classes = open_images(spec, sizes)
    # Before the teachers' weights are loaded, and anything is encoded.
    if problems := missing(spec, student.architecture, bank.reader.index, queries.reader.index):
        raise SpecError(*problems)
    texts = _texts(spec, classes, device)
    kinds = {t.name: sorted(t.wanted & {"summary", "spatial"}) for t in teachers}
    seed = spec.dataset.val_dataset.seed
    with subjects_of(spec, student, device) as subjects:
        at_once = torch_callers(len(subjects)) if device == "cpu" else 1
        with torch_beside(bank.threads, at_once), _processes(spec, path) as processes:
            found = measure(subjects, kinds, bank, queries, spec.evaluate, progress, at_once, texts, seed, processes)
        with torch_beside(bank.threads):
            found.segmentation = _segmented(spec, subjects, bank)
    found.absent += not_asked(spec)
    report = write_summary(spec, folder, path, found, classes)
    result = EvaluateResult(path, folder.path, found.knn, found.fidelity, found.accuracy, report, found)
    write_atomic(folder.path / "results.json", json.dumps(_as_json(path, spec.evaluate.use_ema, found), indent=1))
    return result


def _processes(spec: Spec, checkpoint: Path) -> contextlib.AbstractContextManager[Processes | None]:
    """The processes that encode beside this one; None where one is enough."""
    count = spec.evaluate.num_gpus
    return contextlib.closing(Processes(spec, checkpoint, count)) if count > 1 else contextlib.nullcontext()


def _texts(spec: Spec, classes: list[str], device: str) -> Texts | None:
    config = spec.evaluate.zero_shot
    if not config.text_tower:
        return None
    assert config.teacher is not None  # `missing` has seen to it
    names = config.class_names or [name.replace("_", " ") for name in classes]
    return Texts(config.teacher, text_embeddings(config.text_tower, names, config.templates, device))


def _segmented(spec: Spec, subjects: dict[str, Subject], images: Images) -> dict[str, SegmentationResult]:
    config, limit = spec.evaluate.segmentation, spec.dataset.max_pixels
    if not config.images_dir:
        return {}
    models = {name: _map_of(s) for name, s in subjects.items() if s.resolution_of is None}
    sizes = {s.size for s in subjects.values() if s.resolution_of is None}
    training, held_out = find_pairs(config)
    reads: list[Iterator[Masked]] = [
        read_pairs(pairs, sizes, config.num_classes, images.batch_size, images.threads, limit)
        for pairs in (training, held_out)
    ]
    return segment(models, reads[0], reads[1], len(training), config, spec.dataset.val_dataset.seed)


def _map_of(subject: Subject) -> MapOf:
    def map_of(batch: Masked) -> torch.Tensor:
        """``[B, h, w, D]`` of the images at the subject's size."""
        spatial = subject.encode(batch.pixels[subject.size]).spatial
        assert spatial is not None
        return spatial

    return map_of


def _as_json(checkpoint: Path, use_ema: bool | None, found: Findings) -> dict[str, Any]:
    """``results.json``: everything that was measured."""
    tables = {
        name: {model: asdict(value) for model, value in getattr(found, name).items()}
        for name in ("knn", "linear", "zero_shot", "correspondence", "segmentation")
    }
    return {
        "checkpoint": checkpoint.name,
        "ema": has_average(checkpoint) and use_ema is not False,
        **tables,
        "fidelity": {
            s: {t: {k: asdict(v) for k, v in kinds.items()} for t, kinds in by_teacher.items()}
            for s, by_teacher in found.fidelity.items()
        },
        "agreement": {name: [asdict(pair) for pair in pairs] for name, pairs in found.agreement.items()},
        "accuracy": found.accuracy,
        "absent": found.absent,
    }


def _kpi(result: EvaluateResult) -> dict[str, float]:
    kpi = {f"knn/{name}": value.top1 for name, value in result.knn.items()}
    for student, by_teacher in result.fidelity.items():
        for teacher, kinds in by_teacher.items():
            kpi.update({f"fidelity/{student}/{teacher}/{kind}": value.centered for kind, value in kinds.items()})
    if result.accuracy is not None:
        kpi["accuracy"] = result.accuracy
    found = result.found
    kpi.update({f"linear_probe/{name}": value.top1 for name, value in found.linear.items()})
    kpi.update({f"zero_shot/{name}": value.top1 for name, value in found.zero_shot.items()})
    kpi.update({f"miou/{name}": value.miou for name, value in found.segmentation.items()})
    for name, value in found.correspondence.items():
        kpi.update({f"pck@{threshold:g}/{name}": share for threshold, share in value.pck.items()})
    for name, pairs in found.agreement.items():
        kpi.update({f"agreement/{name}/{pair.low}-{pair.high}": pair.agreement for pair in pairs})
    return kpi
