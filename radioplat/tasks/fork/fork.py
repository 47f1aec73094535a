"""``radioplat fork RUN --at N``: runs that begin with the weights, moments and samples of one step, and then differ.

What did a teacher, a loss or a rate buy? Every arm has the same first step, and the same images in the same order.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from radioplat.common.hashing import file_hash
from radioplat.design.run import has_held_out
from radioplat.errors import DataError, RadioplatError
from radioplat.evaluation.metrics.paired_knn import PairedKnn
from radioplat.launch.driver import run_task
from radioplat.models.vision_model import weight_files
from radioplat.spec.resolved.teacher import teacher_names
from radioplat.spec.schema.distill import TeacherConfig
from radioplat.spec.schema.evaluate import ModelEntry
from radioplat.spec.schema.root import Spec
from radioplat.tasks.evaluate.evaluate import evaluate
from radioplat.tasks.evaluate.students import EvaluateResult
from radioplat.tasks.fork.arms import Arm, arms_of, spec_of
from radioplat.tasks.fork.report import PAGE, write_arms_report
from radioplat.tasks.fork.result import ArmResult, ForkResult
from radioplat.tasks.replay.recorded_step import recorded_step
from radioplat.tasks.replay.replay import compute_again, keep_halvings
from radioplat.tasks.shared.run_folder import going_on_line, student_folder
from radioplat.tracking.attempts.goodput import Goodput
from radioplat.tracking.results import write_atomic
from radioplat.tracking.status import read_status
from radioplat.training.checkpoints.checkpoint import step_of

AT, PLACE, RESULTS = "--at", "fork.json", "results.json"


def fork(
    run: str | Path,
    at: int,
    changes: Sequence[str] = (),
    arms: Sequence[Sequence[str]] = (),
    *,
    out: str | Path,
    control: bool = True,
    say: Callable[[str], None] = lambda line: None,
) -> ForkResult:
    """Go on from a step of a run several times, with other values of fields, and compare what comes out.

    The arms run one after the other, as the run's spec says where. The same call goes on where it was, and repeats no
    finished arm. The run's folder is not changed. A run that is going on can be forked up to the step of its newest
    checkpoint; what its retention removes meanwhile is kept in ``out``.

    Args:
        run: a results folder, or the folder of one task in it.
        at: the step, counted from 1; if the run has no checkpoint of it, it is computed once from the one before.
        changes: overrides of all arms but the control, and ``without=TEACHER``. The order of samples and the global
            batch may not change.
        arms: further overrides of each arm.
        out: folder of the arms.
        control: also go on with the run's own spec, as the first arm.
        say: called with lines for the user.

    Raises:
        RadioplatError: there is no such step, an arm is wrong or cannot start, or ``out`` has another fork.

    Example:
        >>> result = radioplat.fork("results/run", 4000, arms=[["without=siglip"]], out="what_siglip_buys")
        >>> result.arms[1].knn_gain
    """
    folder, out = student_folder(run), Path(out).absolute()
    made = arms_of(changes, arms, control)
    task = folder.name
    if line := going_on_line(folder):
        say(line)
    _claim(out, folder, at, ())
    start = _start(folder, at, out, say)
    if line:
        _keep(start, out / "start" / task)
    specs = {arm: spec_of(arm, folder, start, out) for arm in made}
    _claim(out, folder, at, made)
    for arm in made:
        keep_halvings(folder, out / arm.name / task)
    trained = []
    for arm in made:
        try:
            trained.append(_trained(arm, specs[arm], task, at, say))
        except RadioplatError:
            if step_of(start) == at:
                raise
            start = _start(folder, at, out, say)  # the run has removed it meanwhile
            specs = {each: spec_of(each, folder, start, out) for each in made}
            trained.append(_trained(arm, specs[arm], task, at, say))
    result = _compared(at, _start(folder, at, out, say), out, specs, _marked(trained))
    write_arms_report(result, folder, next(iter(specs.values())).global_batch_size)
    write_atomic(out / RESULTS, json.dumps(result.as_json(), indent=1))
    return result


def _claim(out: Path, run: Path, at: int, arms: Sequence[Arm]) -> None:
    """Write which step of which run the folder belongs to, and the changes of each arm.

    Raises:
        RadioplatError: it belongs to another step, or an arm of the same name has other changes: its weights would
            pass for those of this one.
    """
    mine = {"run": str(run.resolve()), "at": at}
    try:
        theirs = json.loads((out / PLACE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        theirs = {**mine, "arms": {}}
    if any(theirs[name] != value for name, value in mine.items()):
        message = f"it has arms of step {theirs['at']} of {theirs['run']}"
        raise RadioplatError(message, where=str(out), hint="Give another --out.")
    for arm in arms:
        known = theirs["arms"].setdefault(arm.name, list(arm.changes))
        if known != list(arm.changes):
            message = f"its arm {arm.name} has the changes {' '.join(known)}, not {' '.join(arm.changes)}"
            raise RadioplatError(message, where=str(out), hint="Give another --out.")
    write_atomic(out / PLACE, json.dumps(theirs, indent=1))


def _start(run: Path, at: int, out: Path, say: Callable[[str], None]) -> Path:
    """Return a checkpoint with exactly ``at`` steps: the run's own, or one that is computed in ``out``."""
    recorded = recorded_step(run, at, AT)
    for folder in (run, out / "start" / run.name):
        own = [path for path in folder.glob("model_epoch_*") if path.is_dir() and step_of(path) == at]
        if own:
            return own[0].resolve()
    say(f"no checkpoint has {at} steps: computing {at - recorded.from_step} from step {recorded.from_step}")
    shutil.rmtree(out / "start", ignore_errors=True)  # a killed call left it unfinished
    compute_again(recorded, out / "start" / run.name)
    return _start(run, at, out, say)


