"""A model of steps with many ranks: how long do they wait for each other, by how micro-batches are dealt?

Sizes are what the platform draws for the partitions of C-RADIOv4 (arXiv 2601.17237): three quarters of a step's
micro-batches from the small sizes, a quarter from the large ones. A micro-batch costs what a ViT-L/16 computes for it:
with n tokens of width d, each block 24 n d^2 + 4 n^2 d FLOP. Whatever else takes time is left out.
"""

from __future__ import annotations

import time
from typing import Any

from radioplat.data.order.dealing import Costs, deal_by_cost, deal_evenly, deal_in_slots, end_of
from radioplat.data.order.micro_batch_schedule import PADDING
from radioplat.data.views.kinds import kinds
from radioplat.design.views import run_views
from radioplat.spec.loading.load import load_spec

SMALL = [128, 192, 224, 256, 384, 432]
LARGE = {512: 0.4, 768: 0.2, 1024: 0.2, 1152: 0.2}
BATCH, WIDTH, PATCH = 8, 1024, 16
RANKS, EACH, STEPS = (8, 64, 256), (2, 4, 8), 20


def modelled() -> list[dict[str, Any]]:
    """Return, for each number of ranks and of micro-batches a rank, seconds over those without any wait.

    ``even``, ``cost`` where ranks wait once a step; ``even_each``, ``cost_each`` where they wait after each
    micro-batch; and ``deal_ms``: how long it takes to deal the micro-batches of a step, once.
    """
    return [_modelled(ranks, each) for ranks in RANKS for each in EACH]


def _modelled(ranks: int, each: int) -> dict[str, Any]:
    count = ranks * each
    spec = load_spec(
        {
            "dataset": {"batch_size": BATCH},
            "train": {"global_batch_size": BATCH * count, "max_steps": STEPS},
            "distill": {"partitions": [{"share": 0.75, "sizes": SMALL}, {"share": 0.25, "sizes": LARGE}]},
        }
    )
    views = run_views(spec, [], {}, PATCH)
    known = Costs({(size,): flop(size) for size in {*SMALL, *LARGE}})
    alike = (1.0,) * ranks
    found = dict.fromkeys(("even", "cost", "even_each", "cost_each", "deal_ms"), 0.0)
    total = 0.0
    for step in range(STEPS):
        costs = [
            known.of(kind) for kind in kinds(views, spec.dataset.train_dataset.seed, step * count, (step + 1) * count)
        ]
        even = deal_evenly(count, ranks)
        begin = time.perf_counter()
        dealt = deal_by_cost(costs, alike)
        found["deal_ms"] += (time.perf_counter() - begin) * 1000
        slots = deal_in_slots(costs, alike, PADDING)
        for name, way, in_slots in (
            ("even", even, False),
            ("cost", dealt, False),
            ("even_each", even, True),
            ("cost_each", slots, True),
        ):
            found[name] += end_of(way, costs, alike, in_slots)
        total += sum(costs) / ranks
    found = {name: value / (STEPS if name == "deal_ms" else total) for name, value in found.items()}
    return {"ranks": ranks, "each": each} | {name: round(value, 2) for name, value in found.items()}


def flop(size: int) -> float:
    """Return what a block computes for an image of ``size`` pixels a side."""
    tokens = (size // PATCH) ** 2
    return 24 * tokens * WIDTH**2 + 4 * tokens**2 * WIDTH
