"""The model card of a student that is published: its make, its teachers, its data, and what was measured of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radioplat import __version__
from radioplat.models.detectors.checkpoint import DETECTOR
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.models.student.checkpoint import STUDENT
from radioplat.models.weights.model_format import EMA_FILE
from radioplat.tasks.lineage.node import NOT_RECORDED, Kind, Node
from radioplat.tasks.lineage.trace import runs_of

_TAGS = ("radioplat", "feature-extraction", "knowledge-distillation", "vision")
_STUDENTS = (*STUDENT.file_names, *DETECTOR.file_names, EMA_FILE)
_SHOWN = 12  # digits of a hash


@dataclass(frozen=True)
class CardInputs:
    """The facts that a card is written from.

    Attributes:
        name: of the repository.
        parameters: of the backbone.
        lineage: of the checkpoint; paths in it are not published, names are.
        evaluation: ``results.json`` of an evaluation of this checkpoint; empty if there is none.
    """

    name: str
    architecture: StudentArchitecture
    parameters: int
    lineage: Node
    evaluation: dict[str, Any]


def write_card(inputs: CardInputs) -> str:
    """Return the card, Markdown with the front matter that the Hugging Face hub reads."""
    a = inputs.architecture
    tags = "\n".join(f"- {tag}" for tag in _TAGS)
    heads = ", ".join(head.name for head in a.heads) or "none"
    parts = [
        f"---\nlibrary_name: radioplat\npipeline_tag: image-feature-extraction\ntags:\n{tags}\n---",
        f"# {inputs.name.rpartition('/')[2]}",
        f"A vision backbone, `{a.type}`, distilled by radioplat {__version__}: {inputs.parameters / 1e6:.2f} M "
        f"parameters, {a.img_size} px. Heads into the feature spaces of: {heads}.",
        _use(inputs.name),
    ]
    if runs := runs_of(inputs.lineage):
        parts += [_teachers(runs), *(_training(run, number if len(runs) > 1 else 0) for number, run in _in_order(runs))]
    if made := _made_from(inputs.lineage):
        parts.append(made)
    if inputs.evaluation:
        parts.append(_measured(inputs.evaluation))
    return "\n\n".join(parts) + "\n"


def _use(name: str) -> str:
    return (
        f"## Use\n\n```\nradioplat weights fetch hf://{name}      # prints the folder\n```\n\n"
        "```python\nimport radioplat\n\n"
        'student = radioplat.load_student("FOLDER")\n'
        "features = student(images)                     # float images [B, 3, H, W] in [0, 1]\n"
        "features.summary, features.spatial             # [B, D], [B, h, w, D]\n```\n\n"
        f"A spec starts from it with `train.pretrained_model_path: hf://{name}`."
    )


def _in_order(runs: list[Node]) -> list[tuple[int, Node]]:
    """Return the runs with their numbers, the first one first."""
    return list(enumerate(reversed(runs), start=1))


def _teachers(runs: list[Node]) -> str:
    teachers = {each.id: each for run in runs for each in run.made_from if each.kind is Kind.teacher}
    rows = []
    for each in teachers.values():
        facts = each.facts
        licence = facts["licence"] or "see where its weights come from"
        rows.append(f"| {facts['name']} | `{facts['type'] or 'a folder'}` | {_files(each)} | {licence} |")
    if not rows:
        return "## Teachers\n\nNone: it was trained on labels."
    head = "| name | type | weights | licence |\n|---|---|---|---|\n"
    note = (
        "The licence of a teacher may bind what is made with it. It is the one that timm states; read it at its source."
    )
    return "## Teachers\n\n" + head + "\n".join(dict.fromkeys(rows)) + f"\n\n{note}"


def _files(node: Node) -> str:
    """Return names and hashes of a node's files."""
    files = [file for file in node.files if file.name in _STUDENTS] or node.files
    texts = [f"{file.name}, sha256 {file.sha256[:_SHOWN] or NOT_RECORDED}" for file in files]
    return "; ".join(texts) or "none"


def _training(run: Node, number: int) -> str:
    """Return the section of a run.

    Args:
        number: of the run, among several; 0 for the only one.
    """
    facts = run.facts
    lines = [f"- data: {facts['sources']} source(s)"] if "sources" in facts else []
    if index := facts["index_sha256"]:
        lines.append(
            f"- sha256 of the index of all images: {index[:_SHOWN]}; of their order: {facts['order_sha256'][:_SHOWN]}"
        )
    lines.append(f"- {facts['steps']:,} steps, {facts['samples']:,} samples")
    if "optimizer" in facts:
        lines.append(f"- {facts['optimizer']}, batch of {facts['batch']}, seed {facts['seed']}")
    return f"## Training{f' {number}' if number else ''}\n\n" + "\n".join(lines)


def _made_from(node: Node) -> str:
    """Return the students and weights that it was made of, the nearest first; empty if it began untrained."""
    kinds = (Kind.student, Kind.weights)
    before = [each for each in node.walk(teachers=False) if each.kind in kinds and each is not node]
    lines = [f"- {each.title.partition(' (')[0]}: {_files(each)}" for each in before]
    return "## Made from\n\n" + "\n".join(lines) if lines else ""


def _measured(evaluation: dict[str, Any]) -> str:
    """Return the figures of a single checkpoint's evaluation, as ``evaluate`` wrote them."""
    rows = [f"| kNN top-1, {name} | {value['top1']:.3f} |" for name, value in (evaluation.get("knn") or {}).items()]
    for teacher, kinds in ((evaluation.get("fidelity") or {}).get("student") or {}).items():
        rows += [f"| fidelity to {teacher}, {kind} | {value['centered']:.3f} |" for kind, value in kinds.items()]
    if (top1 := evaluation.get("accuracy")) is not None:
        rows.append(f"| top-1 of its classifier | {top1:.3f} |")
    return "## Measured on held-out images\n\n| figure | value |\n|---|---|\n" + "\n".join(rows) if rows else ""


def read_json(path: Path) -> dict[str, Any]:
    """Return the content of a file; empty if there is none, or if it is not whole."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
