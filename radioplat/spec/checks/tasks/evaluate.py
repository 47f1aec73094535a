"""Checks of section ``evaluate``."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.checks.tasks.evaluate_masks import fit_problems, mask_problems
from radioplat.spec.checks.tasks.evaluate_models import model_problems
from radioplat.spec.import_paths import IMPORT_PATH
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.spec.schema.evaluate import MetricName
from radioplat.spec.schema.root import Spec


def evaluation_problems(spec: Spec) -> Iterator[Problem]:
    """Yield problems of the section, without reading files, as ``radioplat.evaluation.measure.needs`` does."""
    config = spec.evaluate
    for i, size in enumerate(config.resolutions):
        if size in config.resolutions[:i]:
            yield Problem(f"{size} is given twice", f"evaluate.resolutions[{i}]")
    yield from model_problems(spec)
    yield from fit_problems(config.linear_probe.weight_decays, "evaluate.linear_probe")
    yield from mask_problems(config.segmentation, "evaluate.segmentation")
    yield from mask_problems(config.change, "evaluate.change")
    if not config.correspondence.thresholds:
        yield Problem("at least one threshold is needed", "evaluate.correspondence.thresholds")
    yield from _zero_shot(spec)
    yield from _own_metrics(spec)


def _zero_shot(spec: Spec) -> Iterator[Problem]:
    config, path = spec.evaluate.zero_shot, "evaluate.zero_shot"
    if not (config.text_tower or config.teacher or config.class_names):
        return
    if not config.text_tower:
        hint = "Give a Hugging Face folder of CLIP or SigLIP with its tokenizer."
        yield Problem("zero-shot classification needs a text tower", f"{path}.text_tower", hint)
    wanted = {teacher.name: teacher.wanted for teacher in resolve_teachers(spec)}
    with_summary = [name for name, kinds in wanted.items() if "summary" in kinds]
    hint = f"Teachers with a summary: {', '.join(with_summary) or 'none; take mode summary or combo'}."
    if not config.teacher:
        yield Problem("zero-shot classification needs the teacher of this text tower", f"{path}.teacher", hint)
    elif config.teacher not in wanted:
        yield Problem(f"no teacher is called {config.teacher!r}", f"{path}.teacher", hint)
    elif config.teacher not in with_summary:
        yield Problem(f"the student has no summary head for {config.teacher!r}", f"{path}.teacher", hint)
    if not config.templates or not all(template.count("{}") == 1 for template in config.templates):
        hint = "For example: a photo of a {}."
        yield Problem("each template needs one {}, the place of the class name", f"{path}.templates", hint)
    if len(set(config.class_names)) != len(config.class_names):
        yield Problem("two classes have the same name", f"{path}.class_names")


def _own_metrics(spec: Spec) -> Iterator[Problem]:
    names: list[str] = []
    for i, path in enumerate(spec.evaluate.metrics):
        where, name = f"evaluate.metrics[{i}]", path.rpartition(":")[2]
        if not IMPORT_PATH.fullmatch(path):
            hint = "For example my_package.my_module:MyMetric."
            yield Problem(f"{path!r} is not an import path package.module:name", where, hint)
        elif name in MetricName.__members__:
            yield Problem(f"radioplat has a metric of the name {name!r}", where, "Give yours another name.")
        elif name in names:
            yield Problem(f"two metrics are called {name!r}", where, "Give one of them another name.")
        names.append(name)
