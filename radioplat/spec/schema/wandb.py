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

    enable: bool = False  # TAO's switch of train.trackers: wandb
    project: str = "radioplat"  # W&B project
    entity: str | None = None  # W&B team or user; unset: the key's own
    group: str | None = None  # W&B group of the run
    name: str | None = None  # name of the run; unset: by W&B
    tags: list[str] = field(default_factory=list)  # tags of the run
    reinit: bool = False  # finish a W&B run that is open in this process, first
    sync_tensorboard: bool = False  # W&B also stores the event files of tracker tensorboard
    save_code: bool = False  # W&B stores the program's source
    mode: str | None = None  # (+) online | offline; default: WANDB_MODE, else online
    id: str | None = None  # (+) W&B run id shared by all tasks of the spec; unset: one run per task
    artifacts: WandbArtifacts = WandbArtifacts.reference  # (+)
    # (+) seconds that the end of a run waits for a server that does not answer
    finish_s: float = number(60.0, above=0, at_most=SECONDS)
