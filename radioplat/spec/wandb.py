"""Spec section ``wandb``."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class WandbConfig:
    """Weights & Biases; the key comes from the environment (``WANDB_API_KEY``) and is never written anywhere."""

    enable: bool = False
    project: str = "radioplat"
    entity: str | None = None
    group: str | None = None
    name: str | None = None
    tags: list[str] = field(default_factory=list)
    reinit: bool = False
    sync_tensorboard: bool = False
    save_code: bool = False
    mode: str | None = None  # (+) online | offline; default: WANDB_MODE, else online
