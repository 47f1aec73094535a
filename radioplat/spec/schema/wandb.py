"""Spec section ``wandb``."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from radioplat.spec.ranges import SECONDS, number


class WandbArtifacts(str, Enum):
    """What W&B gets of checkpoints, ONNX files and engines."""

    none = "none"
    reference = "reference"  # where they lie, with checksums
    upload = "upload"  # the files


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
    sync_tensorboard: bool = False  # W&B keeps the event files of train.tensorboard, too
    save_code: bool = False
    mode: str | None = None  # (+) online | offline; default: WANDB_MODE, else online
    id: str | None = None  # (+) of the run, for all tasks of the spec; unset: each task has a run of its own
    artifacts: WandbArtifacts = WandbArtifacts.reference  # (+)
    # (+) how long the end of a run waits for a server that does not answer
    finish_s: float = number(60.0, above=0, at_most=SECONDS)
