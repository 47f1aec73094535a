"""What is measured while held-out images pass: fidelity, agreement over resolutions, correspondence, pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from radioplat.data.batch import Batch
from radioplat.evaluation.metrics.cka import RowSample
from radioplat.evaluation.metrics.correspondence import CorrespondenceMeter, draw_homography, warp
from radioplat.evaluation.metrics.fidelity import FidelityMeter
from radioplat.evaluation.metrics.resolution_agreement import AgreementMeter
from radioplat.losses.base.reduce import to_grid
from radioplat.models.features import Features
from radioplat.spec.schema.evaluate import EvaluateConfig

if TYPE_CHECKING:
    from radioplat.evaluation.measure.findings import Findings
    from radioplat.evaluation.models.evaluated_model import EvaluatedModel

BACKBONE = "backbone"


class HeldOut:
    """Meters over held-out images.

    Args:
        models, kinds: as for :func:`radioplat.evaluation.measure.measure.measure`.
        means: ``[D]`` of each teacher and kind, over training images.
        centers: ``[D]``, the mean of the own map of each model that has other resolutions.
        images: that will be seen.
        zero_shot: the teacher whose embeddings are wanted.
    """

    def __init__(
        self,
        models: dict[str, EvaluatedModel],
        kinds: dict[str, list[str]],
        means: dict[tuple[str, str], torch.Tensor],
        centers: dict[str, torch.Tensor],
        config: EvaluateConfig,
        images: int,
        zero_shot: str | None = None,
        seed: int = 0,
    ) -> None:
        self._subjects, self._kinds, self._config, self._seed = models, kinds, config, seed
        rows = config.cka_rows
        self._fidelity = {
            (student, teacher, kind): FidelityMeter(mean, RowSample(rows, images) if rows else None)
            for student, model in models.items()
            for (teacher, kind), mean in means.items()
            if model.has_head(teacher, kind)
        }
        self._agreement: dict[str, AgreementMeter] = {}
        for name, center in centers.items():
            sizes = [s.size for n, s in models.items() if name in (n, s.resolution_of)]
            self._agreement[BACKBONE] = AgreementMeter(sizes, center)
            for (teacher, kind), mean in means.items():
                if kind == "spatial":
                    self._agreement[teacher] = AgreementMeter(sizes, mean)
        self._warped = 0
        self._correspondence = {
            name: CorrespondenceMeter(config.correspondence.thresholds)
            for name, model in models.items()
            if model.resolution_of is None and config.correspondence.enable
        }
        self._zero_shot = zero_shot
        self._embeddings: dict[str, list[torch.Tensor]] = {}
        self._shown: np.ndarray | None = None
        self._maps: dict[str, torch.Tensor] = {}

    @torch.inference_mode()
    def see(self, batch: Batch, features: dict[str, Features]) -> None:
        """Measure a batch; samples that could not be read are left out."""
        alive = torch.from_numpy(batch.weight > 0)
        if not alive.any():
            return
        heads = {
            (name, teacher): model.heads.head(teacher, features[name])
            for name, model in self._subjects.items()
            if model.heads is not None
            for teacher, kinds in self._kinds.items()
            if any(model.has_head(teacher, kind) for kind in kinds)
        }
        self._compare(alive, features, heads)
        self._over_resolutions(alive, features, heads)
        self._correspond(batch, alive, features)
        self._embed(alive, features, heads)
        if self._shown is None and self._config.pictures:
            self._keep_for_pictures(batch, features, heads)

    def tell(self, found: Findings) -> None:
        """Write what was measured into ``found``."""
        for (student, teacher, kind), meter in self._fidelity.items():
            found.fidelity.setdefault(student, {}).setdefault(teacher, {})[kind] = meter.result()
        found.agreement = {name: meter.result() for name, meter in self._agreement.items()}
        found.correspondence = {name: meter.result() for name, meter in self._correspondence.items()}
        found.shown, found.maps = self._shown, self._maps

    def embeddings(self) -> dict[str, torch.Tensor]:
        """``[n, D]`` in the space of the zero-shot teacher: of that teacher, and of each student's head for it."""
        return {name: torch.cat(rows) for name, rows in self._embeddings.items()}

    def _compare(
        self, alive: torch.Tensor, features: dict[str, Features], heads: dict[tuple[str, str], Features]
    ) -> None:
        for (name, teacher, kind), meter in self._fidelity.items():
            ours, theirs = _of(heads[name, teacher], kind), _of(features[teacher], kind)
            if kind == "spatial":  # on the coarser of the two grids
                grid = (min(ours.shape[1], theirs.shape[1]), min(ours.shape[2], theirs.shape[2]))
                ours, theirs = to_grid(ours, grid), to_grid(theirs, grid)
            meter.update(ours[alive], theirs[alive])

    def _over_resolutions(
        self, alive: torch.Tensor, features: dict[str, Features], heads: dict[tuple[str, str], Features]
    ) -> None:
        if not self._agreement:
            return
        base = next(s.resolution_of for s in self._subjects.values() if s.resolution_of is not None)
        names = {s.size: n for n, s in self._subjects.items() if base in (n, s.resolution_of)}
        for key, meter in self._agreement.items():
            own = {size: features[n] if key == BACKBONE else heads[n, key] for size, n in names.items()}
            meter.update({size: _of(value, "spatial")[alive] for size, value in own.items()})

    def _correspond(self, batch: Batch, alive: torch.Tensor, features: dict[str, Features]) -> None:
        count = min(self._config.correspondence.images - self._warped, int(alive.sum()))
        if not self._correspondence or count < 1:
            return
        chosen = torch.nonzero(alive).flatten()[:count]
        matrices = [
            draw_homography(self._config.correspondence, self._seed, self._warped + i) for i in range(len(chosen))
        ]
        self._warped += len(chosen)
        for name, meter in self._correspondence.items():
            model = self._subjects[name]
            images = torch.from_numpy(batch.views[str(model.size)].pixels[chosen.numpy()])
            copies = model.encode(warp(images, matrices))
            meter.update(_of(features[name], "spatial")[chosen], _of(copies, "spatial"), matrices)

    def _embed(
        self, alive: torch.Tensor, features: dict[str, Features], heads: dict[tuple[str, str], Features]
    ) -> None:
        if self._zero_shot is None:
            return
        own = {
            n: heads[n, t]
            for n, t in heads
            if t == self._zero_shot and self._subjects[n].has_head(t, "summary") and not self._subjects[n].resolution_of
        }
        for name, value in {**own, self._zero_shot: features[self._zero_shot]}.items():
            self._embeddings.setdefault(name, []).append(_of(value, "summary")[alive].float().cpu())

    def _keep_for_pictures(
        self, batch: Batch, features: dict[str, Features], heads: dict[tuple[str, str], Features]
    ) -> None:
        count = self._config.pictures
        rows = np.unique(batch.label, return_index=True)[1] if (batch.label >= 0).all() else np.arange(len(batch))
        chosen = np.sort([*rows, *[i for i in range(len(batch)) if i not in set(rows)]][:count])
        largest = max(batch.views.values(), key=lambda view: view.pixels.shape[-1])
        self._shown = largest.pixels[chosen].copy()
        for name in self._subjects:
            self._maps[name] = _of(features[name], "spatial")[chosen].float().cpu()
        for (name, teacher), value in heads.items():
            if "spatial" in self._kinds[teacher] and self._subjects[name].has_head(teacher, "spatial"):
                self._maps[f"{name}/{teacher}"] = _of(value, "spatial")[chosen].float().cpu()


def _of(features: Features, kind: str) -> torch.Tensor:
    value = features.summary if kind == "summary" else features.spatial
    assert value is not None
    return value
