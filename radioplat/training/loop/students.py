"""Train the students of a run side by side: each micro-batch is read and taught once, and shown to all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from radioplat.design.run import Run
from radioplat.errors import Diverged, TrainingError
from radioplat.training.feed.arrival import Arrival
from radioplat.training.feed.step_feed import StepFeed
from radioplat.training.guards.loss_spikes import RollBack
from radioplat.training.hooks.step_record import StepRecord
from radioplat.training.loop.ended_student import EndedStudent
from radioplat.training.loop.garbage import collect_at, collected_at_steps
from radioplat.training.loop.trainer import Common, Trainer


class Students:
    """Run the steps of all students; a run has one, or those of ``distill.students``.

    A step is run for the students that have all steps before it: one that was added at a resume, or whose last
    checkpoint is older, first trains alone until it has reached the others. Every student therefore sees the samples
    that it would see alone, in the same steps.

    A student whose training diverges ends alone, and keeps its checkpoints; the others go on, and the error is raised
    after their last step.

    Args:
        run: of all students.
        build: returns the trainer of a student at its newest checkpoint, without an engine, by its place in the run.
        rebuild: the same after a roll-back.
        ended: students that have ended in an earlier start of this command.
    """

    def __init__(
        self,
        run: Run,
        common: Common,
        places: Sequence[int],
        build: Callable[[int], Trainer],
        rebuild: Callable[[int], Trainer],
        ended: Sequence[EndedStudent] = (),
    ) -> None:
        self._run, self._common, self._rebuild = run, common, rebuild
        self._ended = list(ended)
        self._trainers: dict[int, Trainer] = {}
        for place in places:
            self._trainers[place] = build(place)

    @property
    def trainers(self) -> list[Trainer]:
        """The students that learn, in their order in the run."""
        return list(self._trainers.values())

    def __getitem__(self, place: int) -> Trainer:
        """Return the student at this place in the run."""
        return self._trainers[place]

    def build_engines(self) -> None:
        """Build the engine of each student; see :meth:`Trainer.build_engine`."""
        for trainer in self.trainers:
            trainer.build_engine()

    def close(self) -> None:
        """Finish what the students write."""
        for trainer in self.trainers:
            trainer.close()

    def train(self, feed: StepFeed) -> None:
        """Run the remaining steps and save due checkpoints; on a pause request, save and stop.

        Raises:
            TrainingError: a student diverged; if others are left, after their last step.
            Paused: the workers were asked to stop, and have saved a checkpoint.
        """
        self._common.clock.ready()
        while self._steps_left:
            # Outside of the block, which keeps from collecting what was there at its beginning.
            with collected_at_steps():
                backs = self._until_roll_back(feed)
            for place, back in backs.items():
                self._roll_back(place, back)
        self._finish()
        if self._ended:
            raise self._failure()

    @property
    def _steps_left(self) -> range:
        """The steps that some student lacks."""
        total = self._run.total_steps
        return range(min((trainer.state.global_step for trainer in self.trainers), default=total), total)

    def _until_roll_back(self, feed: StepFeed) -> dict[int, RollBack]:
        """Run steps; return the roll-backs of the first step that has any, which must follow; {} at the end."""
        while left := self._steps_left:
            step = left.start  # not always the one that follows: a student that lacked the steps between may have ended
            self._common.phases.at(step)
            self._common.rests.at(step)
            records, backs = self._step(step, feed)
            collect_at(step)
            self._save(step, records, backs)
            if backs:
                return backs
        return {}

    def _step(self, step: int, feed: StepFeed) -> tuple[dict[int, StepRecord], dict[int, RollBack]]:
        """Run one step of the students that have come to it; return the records, and the roll-backs that must follow.

        The roll-backs are for the caller, because this frame refers to the trainers, which must be freed first.
        """
        turn = [trainer for trainer in self.trainers if trainer.state.global_step == step]
        arrivals = feed.at(step)
        # Of all students: those that take a later step need the answers to what is read ahead now.
        arrivals.leave_out(frozenset.intersection(*(frozenset(t.objective.quarantined) for t in self.trainers)))
        records = self._records(step, turn, arrivals)
        if records:
            feed.passed(step)
        backs = {}
        for trainer in turn:
            if trainer.place in records:
                back = self._unless_diverged(trainer, partial(trainer.finished, records[trainer.place]))
                if back is not None:
                    backs[trainer.place] = back
        return records, backs

    def _save(self, step: int, records: Mapping[int, StepRecord], rolled_back: Collection[int]) -> None:
        """Save the checkpoints that are due after a step.

        Args:
            rolled_back: students that save theirs once they are built anew; no request to stop is heeded before.

        Raises:
            Paused: the workers were asked to stop.
        """
        pauses = self._common.pauses
        pause = next(filter(None, map(pauses.requested, records.values())), None)
        due = pause is not None or any(map(pauses.must_save, records.values()))
        for place in records:
            if place in self._trainers and place not in rolled_back:
                self._trainers[place].save_if_due(due, pauses=pause is not None)
        if pause and step + 1 < self._run.total_steps and not rolled_back:
            self._finish()
            raise pause

    def _records(self, step: int, turn: Sequence[Trainer], feed: Iterator[Arrival]) -> dict[int, StepRecord]:
        """Show each micro-batch of a step to one student after another; return the record of each, by its place."""
        shared = SharedArrivals(feed, len(turn))
        running = []
        for trainer in turn:
            trainer.meter.share = 1 / len(turn)
            running.append((trainer, trainer.step(step, shared.reader())))
        records: dict[int, StepRecord] = {}
        while running:
            for each in list(running):
                trainer, parts = each
                try:
                    self._unless_diverged(trainer, partial(next, parts))
                except StopIteration as end:
                    records[trainer.place] = end.value
                    running.remove(each)
                if trainer.place not in self._trainers:
                    running.remove(each)
        return records

    def _unless_diverged(self, trainer: Trainer, call: Callable[[], RollBack | None]) -> RollBack | None:
        """Return the result of ``call``; if the student diverged and is not the last one, end it and return None."""
        try:
            return call()
        except Diverged as error:
            if not self._run.family:
                raise
            self._end(trainer, error)
            if not self._trainers:
                raise self._failure() from error
            return None

    def _end(self, trainer: Trainer, error: Diverged) -> None:
        """End the training of one student, which diverged."""
        del self._trainers[trainer.place]
        trainer.close()
        trainer.engine.close()
        reason = "; ".join(problem.message for problem in error.problems)
        ended = EndedStudent(trainer.run.name, trainer.state.global_step, reason)
        ended.write(trainer.run, trainer.context.rank)
        self._ended.append(ended)

    def _roll_back(self, place: int, back: RollBack) -> None:
        """Build a student anew at its last checkpoint, and let it skip the steps since then."""
        before = self._trainers.pop(place)
        before.close()
        before.engine.close()
        del before  # it holds the model
        trainer = self._rebuild(place)
        trainer.build_engine()
        self._trainers = dict(sorted({**self._trainers, place: trainer}.items()))
        trainer.go_on_at(back)

    def _finish(self) -> None:
        """Wait until the last checkpoint of each student is committed."""
        for trainer in self.trainers:
            trainer.persistence.finish()

    def _failure(self) -> TrainingError:
        """Return the error for the students that have ended, the same on every rank."""
        listed = "; ".join(f"{one.name} at step {one.step}: {one.reason}" for one in self._ended)
        count = len(self._run.students)
        rest = f"; the other {count - len(self._ended)} went on" if len(self._ended) < count else ""
        who = f"{len(self._ended)} of {count} students diverged{rest}" if count > 1 else "a student diverged"
        error = TrainingError(
            f"{who}: {listed}",
            where="distill.students",
            hint="Their checkpoints stay. The same command tries them again from there, with another rate for example.",
        )
        error.agreed = True
        return error


class SharedArrivals:
    """The arrivals of one step for several students; each is read once, by the student that comes to it first.

    Args:
        readers: how many students read them.
    """

    def __init__(self, feed: Iterator[Arrival], readers: int) -> None:
        self._feed, self._readers = feed, readers
        self._arrivals: list[Arrival | None] = []
        self._passed: list[int] = []  # how many students went past each

    def reader(self) -> Iterator[Arrival]:
        """Iterate over the arrivals, up to the end of the feed."""
        place = 0
        while True:
            if place == len(self._arrivals):
                arrival = next(self._feed, None)
                if arrival is None:
                    return
                arrival.readers = self._readers
                self._arrivals.append(arrival)
                self._passed.append(0)
            here = self._arrivals[place]
            self._passed[place] += 1
            if self._passed[place] == self._readers:
                self._arrivals[place] = None
            assert here is not None
            yield here
            del here
            place += 1
