"""Decoders that are trained on frozen maps, a linear layer or a light network, and return class scores of a map."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from radioplat.errors import DataError
from radioplat.evaluation.masks.mask_reader import IGNORE
from radioplat.evaluation.metrics.linear_probe import LinearClassifier, choose, held_out_rows
from radioplat.spec.schema.evaluate import DecoderKind, LightDecoderConfig, MaskedConfig

_MOST_ROWS = 2**17  # maximum number of cells to fit a layer on; with 768 features these are 400 MiB in fp32
_FINER = 4  # ratio of the light decoder's output grid to the map's grid
_GROUPS = 8  # of its group normalization


def new_decoder(config: MaskedConfig, maps: int, seed: int, device: str = "cpu") -> LinearDecoder | LightDecoder:
    """Create the decoder that the spec's section requests.

    Args:
        maps: number of maps that will be added.
        device: where a light decoder is trained.
    """
    if config.decoder is DecoderKind.light:
        return LightDecoder(config.light, config.num_classes, maps, seed, device)
    return LinearDecoder(config, maps, seed)


class LinearDecoder:
    """One linear layer at the map's grid; a cell's target is the share of each class among its pixels.

    Its training is the convex problem of :mod:`radioplat.evaluation.metrics.linear_probe`, which needs no schedule.

    Attributes:
        chosen: the weight decay, chosen on training images that were held out from the fit.
    """

    def __init__(self, config: MaskedConfig, maps: int, seed: int) -> None:
        self.chosen: float | None = None
        self._config, self._seed = config, seed
        self._each = max(1, _MOST_ROWS // max(1, maps))  # number of cells to use of each map
        self._added = 0
        self._rows: list[tuple[Tensor, Tensor, Tensor]] = []  # features, targets, owner
        self._layer: LinearClassifier | None = None

    def add(self, maps: Tensor, masks: Tensor, owner: Tensor) -> None:
        """Add maps ``[B, h, w, D]``, masks uint8 ``[B, H, W]``, and the index of each one's image, int64 ``[B]``."""
        shares = cell_shares(masks, self._config.num_classes, (maps.shape[1], maps.shape[2]))
        parts = (maps.detach().flatten(1, 2).float().cpu(), shares.flatten(1, 2), owner)
        for features, targets, image in zip(*parts, strict=True):
            rows = torch.nonzero(targets.sum(1) > 0).flatten()
            if len(rows) > self._each:
                generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self._added)
                rows = rows[torch.randperm(len(rows), generator=generator)[: self._each]]
            self._rows.append((features[rows], targets[rows], image.expand(len(rows))))
            self._added += 1

    def fit(self, where: str) -> None:
        """Fit the layer to all added maps; complete images are held out to choose the weight decay.

        Args:
            where: the section in the spec, for messages.

        Raises:
            DataError: no training pixel has a class.
        """
        if not sum(len(rows[0]) for rows in self._rows):
            raise DataError("no pixel of the training masks has a class", where=f"{where}.masks_dir")
        features, targets, owner = (torch.cat(parts) for parts in zip(*self._rows, strict=True))
        owners = owner.unique()
        judges = owners[held_out_rows(torch.zeros_like(owners), self._config.held_out, self._seed)]
        held = torch.isin(owner, judges if len(judges) else owners[:1])
        if held.all():  # a single image: hold out every fifth of its cells
            held = torch.arange(len(held)) % 5 == 0
        choice = choose(features, targets, held, self._config.weight_decays, self._config.max_iter)
        self._layer, self.chosen = choice.classifier, choice.weight_decay
        self._rows = []

    def logits(self, maps: Tensor) -> Tensor:
        """Return class scores, fp32 ``[B, C, h', w']`` on the CPU; to be called after :meth:`fit`."""
        assert self._layer is not None
        return self._layer.logits(maps.detach().float().cpu()).permute(0, 3, 1, 2)