def _keep(checkpoint: Path, folder: Path) -> None:
    """Keep a checkpoint of a run that is going on, whose retention may remove it: by links, or copies elsewhere."""
    kept, aside = folder / checkpoint.name, folder / f".{checkpoint.name}.partial"
    if checkpoint.parent == folder or kept.exists():
        return
    shutil.rmtree(aside, ignore_errors=True)
    try:
        shutil.copytree(checkpoint, aside, copy_function=os.link)
    except (OSError, shutil.Error):  # another file system
        shutil.rmtree(aside, ignore_errors=True)
        shutil.copytree(checkpoint, aside)
    aside.rename(kept)


def _trained(arm: Arm, spec: Spec, task: str, at: int, say: Callable[[str], None]) -> ArmResult:
    say(f"{arm.name}: {' '.join(arm.changes) or 'as the run was'}")
    result = run_task(spec, task, None, (), progress=True, say=say)
    if result.global_step <= at:
        hint = "Raise train.num_epochs or train.max_steps, for all arms."
        raise DataError(f"the arm has no step after {at}", where=AT, hint=hint)
    lines = [line.get("kpi", {}) for line in read_status(result.folder / "status.json")]
    losses = [kpi["loss"] for kpi in lines if "loss" in kpi]
    account = result.account or Goodput()
    return ArmResult(
        name=arm.name,
        changes=arm.changes,
        student=result.checkpoint,
        steps=result.global_step - at,
        loss=losses[-1] if losses else float("nan"),
        seconds=account.wall,
        gpu_seconds=account.gpu_seconds + account.teacher_gpu_seconds,
        cpu_seconds=account.cpu_seconds + account.teacher_cpu_seconds,
        figures={},
    )


def _marked(arms: list[ArmResult]) -> list[ArmResult]:
    """Mark arms whose weights are those of an earlier one: what they changed had no effect."""
    first, marked = dict[str, str](), []
    for arm in arms:
        weights = " ".join(file_hash(path) for path in weight_files(arm.student))
        same_as = first.setdefault(weights, arm.name)
        marked.append(replace(arm, same_as="" if same_as == arm.name else same_as))
    return marked


def _compared(at: int, start: Path, out: Path, specs: dict[Arm, Spec], arms: list[ArmResult]) -> ForkResult:
    """Evaluate the arms and what they began from side by side, if there are held-out images."""
    result, first = ForkResult(at, start, out, arms, out / PAGE), next(iter(specs.values()))
    if not has_held_out(first):
        return result
    begun = f"step {at}"  # no arm has a space in its name
    # The first one is what the others are compared with.
    entries = [*(ModelEntry(arm.name, str(arm.student)) for arm in arms), ModelEntry(begun, str(start))]
    section = replace(first.evaluate, models=entries, results_dir=str(out / "evaluate"))
    evaluated = evaluate(replace(_with_all_teachers(specs), evaluate=section))
    result = replace(result, evaluation=evaluated.report)
    if not isinstance(evaluated, EvaluateResult):  # detectors, which their own page compares
        return result
    rows = {row.name: row.figures() for row in evaluated.models}
    gains = evaluated.findings.of_metric(PairedKnn)
    arms = [replace(arm, figures=rows[arm.name], knn_gain=gains.get(arm.name)) for arm in arms]
    return replace(result, arms=arms, start_figures=rows[begun])


def _with_all_teachers(specs: dict[Arm, Spec]) -> Spec:
    """Return the first arm's spec with the teachers of all arms, so that fidelity is measured to each."""
    first = next(iter(specs.values()))
    teachers: dict[str, TeacherConfig] = {}
    for spec in specs.values():
        teachers |= dict(zip(teacher_names(spec.distill.teacher), spec.distill.teacher, strict=True))
    services = {name: service for spec in specs.values() for name, service in spec.teachers.items()}
    return replace(first, teachers=services, distill=replace(first.distill, teacher=list(teachers.values())))
