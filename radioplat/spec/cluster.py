"""Spec sections ``cluster``, ``teachers``, ``feature_cache``: where workers and teachers run, what is kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


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
    # Keep a process on each worker's node that has imported everything, so that a restart is quick: some 0.6 GB of host
    # memory for each worker.
    spare_workers: bool = False
    worker_resources: dict[str, float] = field(default_factory=dict)  # custom resources, e.g. {student_node: 1}
    # Of one hour, in any currency, to tell what teachers cost; without cpu_hour_price a GPU's price has its CPUs in it.
    gpu_hour_price: float | None = None
    cpu_hour_price: float | None = None


class Placement(str, Enum):
    """Where a teacher runs: in actors of its own (``spread`` over the nodes; ``pack`` on as few as it can;
    ``colocate``: spread, and each training worker asks those on its own node), or ``inline`` in each worker."""

    spread = "spread"
    pack = "pack"
    colocate = "colocate"
    inline = "inline"


class TeacherPrecision(str, Enum):
    """Arithmetic of a teacher's forward; ``auto`` is bf16 where the hardware has it, else fp32."""

    auto = "auto"
    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"


class Transport(str, Enum):
    """How features travel: through the ``object_store``, in host memory; by ``nixl`` from device to device. ``auto``
    is nixl where teacher and student have a GPU and the nixl package, and no feature cache is in between."""

    auto = "auto"
    object_store = "object_store"
    nixl = "nixl"


@dataclass
class TeacherServiceConfig:
    """(+) One entry of section ``teachers``, by the teacher's name."""

    replicas: Any = 1  # n, or [least, most]: one more while requests queue up, one less while none come
    num_gpus: float | None = None  # default: 1 where the cluster has GPUs, else 0
    num_cpus: float = 1.0
    resources: dict[str, float] = field(default_factory=dict)  # custom ones, of each replica: {radioplat_teacher: 1}
    precision: TeacherPrecision = TeacherPrecision.auto
    placement: Placement = Placement.spread
    transport: Transport = Transport.auto
    compile: bool = False
    # Samples of a forward: requests of several students are run together, and what is missing is padded, so that the
    # shape is always the same. Default: dataset.batch_size.
    max_batch: int | None = None
    timeout_s: float = 300.0  # a forward that takes longer hangs
    start_timeout_s: float = 600.0  # for the replicas' places on the cluster and for loading their weights
    recovery_timeout_s: float = 1800.0  # how long students hold for a replica whose node was lost
    cache: bool = True  # whether its features go through feature_cache, where that names a folder
    pool: str | None = None  # a pool of this name outlives the run and serves others too; see `radioplat teachers`

    @property
    def bounds(self) -> tuple[int, int]:
        """Fewest and most replicas."""
        if isinstance(self.replicas, int):
            return self.replicas, self.replicas
        least, most = self.replicas
        return int(least), int(most)


@dataclass
class FeatureCacheConfig:
    """(+) Spec section ``feature_cache``: teachers' answers, kept for later epochs and trials; off without ``dir``."""

    dir: str | None = None  # a folder of this machine, one that nodes share, or s3://..., gs://...
    max_bytes: int = 100_000_000_000  # of all files in it, whoever wrote them
