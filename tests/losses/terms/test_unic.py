"""The fragment of docs/define/recipes.md against UNIC's loss (arXiv 2408.05088; naver/unic, modeling/losses.py)."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch
import yaml

from radioplat.losses.registry import criterion
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers

PAGE = Path(__file__).parents[3] / "docs" / "define" / "recipes.md"


def of_vectors(student: np.ndarray, teacher: np.ndarray) -> np.ndarray:
    """1/2 (1 - cosine) + 1/2 SmoothL1 with beta 1, by vector."""
    norms = np.linalg.norm(student, axis=-1) * np.linalg.norm(teacher, axis=-1)
    d = np.abs(student - teacher)
    smooth = np.where(d < 1, d**2 / 2, d - 0.5).mean(-1)
    return 0.5 * (1 - (student * teacher).sum(-1) / norms) + 0.5 * smooth


def test_the_fragment_is_unics_loss():
    section = PAGE.read_text().partition("### UNIC")[2]
    spec = load_spec(yaml.safe_load(re.search(r"```yaml\n(.*?)```", section, re.S)[1]))
    generator = torch.Generator().manual_seed(3)
    shapes = {"summary": (5, 8), "spatial": (5, 4, 4, 8)}
    pairs = {kind: [2 * torch.randn(s, generator=generator) for _ in range(2)] for kind, s in shapes.items()}
    teacher, other = resolve_teachers(spec)
    assert len(teacher.terms) == len(other.terms) == 4 and teacher.loss_lambda == other.loss_lambda == 1
    found = torch.zeros(5)
    for term in teacher.terms:
        student, target = pairs[term.kind]
        values, _ = criterion(term, 8, spec.distill)(student, target, torch.ones(5))
        found += term.weight * values.reshape(5, -1).mean(1)
    summary, spatial = (of_vectors(*(x.double().numpy() for x in pairs[kind])) for kind in shapes)
    np.testing.assert_allclose(found, (summary + spatial.mean((1, 2))) / 2, rtol=1e-5)