class LightDecoder:
    """A few convolutions up to four times the map's grid, trained by AdamW with a one-cycle learning rate.

    Maps are kept in bf16; if they have more than 2^18 cells together, a seeded selection of them.
    """

    def __init__(self, config: LightDecoderConfig, classes: int, maps: int, seed: int, device: str = "cpu") -> None:
        self.chosen: float | None = None
        self._config, self._classes, self._seed, self._device = config, classes, seed, device
        self._order = torch.randperm(max(1, maps), generator=torch.Generator().manual_seed(seed)).argsort()
        self._added = 0
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._net: nn.Module | None = None

    def add(self, maps: Tensor, masks: Tensor, owner: Tensor) -> None:
        """Add maps ``[B, h, w, D]``, masks uint8 ``[B, H, W]``, and the index of each one's image, int64 ``[B]``."""
        most = max(1, 2 * _MOST_ROWS // (maps.shape[1] * maps.shape[2]))
        shares = cell_shares(masks, self._classes, (_FINER * maps.shape[1], _FINER * maps.shape[2])).to(torch.bfloat16)
        kept = maps.detach().to("cpu", torch.bfloat16)
        for one, targets in zip(kept, shares, strict=True):
            if int(self._order[self._added]) < most and bool(targets.any()):
                self._kept.append((one, targets))
            self._added += 1

    @torch.inference_mode(False)
    @torch.enable_grad()
    def fit(self, where: str) -> None:
        """Train the network on the maps that were kept.

        Args:
            where: the section in the spec, for messages.

        Raises:
            DataError: no training pixel has a class.
        """
        if not self._kept:
            raise DataError("no pixel of the training masks has a class", where=f"{where}.masks_dir")
        maps, targets = (torch.stack(parts).clone() for parts in zip(*self._kept, strict=True))
        self._kept = []
        config, generator = self._config, torch.Generator().manual_seed(self._seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            net = _Net(maps.shape[-1], config.width, self._classes)
        net.standardize(maps)
        net.to(self._device).train()
        optimizer = torch.optim.AdamW(net.parameters(), config.lr, weight_decay=config.weight_decay)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, config.lr, max(2, config.steps))
        order = torch.empty(0, dtype=torch.int64)
        for _ in range(config.steps):
            while len(order) < config.batch_size:
                order = torch.cat([order, torch.randperm(len(maps), generator=generator)])
            batch, order = order[: config.batch_size], order[config.batch_size :]
            wanted = targets[batch].to(self._device).float().permute(0, 3, 1, 2)
            scores = F.log_softmax(net(maps[batch].to(self._device).float()), 1)
            loss = -(wanted * scores).sum() / wanted.sum().clamp_min(1e-12)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        self._net = net.eval().requires_grad_(False)

    def logits(self, maps: Tensor) -> Tensor:
        """Return class scores, fp32 ``[B, C, h', w']`` on the CPU; to be called after :meth:`fit`."""
        assert self._net is not None
        return self._net(maps.detach().to(self._device).float()).cpu()


class _Net(nn.Module):
    """Computes scores ``[B, C, 4h, 4w]`` from maps ``[B, h, w, D]``, which it standardizes by the training maps."""

    def __init__(self, dim: int, width: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(dim))
        self.enter = nn.Conv2d(dim, width, 1)
        self.finer = nn.Sequential(*(_Finer(width) for _ in range(_FINER.bit_length() - 1)))
        self.answer = nn.Conv2d(width, classes, 1)

    def standardize(self, maps: Tensor) -> None:
        """Set mean and scale of each feature to those of maps ``[B, h, w, D]``."""
        rows = maps.flatten(0, 2)
        rows = rows[:: max(1, len(rows) // _MOST_ROWS)].float()
        self.mean, spread = rows.mean(0), rows.std(0, correction=0)
        # A feature that hardly varies is not scaled: that would amplify rounding.
        self.scale = torch.where(spread > 1e-6 * rows.abs().mean(0).clamp_min(1e-12), spread, torch.ones_like(spread))

    def forward(self, maps: Tensor) -> Tensor:
        """Return logits of the classes, on the finer grid, of maps ``[B, h, w, D]``."""
        x = ((maps - self.mean) / self.scale).permute(0, 3, 1, 2)
        return self.answer(self.finer(self.enter(x)))


class _Finer(nn.Module):
    """Doubles the grid: bilinear, then a convolution over 3 x 3 cells."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(_GROUPS, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[B, C, 2h, 2w]`` of ``[B, C, h, w]``."""
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        return F.gelu(self.norm(self.conv(x)))


def cell_shares(masks: Tensor, classes: int, grid: tuple[int, int]) -> Tensor:
    """Return the share of each class among a cell's pixels, fp32 ``[B, h, w, C]``; ignored pixels have no class."""
    known = masks != IGNORE
    one_hot = F.one_hot(torch.where(known, masks, 0).long(), classes).float() * known[..., None]
    return F.adaptive_avg_pool2d(one_hot.permute(0, 3, 1, 2), grid).permute(0, 2, 3, 1)
