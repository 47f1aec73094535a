"""Spec sections ``cluster``, ``teachers``, ``feature_cache``: where workers and teachers run, what is kept."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from radioplat.spec.ranges import SECONDS, number


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
    cpus_per_worker: float = number(1.0, at_least=0)
    cpus_per_decode: float = number(1.0, at_least=0)
    spare_workers: bool = False  # no effect; the next release removes it
    worker_resources: dict[str, float] = number(dict, above=0)  # custom resources, e.g. {student_node: 1}
    # Of one hour, in any currency, to tell what teachers cost; without cpu_hour_price a GPU's price has its CPUs in it.
    gpu_hour_price: float | None = number(None, at_least=0, hint="Leave it out where it is not known.")
    cpu_hour_price: float | None = number(None, at_least=0, hint="Leave it out where it is not known.")


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
    num_gpus: float | None = number(None, at_least=0)  # default: 1 where the cluster has GPUs, else 0
    num_cpus: float = number(1.0, at_least=0)
    resources: dict[str, float] = number(dict, above=0)  # custom ones, of each replica: {radioplat_teacher: 1}
    precision: TeacherPrecision = TeacherPrecision.auto
    placement: Placement = Placement.spread
    transport: Transport = Transport.auto
    compile: bool = False
    # Samples of a forward: requests of several students are run together, and what is missing is padded, so that the
    # shape is always the same. Default: dataset.batch_size.
    max_batch: int | None = number(None, at_least=1)
    timeout_s: float = number(300.0, above=0, at_most=SECONDS)  # a forward that takes longer hangs
    # for the replicas' places on the cluster and for loading their weights
    start_timeout_s: float = number(600.0, above=0, at_most=SECONDS)
    # how long students hold for a replica whose node was lost
    recovery_timeout_s: float = number(1800.0, above=0, at_most=SECONDS)
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
    # of all files in it, whoever wrote them
    max_bytes: int = number(100_000_000_000, at_least=1, hint="To keep nothing, leave feature_cache.dir empty.")
