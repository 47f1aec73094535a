"""Public names of radioplat for editors and type checkers; ``__init__.py`` imports them when they are used."""

from radioplat.errors import Problem as Problem
from radioplat.errors import RadioplatError as RadioplatError
from radioplat.errors import Stopped as Stopped
from radioplat.evaluation.inference.api import embed as embed
from radioplat.evaluation.inference.api import predict as predict
from radioplat.models.student.checkpoint import load_student as load_student
from radioplat.models.student.student import Student as Student
from radioplat.spec.loading.load import load_spec as load_spec
from radioplat.spec.schema.root import Spec as Spec
from radioplat.tasks.compress.compress import compress as compress
from radioplat.tasks.distill.distill import distill as distill
from radioplat.tasks.distill.distill import train as train
from radioplat.tasks.evaluate.evaluate import evaluate as evaluate
from radioplat.tasks.export.engine import build_engine as build_engine
from radioplat.tasks.export.export import export as export
from radioplat.tasks.fork.fork import fork as fork
from radioplat.tasks.inference.inference import inference as inference
from radioplat.tasks.lineage.lineage import lineage as lineage
from radioplat.tasks.low_rank.low_rank import low_rank as low_rank
from radioplat.tasks.pipeline.pipeline import pipeline as pipeline
from radioplat.tasks.plan.plan import plan as plan
from radioplat.tasks.prune.prune import prune as prune
from radioplat.tasks.quantize.quantize import quantize as quantize
from radioplat.tasks.quantize.sensitivity import sensitivity as sensitivity
from radioplat.tasks.replay.replay import replay as replay
from radioplat.tasks.train_upsampler.train_upsampler import train_upsampler as train_upsampler
from radioplat.tasks.tune.tune import tune as tune

__version__: str
