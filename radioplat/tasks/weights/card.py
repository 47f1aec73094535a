"""The model card of a student that is published: its make, its teachers, its data, and what was measured of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radioplat import __version__
from radioplat.common.hashing import file_hash
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.spec.resolved.teacher import frozen_teachers
from radioplat.spec.schema.root import Spec
from radioplat.tasks.teachers.known import describe

_TAGS = ("radioplat", "feature-extraction", "knowledge-distillation", "vision")
_SHOWN = 12  # digits of a hash


@dataclass(frozen=True)
class CardInputs:
    """The facts that a card is written from.

    Attributes:
        name: of the repository.
        parameters: of the backbone.
        spec: of the run; None if the checkpoint is not in a run's folder.
        state: ``state.json`` of the checkpoint; empty if it has none.
        evaluation: ``results.json`` of an evaluation of this checkpoint; empty if there is none.
    """

    name: str
    architecture: StudentArchitecture
    parameters: int
    spec: Spec | None
    state: dict[str, Any]
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
    if inputs.spec is not None:
        parts += [_teachers(inputs.spec), _training(inputs.spec, inputs.state)]
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


def _teachers(spec: Spec) -> str:
    rows = []
    for teacher in frozen_teachers(spec):
        for one in teacher.members:
            kind = one.backbone.type or "a folder"
            known = describe(kind)
            licence = known.licence if known and known.licence else "see where its weights come from"
            rows.append(f"| {teacher.name} | `{kind}` | {_file(one.weights)} | {licence} |")
    if not rows:
        return "## Teachers\n\nNone: it was trained on labels."
    head = "| name | type | weights | licence |\n|---|---|---|---|\n"
    note = (
        "The licence of a teacher may bind what is made with it. It is the one that timm states; read it at its source."
    )
    return "## Teachers\n\n" + head + "\n".join(rows) + f"\n\n{note}"


def _file(path: str | None) -> str:
    if path is None:
        return "none"
    file = Path(path)
    return f"{file.name}, sha256 {file_hash(file)[:_SHOWN]}" if file.is_file() else file.name


def _training(spec: Spec, state: dict[str, Any]) -> str:
    split = spec.dataset.train_dataset
    lines = [f"- data: {len(split.tar_data_sources) + bool(split.images_dir)} source(s)"]
    if order := state.get("order_fields", {}).get("index_rows"):
        lines.append(
            f"- sha256 of the index of all images: {order[:_SHOWN]}; of their order: {state['order_hash'][:_SHOWN]}"
        )
    if "global_step" in state:
        lines.append(f"- {state['global_step']:,} steps, {state['samples_consumed']:,} samples")
    lines.append(f"- {spec.train.optim.optim.value}, batch of {spec.global_batch_size}, seed {spec.train.seed}")
    return "## Training\n\n" + "\n".join(lines)


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
