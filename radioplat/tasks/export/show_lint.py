"""The command ``radioplat lint``: options and terminal output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from radioplat.common import terminal
from radioplat.errors import EngineError, Problem, SpecError
from radioplat.exporting.qdq.lint import LintReport, lint


@dataclass
class LintOptions:
    """Options of ``radioplat lint``, as key=value.

    Attributes:
        allow: patterns of node names of layers that may be in floats.
        out: path of a JSON file for the findings.
    """

    allow: list[str] = field(default_factory=list)
    out: str | None = None


def lint_and_show(file: str, overrides: Sequence[str]) -> None:
    """Lint ``file``, print the findings, and write them to ``out``.

    Raises:
        SpecError: an option is unknown.
        EngineError: the file is not ONNX, or Q/DQ are misplaced or missing (one problem for each finding).
    """
    options = _options(overrides)
    report = lint(file, options.allow)
    if options.out:
        try:
            Path(options.out).write_text(json.dumps(report.to_json(), indent=1))
        except OSError as error:
            raise EngineError(f"cannot write here: {error.strerror}", where=options.out) from error
    show(report)
    if report.errors:
        raise EngineError(*(Problem(f"{finding.message} [{finding.rule}]", finding.node) for finding in report.errors))


def show(report: LintReport) -> None:
    """Print the counts and the advice."""
    floats = f"; {len(report.allowed)} in floats as allowed" if report.allowed else ""
    terminal.say(f"{report.quantized} of {report.layers} convolutions and linear layers are quantized{floats}")
    for finding in report.findings:
        if finding not in report.errors:
            terminal.say(f"advice: {finding.node}: {finding.message} [{finding.rule}]")


def _options(overrides: Sequence[str]) -> LintOptions:
    try:
        merged = OmegaConf.merge(OmegaConf.structured(LintOptions), OmegaConf.from_dotlist(list(overrides)))
    except OmegaConfBaseException as error:
        problem = str(error).splitlines()[0]
        raise SpecError(problem, where="lint", hint="Options: allow=[PATTERN,...], out=FILE.json.") from None
    return cast(LintOptions, OmegaConf.to_object(merged))
