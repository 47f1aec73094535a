"""The spec: one tree of dataclasses with every setting of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from radioplat.spec.schema.cluster import ClusterConfig, FeatureCacheConfig, TeacherServiceConfig
from radioplat.spec.schema.compress import CompressConfig
from radioplat.spec.schema.dataset import DatasetConfig
from radioplat.spec.schema.distill import DistillConfig
from radioplat.spec.schema.engine import GenTrtEngineConfig
from radioplat.spec.schema.evaluate import EvaluateConfig, InferenceConfig
from radioplat.spec.schema.export import ExportConfig
from radioplat.spec.schema.low_rank import LowRankConfig
from radioplat.spec.schema.model import ModelConfig
from radioplat.spec.schema.prune import PruneConfig
from radioplat.spec.schema.quantize import QuantizeConfig
from radioplat.spec.schema.train import Tracker, TrainConfig
from radioplat.spec.schema.upsampler import TrainUpsamplerConfig
from radioplat.spec.schema.wandb import WandbConfig


class Compat(str, Enum):
    """The program whose defaults a spec means."""

    radioplat = "radioplat"
    tao = "tao"


@dataclass
class Spec:
    """All settings of an experiment. Names follow TAO's `radio` where TAO has the field; some defaults differ."""

    # (+) tao: fields that are left out have the values with which TAO's trainer runs
    compat: Compat = Compat.radioplat
    results_dir: str = "results"  # folder of everything that is written: checkpoints, records, reports
    wandb: WandbConfig = field(default_factory=WandbConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    prune: PruneConfig = field(default_factory=PruneConfig)
    low_rank: LowRankConfig = field(default_factory=LowRankConfig)
    quantize: QuantizeConfig = field(default_factory=QuantizeConfig)
    compress: CompressConfig = field(default_factory=CompressConfig)
    export: ExportConfig = field(default_factory=ExportConfig)
    gen_trt_engine: GenTrtEngineConfig = field(default_factory=GenTrtEngineConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)
    train_upsampler: TrainUpsamplerConfig = field(default_factory=TrainUpsamplerConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    # placement and number formats of teachers, by name
    teachers: dict[str, TeacherServiceConfig] = field(default_factory=dict)
    feature_cache: FeatureCacheConfig = field(default_factory=FeatureCacheConfig)
    # (+) fields of TAO's that the spec had and that have no effect here, each with the reason; written by the loader
    without_effect: dict[str, str] = field(default_factory=dict)

    @property
    def global_batch_size(self) -> int:
        """Samples that one optimizer step consumes, whatever the world size."""
        train = self.train
        return train.global_batch_size or self.dataset.batch_size * train.num_gpus * train.num_nodes

    def tracked_by(self, tracker: Tracker) -> bool:
        """Return whether ``tracker`` records the runs and tasks of this spec."""
        if self.train.trackers is not None:
            return tracker in self.train.trackers
        return self.wandb.enable if tracker is Tracker.wandb else self.train.tensorboard.enabled

    @property
    def world_size(self) -> int:
        """Number of training workers in the spec: GPUs per node times nodes (CPU workers without GPUs)."""
        return self.train.num_gpus * self.train.num_nodes

    @property
    def worker_bounds(self) -> tuple[int, int]:
        """Minimum and maximum number of training workers; :attr:`world_size` if the spec does not set them."""
        most = self.train.max_workers or self.world_size
        return self.train.min_workers or min(self.world_size, most), most
