"""A training loop as one writes it by hand, with torch and timm alone; it imports nothing of radioplat.

fp32 weights, bf16 autocast, fused AdamW, ``torch.compile`` in its default mode, DistributedDataParallel for several
ranks without a sum over ranks while gradients accumulate, pinned memory and a stream for copies of the next batch.
"""

from __future__ import annotations

import contextlib
from typing import Any

import timm
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

HIDDEN = 1024  # width of the heads' hidden layer
Targets = list[tuple[torch.Tensor, torch.Tensor]]  # summary [B, D] and map [B, h, w, D] of each teacher


class Taught(nn.Module):
    """A student with a head of two layers for the summary and the map of each teacher; without widths no heads."""

    def __init__(self, student: dict[str, Any], widths: list[int]) -> None:
        super().__init__()
        self.student = timm.create_model(**student, num_classes=0)
        own = self.student.embed_dim
        self.heads = nn.ModuleList(nn.ModuleList([_head(own, width), _head(own, width)]) for width in widths)

    def forward(self, images: torch.Tensor, targets: Targets) -> torch.Tensor:
        """Return the loss, fp32, of uint8 images ``[B, 3, H, W]``."""
        summary, positions = features(self.student, images)
        if not self.heads:
            return summary.float().square().mean() + positions.float().square().mean()
        loss = torch.zeros((), device=images.device)
        for (to_summary, to_map), (vector, grid) in zip(self.heads, targets, strict=True):
            side = round(positions.shape[1] ** 0.5)
            if grid.shape[1] != side:
                grid = F.adaptive_avg_pool2d(grid.permute(0, 3, 1, 2).float(), side).permute(0, 2, 3, 1)
            wanted, mine = grid.flatten(1, 2).float(), to_map(positions).float()
            loss = loss + 1 - F.cosine_similarity(to_summary(summary).float(), vector.float(), dim=-1).mean()
            loss = loss + 0.9 * (1 - F.cosine_similarity(mine, wanted, dim=-1).mean())
            loss = loss + 0.1 * F.smooth_l1_loss(mine, wanted)
        return loss


def _head(width_in: int, width_out: int) -> nn.Module:
    layers = nn.Linear(width_in, HIDDEN), nn.LayerNorm(HIDDEN), nn.GELU(), nn.Linear(HIDDEN, width_out)
    return nn.Sequential(*layers)


def features(model: nn.Module, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the class token, or the mean if there is none, and the map's positions ``[B, N, D]``."""
    tokens = model.forward_features((images.float() - 127.5) / 127.5)
    first = model.num_prefix_tokens
    return tokens[:, 0] if first else tokens.mean(1), tokens[:, first:]


class Loop:
    """Optimizer steps on images and targets in memory.

    Args:
        student: arguments of ``timm.create_model``.
        widths: of the teachers' features; empty for a student alone.
        teachers: arguments of ``timm.create_model`` and pixels a side, if the loop computes them itself.
        alone: whether ranks do not exchange gradients.
        host: whether images and targets begin in pinned host memory.
        low: compute in bf16.
    """

    def __init__(
        self, device: torch.device, student: dict[str, Any], size: int, widths: list[int], sides: list[int],
        batch: int, micro_batches: int, low: bool, compiles: bool, host: bool = False,
        teachers: list[tuple[dict[str, Any], int]] | None = None, alone: bool = False,
    ) -> None:  # fmt: skip
        self.device, self.micro_batches = device, micro_batches
        self._narrow = torch.autocast(device.type, torch.bfloat16, enabled=low)
        self._cuda = device.type == "cuda"
        self._ranks = not alone and dist.is_initialized() and dist.get_world_size() > 1
        with device:  # random weights are drawn there: a core would take seconds for a large model
            module: nn.Module = Taught(student, widths).train()
            made_teachers = [timm.create_model(**arguments, num_classes=0).eval() for arguments, _ in teachers or []]
        self.optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=self._cuda or None)
        self._parameters = list(module.parameters())
        self.module = (
            nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view=True) if self._ranks else module
        )
        self._run = torch.compile(self.module, dynamic=False) if compiles else self.module
        self._teachers, asked = [], teachers or []
        for model in made_teachers:
            model = model.requires_grad_(False).to(torch.bfloat16 if low else torch.float32)
            self._teachers.append((model, torch.compile(features, dynamic=False) if compiles else features))
        shapes = [size, *(pixels for _, pixels in asked)]
        place = torch.device("cpu") if host else device
        drawn = [[torch.randint(0, 256, (batch, 3, s, s), dtype=torch.uint8) for s in shapes] for _ in range(4)]
        made: Targets = []
        if not asked:
            made = [(torch.randn(batch, w), torch.randn(batch, s, s, w)) for w, s in zip(widths, sides, strict=True)]
        low_made = [tuple(t.bfloat16() for t in pair) for pair in made]
        self._ready = [_placed((images, low_made), place, host and self._cuda) for images in drawn]
        self._side = torch.cuda.Stream(device) if self._cuda else None
        self._next, self._count = self._fetch(0), 0

    def step(self) -> None:
        """Run one optimizer step."""
        for place in range(self.micro_batches):
            images, targets = self._take()
            last = place == self.micro_batches - 1
            quiet = self.module.no_sync() if self._ranks and not last else contextlib.nullcontext()
            with quiet:
                with self._narrow:
                    if self._teachers:
                        targets = self._answers(images[1:])
                    loss = self._run(images[0], targets)
                (loss / self.micro_batches).backward()
        nn.utils.clip_grad_norm_(self._parameters, 2.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _answers(self, images: list[torch.Tensor]) -> Targets:
        answers = []
        with torch.no_grad():
            for (model, run), view in zip(self._teachers, images, strict=True):
                summary, positions = run(model, view)
                side = round(positions.shape[1] ** 0.5)
                answers.append((summary, positions.unflatten(1, (side, side))))
        return answers

    def _take(self) -> Any:
        """Return the batch whose copy has begun, and begin to copy the next one."""
        if self._side is not None:
            torch.cuda.current_stream().wait_stream(self._side)
        taken, self._count = self._next, self._count + 1
        self._next = self._fetch(self._count)
        return taken

    def _fetch(self, number: int) -> Any:
        batch = self._ready[number % len(self._ready)]
        if self._side is None:
            return _placed(batch, self.device, False)
        with torch.cuda.stream(self._side):
            copied = _placed(batch, self.device, False)
        _record(copied, torch.cuda.current_stream())
        return copied


def _placed(value: Any, device: torch.device, pinned: bool) -> Any:
    if isinstance(value, torch.Tensor):
        return value.pin_memory() if pinned else value.to(device, non_blocking=True)
    return type(value)(_placed(part, device, pinned) for part in value)


def _record(value: Any, stream: Any) -> None:
    if isinstance(value, torch.Tensor):
        value.record_stream(stream)
    else:
        for part in value:
            _record(part, stream)
