"""The reference of the Python API: mkdocstrings' instructions for what is public."""

from __future__ import annotations

import inspect

import radioplat
from radioplat import errors

ADDRESS = "reference/python.md"
# What code of a user's own gets or derives from: see the page on one's own code
EXTENSIONS = [
    "radioplat.training.hooks.step_hook.StepHook",
    "radioplat.training.hooks.own_hook.HookContext",
]
# What the functions return
RESULTS = [
    "radioplat.tasks.plan.findings.Plan",
    "radioplat.tasks.distill.distill.DistillResult",
    "radioplat.launch.driver.RunResult",
    "radioplat.tasks.evaluate.students.EvaluateResult",
    "radioplat.tasks.evaluate.evaluate_detector.DetectorReport",
    "radioplat.tasks.prune.prune.PruneReport",
    "radioplat.tasks.low_rank.low_rank.LowRankReport",
    "radioplat.tasks.quantize.report.QuantizeReport",
    "radioplat.tasks.quantize.sensitivity.Sensitivity",
    "radioplat.tasks.compress.compress.CompressReport",
    "radioplat.exporting.onnx.export.OnnxReport",
    "radioplat.exporting.weights.export.WeightsReport",
    "radioplat.exporting.engines.build.EngineReport",
    "radioplat.tasks.tune.tune.TuneReport",
    "radioplat.tasks.pipeline.pipeline.PipelineReport",
    "radioplat.tasks.inference.inference.InferenceResult",
    "radioplat.tasks.train_upsampler.train_upsampler.UpsamplerResult",
    "radioplat.models.features.Features",
    "radioplat.evaluation.inference.api.Embeddings",
    "radioplat.evaluation.inference.api.ImageTable",
    "radioplat.evaluation.inference.infer.Prediction",
]


def python_page() -> str:
    """Return the page."""
    # The table of modules, so that nothing is imported: torch takes seconds.
    public = {name: f"{at}.{name}" for name, at in radioplat._MODULES.items() if at != errors.__name__}
    sections = {
        "Functions and classes": {f"radioplat.{name}": path for name, path in public.items()},
        "Results": {path: path for path in RESULTS},
        "Code of your own": {path: path for path in EXTENSIONS},
        "Errors": {_public(name): f"radioplat.errors.{name}" for name in _errors()},
    }
    lines = [f"# Python\n\n{inspect.getdoc(radioplat)}\n"]
    for title, entries in sections.items():
        lines += [f"## {title}\n", *(_instruction(path, heading) for heading, path in entries.items())]
    return "\n".join(lines)


def _public(name: str) -> str:
    """Return the shortest path of a class of errors."""
    return f"radioplat.{name}" if name in radioplat.__all__ else f"radioplat.errors.{name}"


def _errors() -> list[str]:
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and kind.__module__ == errors.__name__]
    return [kind.__name__ for kind in kinds]


def _instruction(path: str, heading: str) -> str:
    """One entry; the fields of a spec have pages of their own."""
    members = "" if heading != "radioplat.Spec" else "      members: false\n"
    return f"::: {path}\n    options:\n      heading: {heading}\n      toc_label: {heading}\n{members}"
