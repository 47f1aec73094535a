"""Derive the spec of a stage from the user's: its inputs and its outputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from radioplat.errors import Problem, SpecError
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.quantize import QatConfig, QuantizeMode
from radioplat.spec.schema.root import Spec
from radioplat.tasks.compress.definition import Inputs, Product
from radioplat.tasks.compress.groups import Step


def stage_spec(spec: Spec, step: Step, milder: Sequence[str] = ()) -> Spec:
    """Return the spec of ``step``, before :func:`place` sets its paths.

    Args:
        milder: overrides of a retry.

    Raises:
        SpecError: ``compress.changes`` cannot be applied.
    """
    changes, definition = spec.compress.changes, step.definition
    changed = [*changes.get(step.stage.value, ()), *changes.get(step.name, ())]
    derived = load_spec(spec, [*changed, *definition.overrides, *milder])
    derived.dataset.index_dir = spec.dataset.index_dir or str(Path(spec.results_dir) / "index")
    definition.adapt(derived)
    derived.distill.then = []
    if derived.quantize.mode is not QuantizeMode.qat:
        derived.quantize.qat = QatConfig()  # settings of another stage of the chain
    return derived


def place(spec: Spec, step: Step, folder: Path, inputs: Inputs, spec_hash: str) -> Spec:
    """Set the paths that a stage reads and writes; changes ``spec`` and returns it.

    Args:
        spec_hash: the hash of all that the stage's result depends on.

    Raises:
        WeightsError: the student cannot be read.
    """
    spec.results_dir = str(folder)
    section = getattr(spec, step.definition.section)
    section.results_dir = None
    if hasattr(section, "checkpoint"):
        section.checkpoint = str(inputs.latest.get(Product.student))
    if step.definition.changes_student:  # prune, low_rank and quantize may train as well
        spec.train.resume_training_checkpoint_path = None
        if spec.train.checkpoint_dir:  # with the hash, because other settings give another student under the same name
            home = spec.train.checkpoint_dir.rstrip("/")
            spec.train.checkpoint_dir = f"{home}/compress/{folder.name}-{spec_hash[:8]}"
    step.definition.place(spec, inputs)
    return spec


def check_chain(spec: Spec, steps: Sequence[Step]) -> None:
    """Check the spec of every stage, before the first one starts.

    Raises:
        SpecError: with the problems of all stages.
    """
    problems: dict[Problem, None] = {}
    writers: dict[str, str] = {}
    for step in steps:
        derived = stage_spec(spec, step)
        problems.update(dict.fromkeys(step.definition.problems(derived)))
        for where, path in step.definition.outputs(derived).items():
            other = writers.setdefault(str(Path(path).absolute()), step.name) if path else step.name
            if other != step.name:
                hint = (
                    f"Leave it out, and each writes into its own folder; or give compress.changes.{step.name} another."
                )
                problems[Problem(f"{other} and {step.name} would both write {path}", where, hint)] = None
    if problems:
        raise SpecError(*problems)
