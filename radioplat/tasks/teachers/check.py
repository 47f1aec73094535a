"""``radioplat teachers check``: find problems of a teacher before a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from radioplat.data.loading.sample_images import sample_images
from radioplat.errors import SpecError
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.normalisation import IMAGENET
from radioplat.spec.resolved.teacher import ResolvedTeacher, frozen_teachers
from radioplat.spec.schema.root import Spec
from radioplat.tasks.teachers.check_result import CheckResult, TeacherFindings
from radioplat.teachers.base.teacher import FrozenTeacher, describe, spec_mismatches

IMAGES, SHOWN, BATCH = 200, 4, 8
NORMS = {
    "ImageNet": IMAGENET,
    "[-1, 1]": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "CLIP": ((0.481, 0.458, 0.408), (0.269, 0.261, 0.276)),
    "[0, 1]": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}
# Published standard deviations of map features (PHI-S paper), for teachers whose name contains the key.
KNOWN_SCALES = {"siglip": 1.84, "dinov2": 1.35, "sam": 5.47, "dfn": 0.029}
_DEAD, _SURE = 1e-4, 3.0


def check_teachers(spec: str | Path | dict | Spec, overrides: Sequence[str] = ()) -> CheckResult:
    """Run up to 200 training images through each teacher of ``spec``; write ``teachers_check/report.html``.

    Raises:
        RadioplatError: no teachers, no images, or weights that cannot be read.
    """
    from radioplat.tasks.teachers.check_report import write

    spec = load_spec(spec, overrides)
    teachers = frozen_teachers(spec)
    if not teachers:
        raise SpecError("at least one teacher with weights is needed", where="distill.teacher")
    images = sample_images(spec, {t.view_size for t in teachers}, IMAGES)
    result = CheckResult([check_teacher(teacher, images[teacher.view_size]) for teacher in teachers])
    result.report = write(spec, result)
    return result


def check_teacher(teacher: ResolvedTeacher, images: np.ndarray) -> TeacherFindings:
    """Check one teacher on uint8 ``[N, 3, H, W]`` of its view size.

    Raises:
        SpecError, WeightsError: it cannot be built or loaded.
    """
    info = describe(teacher)
    findings = TeacherFindings(teacher.name, info.needs, flags=spec_mismatches(teacher, info))
    model = FrozenTeacher(teacher, "cuda" if torch.cuda.is_available() else "cpu")
    summary, spatial = _features(model, images)
    findings.shown, findings.maps = images[:SHOWN], spatial[:SHOWN].clone()
    _statistics(findings, teacher, summary, spatial)
    _normalisation(findings, teacher, model, images, summary)
    return findings


def _features(model: FrozenTeacher, images: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    both = frozenset({"summary", "spatial"})
    parts = [model(torch.tensor(images[i : i + BATCH]), both) for i in range(0, len(images), BATCH)]
    return torch.cat([p.summary.float().cpu() for p in parts]), torch.cat([p.spatial.float().cpu() for p in parts])


def _statistics(
    findings: TeacherFindings, teacher: ResolvedTeacher, summary: torch.Tensor, spatial: torch.Tensor
) -> None:
    """Report dead channels, an unusual scale, and a summary or a map that is the same for every image."""
    if not (bool(torch.isfinite(summary).all()) and bool(torch.isfinite(spatial).all())):
        findings.flags.append("features are not finite; try teachers.<name>.precision: fp32")
        return
    channel = spatial.flatten(0, -2).std(0)
    scale = float(spatial.std())
    dead = float((channel < _DEAD * channel.median().clamp_min(1e-12)).float().mean())
    loudest = float(channel.square().max() / channel.square().sum())
    direction = torch.nn.functional.normalize(summary, dim=1)
    axis = torch.nn.functional.normalize(direction.mean(0), dim=0)
    angles = torch.arccos((direction @ axis).clamp(-1 + 1e-6, 1 - 1e-6))
    within = float((spatial - spatial.mean((1, 2), keepdim=True)).std())
    findings.facts |= {
        "spatial std": scale,
        "dead channels": dead,
        "share of the loudest channel": loudest,
        "summary dispersion": float(angles.square().mean()),
        "spread inside an image": within / max(scale, 1e-12),
    }
    if dead > 0.01:
        images = len(summary)
        findings.flags.append(
            f"{dead:.0%} of the map's channels never change over {images} images: dead features, or a pruned model"
        )
    if findings.facts["summary dispersion"] < 1e-4:
        findings.flags.append("the summary is the same for every image: a wrong token, or weights that were not loaded")
    if spatial.shape[1] > 1 and findings.facts["spread inside an image"] < 0.01:
        findings.flags.append("the map is the same at every position of an image: a wrong token or layer")
    label = f"{teacher.name} {teacher.backbone.type or ''}".lower()
    known = next((value for key, value in KNOWN_SCALES.items() if key in label), None)
    if known and not 1 / _SURE <= scale / known <= _SURE:
        findings.flags.append(f"the map's standard deviation is {scale:.3g}; {known:g} is published for this family")
    elif not known and not 1e-2 <= scale <= 1e2:
        findings.flags.append(f"the map's standard deviation is {scale:.3g}: an unusual scale; use distill.target_norm")


def _normalisation(
    findings: TeacherFindings, teacher: ResolvedTeacher, model: FrozenTeacher, images: np.ndarray, summary: torch.Tensor
) -> None:
    """Compare the spec's normalisation with the usual ones.

    The criterion: a mirrored image is the same image. The margin is the cosine of a summary with that of its own mirror
    image, minus the largest with another image's (features minus their mean); its mean measures how well a model
    distinguishes images. The spec's normalisation is flagged if another is better by three standard errors of the
    paired difference.
    """
    mirrored = np.ascontiguousarray(images[..., ::-1])
    own = _margins(summary, _features(model, mirrored)[0])
    findings.agreement["as in the spec"] = float(own.mean())
    best, gain = "", 0.0
    for name, (mean, std) in NORMS.items():
        if max(abs(a - b) for a, b in zip(mean + std, teacher.norm_mean + teacher.norm_std, strict=True)) < 0.01:
            continue
        model.normalise_by(mean, std)
        other = _margins(_features(model, images)[0], _features(model, mirrored)[0])
        findings.agreement[name] = float(other.mean())
        difference = other - own
        error = float(difference.std()) / math.sqrt(len(images)) if len(images) > 1 else math.inf
        if float(difference.mean()) > max(_SURE * error, gain):
            best, gain = name, float(difference.mean())
    model.normalise_by(teacher.norm_mean, teacher.norm_std)
    if best:
        findings.flags.append(
            f"images are distinguished better with {best} normalisation (by {gain:.3f}, over three standard errors): "
            f"look at {teacher.where}.norm_mean and norm_std"
        )


def _margins(summary: torch.Tensor, mirrored: torch.Tensor) -> torch.Tensor:
    """Return ``[N]``: cosine with the own mirror image minus the largest with another's."""
    center = summary.mean(0)
    a, b = (torch.nn.functional.normalize(x - center, dim=1) for x in (summary, mirrored))
    cosine = a @ b.T
    own = cosine.diagonal().clone()
    return own - cosine.fill_diagonal_(-1).amax(1)
