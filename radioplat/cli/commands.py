"""The commands: one function each, which imports and calls a task. The docstring is the command's help text."""

from __future__ import annotations

import argparse

from radioplat.common import terminal


def distill(args: argparse.Namespace) -> None:
    """Distil a student from the spec's teachers."""
    from radioplat.tasks.distill.distill import distill as run
    from radioplat.tasks.distill.show import show

    show(run(args.spec, args.overrides, progress=True))


def train(args: argparse.Namespace) -> None:
    """Fine-tune a backbone on labels."""
    from radioplat.tasks.distill.distill import train as run
    from radioplat.tasks.distill.show import show

    show(run(args.spec, args.overrides, progress=True))


def evaluate(args: argparse.Namespace) -> None:
    """Measure a trained student: kNN, fidelity, and further metrics of section evaluate."""
    from radioplat.tasks.evaluate.evaluate import evaluate as run
    from radioplat.tasks.evaluate.show import show

    show(run(args.spec, args.overrides))


def inference(args: argparse.Namespace) -> None:
    """Write features, classes or boxes of a folder of images as Parquet, from a checkpoint, ONNX file or engine."""
    from radioplat.tasks.inference.inference import inference as run
    from radioplat.tasks.inference.show import show

    with terminal.counting("images") as count:
        result = run(args.spec, args.overrides, count)
    show(result)


def export(args: argparse.Namespace) -> None:
    """Export a trained student as ONNX, or as weights for other libraries (export.format)."""
    from radioplat.spec.loading.load import load_spec
    from radioplat.tasks.export.export import export as run
    from radioplat.tasks.export.show import show_export

    show_export(run(load_spec(args.spec, args.overrides)))


def gen_trt_engine(args: argparse.Namespace) -> None:
    """Build an engine from an ONNX file."""
    from radioplat.spec.loading.load import load_spec
    from radioplat.tasks.export.engine import gen_trt_engine as run
    from radioplat.tasks.export.show import show_engine

    show_engine(run(load_spec(args.spec, args.overrides)))


def train_upsampler(args: argparse.Namespace) -> None:
    """Train FeatSharp, which upsamples the feature map of one teacher."""
    from radioplat.tasks.train_upsampler.show import show
    from radioplat.tasks.train_upsampler.train_upsampler import train_upsampler as run

    with terminal.counting("steps") as count:
        result = run(args.spec, args.overrides, count)
    show(result)


def prune(args: argparse.Namespace) -> None:
    """Prune a trained student: channels, attention heads, width, blocks."""
    from radioplat.tasks.prune.prune import prune as run
    from radioplat.tasks.prune.show import show

    show(run(args.spec, args.overrides))


def quantize(args: argparse.Namespace) -> None:
    """Quantize a trained student to INT8, FP8 or W4A8; quantize.mode=qat also trains it."""
    from radioplat.tasks.quantize.quantize import quantize as run
    from radioplat.tasks.quantize.show import show

    show(run(args.spec, args.overrides, progress=True))


def sensitivity(args: argparse.Namespace) -> None:
    """Measure how much each layer of a student loses if it is quantized, in INT8, FP8 and W4A8."""
    from radioplat.spec.loading.load import load_spec
    from radioplat.tasks.quantize.sensitivity import sensitivity as run
    from radioplat.tasks.quantize.sensitivity import show

    show(run(load_spec(args.spec, args.overrides)))


def compress(args: argparse.Namespace) -> None:
    """Run compress.stages with gates: prune, low_rank, quantize, retrain, evaluate, export, engine."""
    from radioplat.tasks.compress.compress import compress as run
    from radioplat.tasks.compress.show import show

    show(run(args.spec, args.overrides))


def low_rank(args: argparse.Namespace) -> None:
    """Replace layers of a trained student by products of narrower ones."""
    from radioplat.tasks.low_rank.low_rank import low_rank as run
    from radioplat.tasks.low_rank.show import show

    show(run(args.spec, args.overrides))


def tune(args: argparse.Namespace) -> None:
    """Search over values of spec fields with Ray Tune."""
    from radioplat.tasks.tune.show import show
    from radioplat.tasks.tune.tune import tune as run

    show(run(args.spec, args.overrides, args.space))


def plan(args: argparse.Namespace) -> None:
    """Check a spec before a run, and print its models, data, memory and length."""
    from radioplat.spec.loading.load import load_spec
    from radioplat.tasks.plan.plan import plan as run
    from radioplat.tasks.plan.show import show

    show(run(load_spec(args.spec, args.overrides), args.planned))


def index(args: argparse.Namespace) -> None:
    """Index a folder of shards or images and print a summary."""
    from radioplat.cli.show_survey import run_and_show

    run_and_show(args.folder, args.overrides)


