"""Terminal output of ``radioplat ledger``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from radioplat.common import terminal
from radioplat.data.ledger.proof import Proof
from radioplat.errors import DataError, Problem


def show(proofs: dict[Path, Proof]) -> None:
    """Print each proof.

    Raises:
        DataError: with a problem for each proof that fails, after all were printed.
    """
    for folder, proof in proofs.items():
        terminal.show_table(
            f"{folder}, steps {proof.first_step} to {proof.final_step}", ["samples", "", ""], _rows(proof)
        )
        for finding in (*proof.examples, *(f"{path.name}: {why}" for path, why in proof.unreadable.items())):
            terminal.say(f"  {finding}")
        if proof.holds:
            learnt = f"; {proof.without_weight} of them without weight" if proof.without_weight else ""
            terminal.say(f"all {proof.expected} expected samples were seen exactly once{learnt}")
    failed = [problem for folder, proof in proofs.items() for problem in _problems(folder, proof)]
    if failed:
        raise DataError(*failed)


def _problems(folder: Path, proof: Proof) -> Iterator[Problem]:
    """Yield why the run did not learn each sample of the order once."""
    if not proof.holds:
        gaps = f"; {len(proof.unreadable)} file(s) cannot be read" if proof.unreadable else ""
        yield Problem(
            f"the ledger does not prove exactly-once: {proof.missing} missing, {proof.repeated} repeated, "
            f"{proof.misplaced} misplaced of {proof.expected}{gaps}",
            str(folder),
        )
    if not proof.learnt:
        yield Problem(
            f"{proof.without_weight} of {proof.expected} samples were seen without weight, more than the share of "
            f"{proof.most_without_weight:g} that dataset.max_bad_fraction allows",
            str(folder),
            "The table names the reasons; `radioplat diagnose` shows the last warnings of the run.",
        )


def _rows(proof: Proof) -> list[list[str]]:
    began = ", ".join(f"attempt {number}: steps {start} to {stop}" for number, start, stop in proof.attempts)
    rows = [
        ["expected", str(proof.expected), "samples of the order in these steps"],
        ["seen", str(proof.consumed), began],
        ["compared now", str(proof.checked), "the others were when they were written; --full compares all"],
        ["missing", str(proof.missing), "expected, not seen at their position"],
        ["repeated", str(proof.repeated), "seen again"],
        ["misplaced", str(proof.misplaced), "different from the order at that position"],
        ["replayed", str(proof.replayed), "of steps that were repeated or abandoned"],
    ]
    if proof.before:
        rows.append(["before", str(proof.before), f"of steps before {proof.first_step}, under another order"])
    rows += [["rejected", str(count), f"{reason}, never in the order"] for reason, count in proof.rejected.items()]
    rows += [["unlearned", str(count), f"{reason}, seen without weight"] for reason, count in proof.unlearned.items()]
    return rows
