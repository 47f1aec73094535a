"""Gradients of a run's loss on its first micro-batches, for the scores of pruning."""

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
from radioplat.training.feed.prefetch import Prefetch
from radioplat.training.hooks.step_record import StepRecord
from radioplat.training.watch.phases import Phases


def first_batches(run: Run, count: int) -> Iterator[Batch]:
    """Load the first ``count`` micro-batches of ``run``, in its order."""
    steps = range(-(-count // run.micro_batches))
    schedule = run.micro_batch_schedule(1)
    micro_batches = itertools.islice((n for step in steps for n in schedule.of_step(step)), count)
    threads = decode_threads(run.spec.dataset.workers)
    return load_micro_batches(open_reader(*run.reader_arguments), micro_batches, threads=threads, prefetch=2)


def score_student(run: Run, student: Student, checkpoint: Path, score: ChannelScore, count: int) -> None:
    """Add the gradients of ``count`` micro-batches to ``score``, one backward for each.

    Teachers run in this process, on its GPU if there is one. The student is in evaluation mode, so there are no random
    draws and no statistics change. Losses by moving averages, deeper layers and peers are left out, because they need a
    run in progress.

    Args:
        checkpoint: the student's; statistics of its losses are loaded.

    Raises:
        SpecError: no frozen teacher is left.
        WeightsError: the checkpoint has no head for a feature that a teacher teaches.
        TrainingError: the loss is not finite.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    teachers = run.frozen_teachers
    _check_heads(run, student)
    module = _objective(run, student).to(device).eval()
    LossStatistics(module).load_state_dict(read_losses(checkpoint))
    order = RunData.load(run.data_dir, run.spec.dataset.train_dataset).order
    micro_batches = MicroBatches(run, order, device, False, module, Phases())
    clients: dict[str, TeacherClient] = {t.name: InlineTeacher(t, run.grids[t.name], str(device)) for t in teachers}
    student.zero_grad()
    feeder = Feeder(first_batches(run, count), clients, teachers, 2, run.partitions, device)
    with contextlib.closing(Prefetch(feeder, run, device, on_cluster=False)) as ahead:
        for arrival in ahead:
            batch = arrival.batch
            loss = module(micro_batches.micro_batch(0, batch.micro_batch, arrival, StepRecord(0, 0.0)))["loss"]
            if not torch.isfinite(loss):
                message = f"the loss of micro-batch {batch.micro_batch} is not finite: channels cannot be scored by it"
                raise TrainingError(message, where="prune.score", hint="Use score: magnitude, or check the teacher.")
            loss.backward()
            score.add_gradients(student)
    student.cpu()


def _objective(run: Run, student: Student) -> Objective:
    if not run.teachers:
        return ClassifyObjective(student, run.student_view)
    if not run.frozen_teachers:
        hint = "Use prune.score: magnitude."
        raise SpecError("scores by gradients need a frozen teacher", where="distill.teacher", hint=hint)
    config = dataclasses.replace(run.spec.distill, mesa=MesaConfig(), teacher_drop_prob=0.0)
    return DistillObjective(student, run.frozen_teachers, run.student_view, config)


def _check_heads(run: Run, student: Student) -> None:
    needed = {head.name: head for head in run.architecture.heads}
    for teacher in run.frozen_teachers:
        head = student.heads[teacher.name].architecture if teacher.name in student.heads else None
        kinds = sorted({"summary", "spatial", "logits"} & teacher.wanted)
        missing = [kind for kind in kinds if not getattr(head, f"{kind}_dim", 0)]
        bound = {name for name, *_ in getattr(head, "bindings", ())}
        missing += [f"binding {name}" for name, *_ in needed[teacher.name].bindings if name not in bound]
        if missing:
            raise WeightsError(
                f"the checkpoint has no head ({', '.join(missing)}) for teacher {teacher.name}",
                where="prune.checkpoint",
                hint="Scores by gradients need the teachers that it was trained by; prune.score: magnitude does not.",
            )
