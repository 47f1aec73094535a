"""Spec sections ``cluster``, ``teachers``, ``feature_cache``: where workers and teachers run, what is kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class ClusterMode(str, Enum):
    """``local``: one process, no Ray; ``ray``: join or start a cluster; ``auto``: local for one worker, no cluster."""

    auto = "auto"
    local = "local"
    ray = "ray"


@dataclass
class ClusterConfig:
    """(+) Spec section ``cluster``."""

    mode: ClusterMode = ClusterMode.auto
    address: str | None = None  # default: RAY_ADDRESS, else a running cluster, else one of our own
    cpus_per_worker: float = 1.0
    cpus_per_decode: float = 1.0
    worker_resources: dict[str, float] = field(default_factory=dict)  # custom resources, e.g. {student_node: 1}


class Placement(str, Enum):
    """Where a teacher runs: in actors of its own, or inside each training worker."""

    spread = "spread"
    pack = "pack"
    inline = "inline"


class TeacherPrecision(str, Enum):
    """Arithmetic of a teacher's forward; ``auto`` is bf16 where the hardware has it, else fp32."""

    auto = "auto"
    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"


@dataclass
class TeacherServiceConfig:
    """(+) One entry of section ``teachers``, by the teacher's name."""

    replicas: int = 1
    num_gpus: float | None = None  # default: 1 where the cluster has GPUs, else 0
    num_cpus: float = 1.0
    precision: TeacherPrecision = TeacherPrecision.auto
    placement: Placement = Placement.spread
    compile: bool = False
    timeout_s: float = 300.0
    cache: bool = True  # whether its features go through feature_cache, where that names a folder


@dataclass
class FeatureCacheConfig:
    """(+) Spec section ``feature_cache``: teachers' answers, kept for later epochs and trials; off without ``dir``."""

    dir: str | None = None  # a folder of this machine, one that nodes share, or s3://..., gs://...
    max_bytes: int = 100_000_000_000  # of all files in it, whoever wrote them