def pack(args: argparse.Namespace) -> None:
    """Pack a folder of images, or those listed in a CSV file, into balanced shards, split into train and val."""
    from radioplat.cli.show_pack import PackProgress, show
    from radioplat.data.packing.pack import pack as run
    from radioplat.data.packing.pack import pack_options

    with PackProgress() as progress:
        packed = run(args.source, args.out, pack_options(args.overrides), progress)
    show(packed)


def show_data(args: argparse.Namespace) -> None:
    """Write an HTML page of the first global batches: views, crops on the source image, masks, rejected samples."""
    from radioplat.spec.loading.load import load_spec
    from radioplat.tasks.inspect.show_data import show_data as run

    count = [int(word) for word in args.overrides if word.isdecimal()]
    overrides = [word for word in args.overrides if not word.isdecimal()]
    terminal.say(str(run(load_spec(args.spec, overrides), *count[-1:])))


def ledger(args: argparse.Namespace) -> None:
    """Check in a run's ledger that it trained on each sample of its order exactly once."""
    from radioplat.tasks.inspect.show_ledger import show
    from radioplat.training.accounting.prove import prove_results

    show(prove_results(args.results, full=args.full))


def diagnose(args: argparse.Namespace) -> None:
    """Print why a run ended, in one line, and the evidence."""
    from radioplat.tasks.inspect.diagnose import diagnose as run
    from radioplat.tasks.inspect.show_diagnosis import show

    show(run(args.results))


def lint(args: argparse.Namespace) -> None:
    """Report every misplaced or missing Q/DQ pair of an ONNX graph."""
    from radioplat.tasks.export.show_lint import lint_and_show

    lint_and_show(args.file, args.overrides)


def profile(args: argparse.Namespace) -> None:
    """Measure an engine on this machine: latency, layers by time with their types, and what would help most."""
    from radioplat.tasks.export.show_profile import profile_and_show

    profile_and_show(args.file, args.overrides)


def default_specs(args: argparse.Namespace) -> None:
    """Print every spec field with its default."""
    from radioplat.spec.loading.load import load_spec, to_yaml

    terminal.say(to_yaml(load_spec(None, args.overrides)))


def quickstart(args: argparse.Namespace) -> None:
    """Run an example: pack images, distil two teachers, evaluate, export, build an engine."""
    from radioplat.quickstart.tour import quickstart as run

    run(args.overrides)


def migrate_tao(args: argparse.Namespace) -> None:
    """Copy a spec of TAO's with the line compat: tao, with which it trains TAO's objective."""
    from pathlib import Path

    from radioplat.tasks.migrate.migrate_tao import migrate_tao as run

    migrated = run(Path(args.file), Path(args.out) if args.out else None)
    terminal.say(f"{migrated.path}: compat: tao; see what it sets with radioplat plan -e {migrated.path}")
    for path, reason in migrated.without_effect.items():
        terminal.say(f"{path} has no effect here: {reason}")


def migrate_run(args: argparse.Namespace) -> None:
    """Bring the records of a run up to this version, and print the schema of each; or a spec, in a copy beside it."""
    from pathlib import Path

    from radioplat.tasks.migrate.migrate_run import migrate_run as run
    from radioplat.tasks.migrate.show import show_run, show_spec
    from radioplat.tasks.migrate.spec_fields import migrate_spec

    path = Path(args.path)
    if path.is_file():
        show_spec(path, migrate_spec(path))
    else:
        show_run(run(path))


def weights_inspect(args: argparse.Namespace) -> None:
    """Print the layout of checkpoint files and the backbone types they fit; for several, if they can be an ensemble."""
    from radioplat.cli.show_weights import show, show_ensemble
    from radioplat.models.weights.layouts import inspect_weights, unlike

    for file in args.files:
        show(inspect_weights(file))
    if len(args.files) > 1:
        show_ensemble(args.files, unlike(args.files))


def weights_convert(args: argparse.Namespace) -> None:
    """Write the backbone's weights of a checkpoint file as safetensors."""
    from radioplat.cli.show_weights import show
    from radioplat.models.weights.layouts import convert_weights

    show(*convert_weights(args.file, args.out))


def teachers_check(args: argparse.Namespace) -> None:
    """Run 200 images through each teacher and report anomalies."""
    from radioplat.tasks.teachers.check import check_teachers
    from radioplat.tasks.teachers.check_report import show

    show(check_teachers(args.spec, args.overrides))


def teachers_start(args: argparse.Namespace) -> None:
    """Start the teacher pools that the spec names, for use by any number of runs."""
    from radioplat.tasks.teachers.pools import start

    start(args.spec, args.overrides)


def teachers_status(args: argparse.Namespace) -> None:
    """Show the named teacher pools of the cluster."""
    from radioplat.tasks.teachers.pools import status

    status(args.address)


def teachers_stop(args: argparse.Namespace) -> None:
    """Stop named teacher pools; all of them if no name is given."""
    from radioplat.tasks.teachers.pools import stop

    stop(args.pools, args.address)
