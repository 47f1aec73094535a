"""Gradients of the run's own loss on its first micro-batches, by which pruning judges channels."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

import torch

from radioplat.common.cpu_threads import decode_threads
from radioplat.compression.pruning.scores import ChannelScore
from radioplat.data.batch import Batch
from radioplat.data.loading.run_data import RunData, open_reader
from radioplat.data.loading.threads import load_micro_batches
from radioplat.design.run import Run
from radioplat.errors import SpecError, TrainingError, WeightsError
from radioplat.models.student.student import Student
from radioplat.objectives.distill import ClassifyObjective, DistillObjective
from radioplat.objectives.objective import Objective
from radioplat.spec.schema.distill import MesaConfig
from radioplat.teachers.serving.client import InlineTeacher, TeacherClient
from radioplat.training.checkpoints.checkpoint import read_losses
from radioplat.training.engine.loss_statistics import LossStatistics
from radioplat.training.feed.feeder import Feeder
from radioplat.training.feed.micro_batches import MicroBatches
from radioplat.training.hooks.step_record import StepRecord
from radioplat.training.watch.phases import Phases


def first_batches(run: Run, count: int) -> Iterator[Batch]:
    """The first ``count`` micro-batches of ``run``, in its order."""
    steps = range(-(-count // run.micro_batches))
    schedule = run.micro_batch_schedule(1)
    micro_batches = itertools.islice((n for step in steps for n in schedule.of_step(step)), count)
    threads = decode_threads(run.spec.dataset.workers)
    return load_micro_batches(open_reader(*run.reader_arguments), micro_batches, threads=threads, prefetch=2)


def score_student(run: Run, student: Student, checkpoint: Path, score: ChannelScore, count: int) -> None:
    """Show ``score`` the gradients of ``count`` micro-batches, one backward each; ``student`` keeps the last sums.

    Teachers are asked in this process, on its GPU where there is one. The student is in evaluation mode, so that
    nothing is drawn and no statistic moves. Moving averages, deeper layers and peers that teach are left out: what
    they say belongs to a run under way.

    Args:
        checkpoint: what ``student`` was loaded from; its losses' statistics are taken up.

    Raises:
        SpecError: no teacher is left to be asked.
        WeightsError: the checkpoint has no head for what a teacher teaches.
        TrainingError: the loss is not finite.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    teachers = run.frozen_teachers
    _check_heads(run, student)
    module = _objective(run, student).to(device).eval()
    LossStatistics(module).load_state_dict(read_losses(checkpoint))
    order = RunData.load(run.data_dir, run.spec.dataset.train_dataset).order
    made = MicroBatches(run, order, device, False, module, Phases())
    clients: dict[str, TeacherClient] = {t.name: InlineTeacher(t, run.grids[t.name], str(device)) for t in teachers}
    student.zero_grad()
    feeder = Feeder(first_batches(run, count), clients, teachers, 2, run.partitions)
    with contextlib.closing(feeder):
        for batch, answers in feeder:
            loss = module(made.micro_batch(0, batch.micro_batch, batch, answers, StepRecord(0, 0.0)))["loss"]
            if not torch.isfinite(loss):
                message = f"the loss of micro-batch {batch.micro_batch} is not finite: it says nothing of channels"
                raise TrainingError(message, where="prune.score", hint="Take score: magnitude, or look at the teacher.")
            loss.backward()
            score.add_gradients(student)
    student.cpu()


def _objective(run: Run, student: Student) -> Objective:
    if not run.teachers:
        return ClassifyObjective(student, run.student_view)
    if not run.frozen_teachers:
        hint = "Take prune.score: magnitude."
        raise SpecError("no teacher outside the student is there to be asked", where="distill.teacher", hint=hint)
    config = dataclasses.replace(run.spec.distill, mesa=MesaConfig(), teacher_drop_prob=0.0)
    return DistillObjective(student, run.frozen_teachers, run.student_view, config)


def _check_heads(run: Run, student: Student) -> None:
    needed = {head.name: head for head in run.architecture.heads}
    for teacher in run.frozen_teachers:
        head = student.heads[teacher.name].architecture if teacher.name in student.heads else None
        kinds = sorted({"summary", "spatial", "logits"} & teacher.wanted)
        lacking = [kind for kind in kinds if not getattr(head, f"{kind}_dim", 0)]
        bound = {name for name, *_ in getattr(head, "bindings", ())}
        lacking += [f"binding {name}" for name, *_ in needed[teacher.name].bindings if name not in bound]
        if lacking:
            raise WeightsError(
                f"the checkpoint has no head ({', '.join(lacking)}) for teacher {teacher.name}",
                where="prune.checkpoint",
                hint="Scores with gradients need the teachers that it was trained by; prune.score: magnitude does not.",
            )
