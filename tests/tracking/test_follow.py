"""Following status.json while workers write it."""

from __future__ import annotations

from radioplat.tracking.follow import CheckpointEvent, Follower, StepEvent
from radioplat.tracking.status import StatusLog


def test_lines_of_writers_that_were_killed_are_passed_over(tmp_path):
    """In the middle of the file, as another writer appends behind one that was killed."""
    path = tmp_path / "status.json"
    events: list[StepEvent | CheckpointEvent] = []
    with Follower(path, [events.append], 2, 0, "distill", show=False):
        with StatusLog(path) as status:
            how = {"epoch": 0, "max_epoch": 1, "max_step": 2, "seconds_per_step": 1.0, "steps_per_epoch": 2}
            status.progress(step=1, kpi={"loss": 0.5}, **how)
            with path.open("ab") as other:
                other.write(b'{"step": 1, "mess\n\xff\xfe\n[1]\n{}\n')
            status.progress(step=2, kpi={"loss": 0.25}, **how)
    assert [(event.step, event.metrics["loss"]) for event in events] == [(1, 0.5), (2, 0.25)]
