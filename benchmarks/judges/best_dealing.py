"""When would the last of two workers end, by the best of all ways to deal? Imports nothing of the platform.

``python -m benchmarks.judges.best_dealing < COSTS.json``: a list of steps, each the list of the seconds of its
micro-batches, in their order, at most 12. The last line on stdout is one JSON object with seconds of all steps
together, if a worker waits once a step (``once``) and if it waits after each micro-batch (``each``): ``even``, number j
on worker j mod 2; and ``best``, the least of all ways, tried one by one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence


def main() -> None:
    """Try, add up and print."""
    steps = json.load(sys.stdin)
    print(
        json.dumps(
            {
                "once": {
                    "even": sum(max(sum(costs[0::2]), sum(costs[1::2])) for costs in steps),
                    "best": sum(best_split(costs) for costs in steps),
                },
                "each": {
                    "even": sum(sum(max(costs[i : i + 2]) for i in range(0, len(costs), 2)) for costs in steps),
                    "best": sum(min(sum(map(max, pairs)) for pairs in pairings(costs)) for costs in steps),
                },
            }
        )
    )


def best_split(costs: Sequence[float]) -> float:
    """Return the least time of the slower worker, of all ways to split the micro-batches."""
    total = sum(costs)
    parts = (sum(cost for i, cost in enumerate(costs) if mask >> i & 1) for mask in range(2 ** (len(costs) - 1)))
    return min(max(part, total - part) for part in parts)


def pairings(costs: Sequence[float]) -> Iterator[list[Sequence[float]]]:
    """Yield all ways to form pairs; of an odd number one stays alone."""
    if len(costs) < 2:
        yield [costs] if costs else []
        return
    if len(costs) % 2:
        for i in range(len(costs)):
            rest = [*costs[:i], *costs[i + 1 :]]
            yield from ([[costs[i]], *pairs] for pairs in pairings(rest))
        return
    for i in range(1, len(costs)):
        rest = [*costs[1:i], *costs[i + 1 :]]
        yield from ([[costs[0], costs[i]], *pairs] for pairs in pairings(rest))


if __name__ == "__main__":
    main()
