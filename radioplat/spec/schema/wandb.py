"""Spec section ``wandb``."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from radioplat.spec.ranges import SECONDS, number


class WandbArtifacts(str, Enum):
    """Form in which checkpoints, ONNX files and engines are recorded in W&B."""

    none = "none"
    reference = "reference"  # their location, with checksums
    upload = "upload"  # upload the files


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
    sync_tensorboard: bool = False  # W&B also stores the event files of train.tensorboard
    save_code: bool = False
    mode: str | None = None  # (+) online | offline; default: WANDB_MODE, else online
    id: str | None = None  # (+) W&B run id shared by all tasks of the spec; unset: one run per task
    artifacts: WandbArtifacts = WandbArtifacts.reference  # (+)
    # (+) seconds that the end of a run waits for a server that does not answer
    finish_s: float = number(60.0, above=0, at_most=SECONDS)
