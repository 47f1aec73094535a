"""Preflight step on how alike the shares of the workers are in a step of mixed image sizes."""

from __future__ import annotations

from collections.abc import Sequence

from radioplat.data.order.dealing import Costs, end_of
from radioplat.data.order.micro_batch_schedule import Kind, MicroBatchSchedule
from radioplat.data.views.kinds import kinds
from radioplat.design.views import run_views
from radioplat.launch.preflight.preflight import Preflight
from radioplat.spec.resolved.teacher import student_view
from radioplat.spec.resolved.zero import waits
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import Dealing

STEPS = 20  # over which the expectation is a mean
UNLIKE = 1.15  # time of the slowest worker over the mean that is worth a warning
MOST = 20_000  # micro-batches whose sizes are drawn for it
COSTS = Costs()  # by squared pixels; a run measures them


def dealing(preflight: Preflight) -> None:
    """Record how long the slowest of several workers takes beside the mean, and warn if another setting saves time."""
    spec, models = preflight.spec, preflight.models
    ranks = spec.worker_bounds[1]
    if models is None or ranks < 2:
        return
    views = run_views(spec, models.teachers, models.infos, models.student_stride)
    own = [view for view in views if view.name == student_view(spec)]
    count = spec.global_batch_size // spec.dataset.batch_size
    steps = max(1, min(STEPS, MOST // count))
    sizes = [size for (size,) in kinds(own, spec.dataset.train_dataset.seed, 0, steps * count)]
    if len(set(sizes)) < 2:
        return
    steps_kinds = [[(size,) for size in sizes[i : i + count]] for i in range(0, len(sizes), count)]
    even, by_cost = (_imbalance(spec, steps_kinds, ranks, by_cost=way) for way in (False, True))
    chosen, now = (even, "evenly") if spec.train.dealing is Dealing.even else (by_cost, "by cost")
    other = f"; dealt evenly it would be {even:.2f}" if spec.train.dealing is Dealing.cost else ""
    preflight.facts["micro-batches of a step"] = (
        f"{count} of {min(sizes)} to {max(sizes)} px a side, dealt {now} (train.dealing): the slowest of {ranks} "
        f"workers is expected to take {chosen:.2f} times the mean{other}"
    )
    if spec.train.dealing is Dealing.even and even > UNLIKE * by_cost:
        preflight.warnings.append(
            f"train.dealing is even: workers wait for the one with the largest images, {1 - 1 / even:.0%} of the time; "
            f"with cost it would be {1 - 1 / by_cost:.0%}, and the student learns the same"
        )
    _finer(preflight, steps_kinds, ranks, by_cost)


def _finer(preflight: Preflight, steps: Sequence[Sequence[Kind]], ranks: int, by_cost: float) -> None:
    """Warn if even the best dealing leaves workers idle since one micro-batch costs more than a worker's share."""
    spec = preflight.spec
    batch, parts = spec.dataset.batch_size, 1
    costs = [[COSTS.of(kind) for kind in kinds] for kinds in steps]
    if by_cost <= UNLIKE or sum(max(step) for step in costs) <= sum(map(sum, costs)) / ranks:
        return
    best = by_cost
    while batch % (2 * parts) == 0 and best > UNLIKE:
        parts *= 2
        best = _imbalance(
            spec, [[kind for kind in kinds for _ in range(parts)] for kinds in steps], ranks, by_cost=True
        )
    hint = f"with dataset.batch_size {batch // parts} it would be {best:.2f} times" if parts > 1 else (
        "a larger train.global_batch_size gives workers more micro-batches to share"
    )  # fmt: skip
    preflight.warnings.append(
        f"a micro-batch of the largest images costs more than a worker's share of a step, so the slowest worker takes "
        f"{by_cost:.2f} times the mean however they are dealt; {hint}"
    )


def _imbalance(spec: Spec, steps: Sequence[Sequence[Kind]], ranks: int, by_cost: bool) -> float:
    """Return the time of the slowest worker over the mean of all, over all steps, which have equally many kinds."""
    schedule = MicroBatchSchedule(len(steps[0]), ranks, lambda first, last: (), waits(spec.train), by_cost=by_cost)
    ends = total = 0.0
    for kinds_of_step in steps:
        costs = [COSTS.of(kind) for kind in kinds_of_step]
        ends += end_of(schedule.deal(kinds_of_step, COSTS), costs, (1.0,) * ranks, schedule.in_slots)
        total += sum(costs)
    return ends * ranks / total
