"""End a run with a report if too many images are unreadable, instead of training on samples without weight."""

from __future__ import annotations

from collections import Counter, deque

from radioplat.common import collectives
from radioplat.data.batch import Batch
from radioplat.data.images.uniform_color import REASON as UNIFORM_COLOR
from radioplat.data.index.shard_index import ShardIndex
from radioplat.errors import DataError
from radioplat.training.hooks.step_hook import StepHook
from radioplat.training.hooks.step_record import StepRecord

# The share of bad samples is computed over at least FEWEST samples, so that one bad image does not end a small run, and
# over at most the last WINDOW: over all samples seen, a long run would reach the limit only after losing days of
# samples. One missing shard of 10,000 samples that is read interleaved with fifteen others is 4% of a window.
FEWEST = 1000
WINDOW = 1 << 18
EXAMPLES = 3
_NONE: Counter[str] = Counter()


class BadSamples(StepHook):
    """Count the unreadable samples among the last :data:`WINDOW` samples of this start, over all ranks.

    Args:
        index: the run's copy of the index; provides the names of samples.
        most: largest share that is accepted (``dataset.max_bad_fraction``).
    """

    name = "bad_samples"

    def __init__(self, index: ShardIndex, most: float) -> None:
        self._index, self._most = index, most
        self._samples = self._bad = 0  # in the window, on all ranks
        self._window: deque[tuple[int, int, Counter[str]]] = deque()  # per step: both counts, and this rank's reasons
        self._fresh = [0, 0]  # samples and bad samples of this rank in this step
        self._reasons: Counter[str] = Counter()  # of this rank's bad samples in this step
        self._examples: deque[tuple[int, str]] = deque(maxlen=EXAMPLES)  # the last bad samples of this rank

    def begin_step(self, step: int) -> None:
        """Start new counts."""
        self._fresh, self._reasons = [0, 0], Counter()

    def begin_micro_batch(self, step: int, batch: Batch) -> None:
        """Count the samples and the bad samples of ``batch``."""
        if batch.micro_batch < 0:
            return
        # Images of one colour are left out on request of the spec: they are in the ledger but are not bad.
        faults = {row: why for row, why in batch.faults.items() if why.partition(":")[0] != UNIFORM_COLOR}
        self._fresh[0] += len(batch)
        self._fresh[1] += len(faults)
        for row, reason in faults.items():
            self._reasons[reason.partition(":")[0]] += 1
            self._examples.append((row, reason))

    def sums(self) -> dict[str, float]:
        """Return the counts of this rank."""
        return {"samples": self._fresh[0], "bad": self._fresh[1]}

    def end_step(self, record: StepRecord) -> None:
        """Check the share of bad samples of all ranks; every rank must call it.

        Raises:
            DataError: on every rank, if the share is too high; the message has counts by reason and examples.
        """
        with collectives.mark_agreed():
            samples, bad = (int(record.sums[f"{self.name}/{count}"]) for count in ("samples", "bad"))
            self._check(record.step, samples, bad)

    def _check(self, step: int, samples: int, bad: int) -> None:
        self._window.append((samples, bad, self._reasons or _NONE))
        self._samples, self._bad = self._samples + samples, self._bad + bad
        while self._samples - self._window[0][0] >= WINDOW:
            samples, bad, _ = self._window.popleft()
            self._samples, self._bad = self._samples - samples, self._bad - bad
        if self._bad <= self._most * max(FEWEST, self._samples):
            return
        reasons: Counter[str] = Counter()
        named: list[str] = []
        mine = sum((counts for _, _, counts in self._window), Counter())
        for counts, examples in collectives.gather_objects((mine, self._names())):
            reasons += counts
            named += examples
        raise DataError(
            f"step {step}: {self._bad} of the last {self._samples} samples proved unreadable "
            f"({', '.join(f'{count} {reason}' for reason, count in reasons.most_common())}), more than the share of "
            f"{self._most:g} that is allowed; the last are: {'; '.join(named[:EXAMPLES])}",
            where="dataset.max_bad_fraction",
            hint="All are in the ledger; mend the shards or raise the share.",
        )

    def _names(self) -> list[str]:
        paths, shards = self._index.shard_paths, self._index.shard
        return [f"{paths[int(shards[row])]} {self._index.key(row)} {why}" for row, why in self._examples]
