"""Preflight step on how alike the shares of the workers are in a step of mixed image sizes."""

from __future__ import annotations

from collections.abc import Sequence

from radioplat.data.order.dealing import deal_by_cost, deal_evenly, deal_in_slots, end_of
from radioplat.data.order.micro_batch_schedule import PADDING
from radioplat.data.views.kinds import kinds
from radioplat.design.views import run_views
from radioplat.launch.preflight.preflight import Preflight
from radioplat.spec.resolved.teacher import student_view
from radioplat.spec.resolved.zero import waits
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import Dealing

STEPS = 20  # over which the expectation is a mean
UNLIKE = 1.15  # time of the slowest worker over the mean that is worth a warning
MOST = 20_000  # micro-batches that are looked at


def dealing(preflight: Preflight) -> None:
    """Record how long the slowest of several workers takes beside the mean, and warn if another setting saves time.

    Costs are taken to be as the squared pixels; a run measures them.
    """
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
    costs = [[float(size**2) for size in sizes[i : i + count]] for i in range(0, len(sizes), count)]
    even, by_cost = (_imbalance(spec, costs, ranks, way) for way in (Dealing.even, Dealing.cost))
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
    _finer(preflight, costs, ranks, by_cost)


def _finer(preflight: Preflight, costs: Sequence[Sequence[float]], ranks: int, by_cost: float) -> None:
    """Warn if even the best dealing leaves workers idle since one micro-batch costs more than a worker's share."""
    spec = preflight.spec
    batch, parts = spec.dataset.batch_size, 1
    if by_cost <= UNLIKE or sum(max(step) for step in costs) <= sum(map(sum, costs)) / ranks:
        return
    best = by_cost
    while batch % (2 * parts) == 0 and best > UNLIKE:
        parts *= 2
        finer = [[cost / parts for cost in step for _ in range(parts)] for step in costs]
        best = _imbalance(spec, finer, ranks, Dealing.cost)
    hint = f"with dataset.batch_size {batch // parts} it would be {best:.2f} times" if parts > 1 else (
        "a larger train.global_batch_size gives workers more micro-batches to share"
    )  # fmt: skip
    preflight.warnings.append(
        f"a micro-batch of the largest images costs more than a worker's share of a step, so the slowest worker takes "
        f"{by_cost:.2f} times the mean however they are dealt; {hint}"
    )


def _imbalance(spec: Spec, costs: Sequence[Sequence[float]], ranks: int, way: Dealing) -> float:
    """Return the time of the slowest worker over the mean of all, over all steps."""
    alike, in_slots, ends = (1.0,) * ranks, waits(spec.train), 0.0
    for step in costs:
        if way is Dealing.even:
            dealt = deal_evenly(len(step), ranks)
            most = max(map(len, dealt))
            dealt = [[*own, *[PADDING] * (most - len(own))] for own in dealt]
        else:
            dealt = deal_in_slots(step, alike, PADDING) if in_slots else deal_by_cost(step, alike)
        ends += end_of(dealt, step, alike, in_slots)
    return ends * ranks / sum(map(sum, costs))
