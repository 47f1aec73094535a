"""Spec sections ``cluster``, ``teachers`` and ``feature_cache``: placement of workers and teachers, the cache."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from radioplat.spec.ranges import SECONDS, number


class ClusterMode(str, Enum):
    """Where the processes of a run are."""

    auto = "auto"  # ray for several workers or on a cluster, else local
    local = "local"  # one process
    ray = "ray"  # join a cluster, or start one on this machine


@dataclass
class ClusterConfig:
    """(+) Spec section ``cluster``."""

    mode: ClusterMode = ClusterMode.auto
    # nodes may be taken away at any time: checkpoints by time, fewer of them kept, more restarts. Unset: what Ray's
    # labels of the nodes say
    spot: bool | None = None
    # address of the Ray cluster; default: RAY_ADDRESS, else a running cluster, else a new one
    address: str | None = None
    cpus_per_worker: float = number(1.0, at_least=0)  # CPUs that Ray reserves for each training worker
    cpus_per_decode: float = number(1.0, at_least=0)  # CPUs that Ray reserves for each process that decodes images
    spare_workers: bool = False  # no effect; the next release removes it
    worker_resources: dict[str, float] = number(dict, above=0)  # custom resources, e.g. {student_node: 1}
    # Price of an hour, in any currency, to compute the cost of teachers; without cpu_hour_price the GPU's price
    # includes its CPUs.
    gpu_hour_price: float | None = number(None, at_least=0, hint="Leave it out where it is not known.")
    # price of an hour of one CPU
    cpu_hour_price: float | None = number(None, at_least=0, hint="Leave it out where it is not known.")


class Placement(str, Enum):
    """Where a teacher computes."""

    spread = "spread"  # in actors, on as many nodes as possible
    pack = "pack"  # in actors, on as few nodes as possible
    colocate = "colocate"  # in actors, as spread, and each training worker calls those on its own node
    inline = "inline"  # in each training worker


class TeacherPrecision(str, Enum):
    """Number format of a teacher's forward pass."""

    auto = "auto"  # bf16 if the hardware supports it, else fp32
    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"


class Transport(str, Enum):
    """Way of features from teachers to students."""

    auto = "auto"  # nixl if teacher and student have a GPU and the nixl package, and no feature cache is used
    object_store = "object_store"  # through Ray's object store in host memory
    nixl = "nixl"  # from device to device


AUTO = "auto"  # value of teachers.<name>.replicas
RECENT_BYTES = 268_435_456  # teachers.<name>.recent_bytes of a named pool


@dataclass
class TeacherServiceConfig:
    """(+) One entry of section ``teachers``, by the teacher's name."""

    # n; [min, max]: a replica is added while requests queue, and removed while none arrive; auto: as many as keep up
    # with the students and have a GPU, decided before the start; on CPUs one
    replicas: Any = 1
    # GPUs that Ray reserves for each replica; default: 1 where the cluster has GPUs, else 0
    num_gpus: float | None = number(None, at_least=0)
    num_cpus: float = number(1.0, at_least=0)  # CPUs that Ray reserves for each replica
    resources: dict[str, float] = number(dict, above=0)  # custom resources of each replica, e.g. {radioplat_teacher: 1}
    precision: TeacherPrecision = TeacherPrecision.auto
    placement: Placement = Placement.spread
    transport: Transport = Transport.auto
    compile: bool = False  # run the teacher through torch.compile
    # Samples of a forward pass: requests of several students are batched together and padded to this size. Default:
    # dataset.batch_size.
    max_batch: int | None = number(None, at_least=1)
    timeout_s: float = number(300.0, above=0, at_most=SECONDS)  # a longer forward pass counts as hanging
    # time limit for placing the replicas on the cluster and loading their weights
    start_timeout_s: float = number(600.0, above=0, at_most=SECONDS)
    # how long students wait for a replica whose node was lost
    recovery_timeout_s: float = number(1800.0, above=0, at_most=SECONDS)
    cache: bool = True  # use feature_cache for this teacher, if the run has one
    pool: str | None = None  # name of a pool that outlives the run and is shared with others; see `radioplat teachers`
    # bytes of answers that a replica keeps in host memory: equal requests, of several runs or of workers that were
    # restarted, are computed once. 0: none; unset: 268435456 (256 MiB) for a named pool and with
    # distill.placement: spread, else none
    recent_bytes: int | None = number(None, at_least=0)

    @property
    def remembered_bytes(self) -> int:
        """``recent_bytes``, or what it is where it is not set."""
        if self.recent_bytes is not None:
            return self.recent_bytes
        return RECENT_BYTES if self.pool else 0

    @property
    def remembers(self) -> bool:
        """Whether replicas keep their last answers for equal requests."""
        return self.remembered_bytes > 0

    @property
    def bounds(self) -> tuple[int, int]:
        """Minimum and maximum number of replicas; of ``auto``, which a start replaces for a run on GPUs, one."""
        if self.replicas == AUTO:
            return 1, 1
        if isinstance(self.replicas, int):
            return self.replicas, self.replicas
        least, most = self.replicas
        return int(least), int(most)


@dataclass
class FeatureCacheConfig:
    """(+) Spec section ``feature_cache``: store teachers' features for later epochs and trials."""

    # use a cache; unset: a run that shows the same views again uses one, and so does a spec that names dir
    enabled: bool | None = None
    # a local folder, a folder shared by the nodes, or s3://..., gs://...; unset: in the run's results folder
    dir: str | None = None
    # limit on the size of all files in it, of all runs
    max_bytes: int = number(100_000_000_000, at_least=1, hint="To keep nothing, set feature_cache.enabled=false.")
    # new features are written after so long, or 64 MiB; what is not yet written is lost if a worker is killed; 0: the
    # features of each micro-batch are a file, for short runs
    write_interval_s: float = number(60.0, at_least=0, at_most=SECONDS)

    @property
    def folder(self) -> str | None:
        """``dir``; None if the cache is disabled."""
        return None if self.enabled is False else self.dir
