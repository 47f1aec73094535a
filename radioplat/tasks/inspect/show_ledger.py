"""Terminal output of ``radioplat ledger``."""

from __future__ import annotations

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
        for finding in proof.examples:
            terminal.say(f"  {finding}")
        if proof.holds:
            terminal.say(f"all {proof.expected} expected samples were seen exactly once")
    failed = [
        Problem(
            f"the ledger does not prove exactly-once: {proof.missing} missing, {proof.repeated} repeated, "
            f"{proof.misplaced} misplaced of {proof.expected}",
            str(folder),
        )
        for folder, proof in proofs.items()
        if not proof.holds
    ]
    if failed:
        raise DataError(*failed)


def _rows(proof: Proof) -> list[list[str]]:
    began = ", ".join(f"attempt {number}: steps {start} to {stop}" for number, start, stop in proof.attempts)
    rows = [
        ["expected", str(proof.expected), "samples of the order in these steps"],
        ["seen", str(proof.consumed), began],
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
