"""The commands: one function each, which imports and calls a task. The docstring is the command's help text.

Arguments are read before the task is imported, see :mod:`radioplat.cli.arguments`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from radioplat.cli.arguments import AUTO, RUN, existing, read_spec, say_next, say_next_of_run
from radioplat.common import terminal


def distill(args: argparse.Namespace) -> None:
    """Distil a student from the spec's teachers."""
    spec = read_spec(args)
    from radioplat.tasks.distill.distill import distill as run
    from radioplat.tasks.distill.show import show

    show(run(spec, progress=True))
    say_next_of_run(args, spec)


def train(args: argparse.Namespace) -> None:
    """Fine-tune a backbone on labels."""
    spec = read_spec(args)
    from radioplat.tasks.distill.distill import train as run
    from radioplat.tasks.distill.show import show

    show(run(spec, progress=True))
    say_next_of_run(args, spec)


def evaluate(args: argparse.Namespace) -> None:
    """Measure a trained student: kNN, fidelity, and further metrics of section evaluate."""
    spec = read_spec(args)
    from radioplat.tasks.evaluate.evaluate import evaluate as run
    from radioplat.tasks.evaluate.show import show

    show(run(spec))
    say_next(args, "export")


def inference(args: argparse.Namespace) -> None:
    """Write features, classes or boxes of a folder of images as Parquet, from a checkpoint, ONNX file or engine."""
    spec = read_spec(args)
    from radioplat.tasks.inference.inference import inference as run
    from radioplat.tasks.inference.show import show

    with terminal.counting("images") as count:
        result = run(spec, progress=count)
    show(result)


def export(args: argparse.Namespace) -> None:
    """Export a trained student as ONNX, or as weights for other libraries (export.format)."""
    spec = read_spec(args)
    from radioplat.tasks.export.export import export as run
    from radioplat.tasks.export.show import show_export

    show_export(run(spec))
    if spec.export.format.value == "onnx":
        say_next(args, "gen_trt_engine")


def gen_trt_engine(args: argparse.Namespace) -> None:
    """Build an engine from an ONNX file."""
    spec = read_spec(args)
    from radioplat.tasks.export.engine import build_engine as run
    from radioplat.tasks.export.show import show_engine

    show_engine(run(spec))


def train_upsampler(args: argparse.Namespace) -> None:
    """Train FeatSharp, which upsamples the feature map of one teacher."""
    spec = read_spec(args)
    from radioplat.tasks.train_upsampler.show import show
    from radioplat.tasks.train_upsampler.train_upsampler import train_upsampler as run

    with terminal.counting("steps") as count:
        result = run(spec, progress=count)
    show(result)


def prune(args: argparse.Namespace) -> None:
    """Prune a trained student: channels, attention heads, width, blocks."""
    spec = read_spec(args)
    from radioplat.tasks.prune.prune import prune as run
    from radioplat.tasks.prune.show import show

    show(run(spec))


def quantize(args: argparse.Namespace) -> None:
    """Quantize a trained student to INT8, FP8 or W4A8; quantize.mode=qat also trains it."""
    spec = read_spec(args)
    from radioplat.tasks.quantize.quantize import quantize as run
    from radioplat.tasks.quantize.show import show

    show(run(spec, progress=True))


def sensitivity(args: argparse.Namespace) -> None:
    """Measure how much each layer of a student loses if it is quantized, in INT8, FP8 and W4A8."""
    spec = read_spec(args)
    from radioplat.tasks.quantize.sensitivity import sensitivity as run
    from radioplat.tasks.quantize.sensitivity import show

    show(run(spec))


def compress(args: argparse.Namespace) -> None:
    """Run compress.stages with gates: prune, low_rank, quantize, retrain, evaluate, export, engine."""
    spec = read_spec(args)
    from radioplat.tasks.compress.compress import compress as run
    from radioplat.tasks.compress.show import show

    show(run(spec))


def low_rank(args: argparse.Namespace) -> None:
    """Replace layers of a trained student by products of narrower ones."""
    spec = read_spec(args)
    from radioplat.tasks.low_rank.low_rank import low_rank as run
    from radioplat.tasks.low_rank.show import show

    show(run(spec))


def tune(args: argparse.Namespace) -> None:
    """Search over values of spec fields with Ray Tune."""
    spec = read_spec(args)
    from radioplat.tasks.tune.show import show
    from radioplat.tasks.tune.tune import tune as run

    show(run(spec, space=args.space))


def plan(args: argparse.Namespace) -> int:
    """Check a spec before a run, and print its models, data, memory and length."""
    spec = read_spec(args)
    from radioplat.tasks.plan.plan import plan as run
    from radioplat.tasks.plan.show import show

    task = None if args.verb == AUTO else args.verb
    can_start = show(run(spec, task=task, space=getattr(args, "space", None)))
    if can_start and not getattr(args, "space", None):
        from radioplat.tasks.plan.next_task import next_task

        say_next(args, task or next_task(spec)[0])
    return 0 if can_start else 1


def index(args: argparse.Namespace) -> None:
    """Index a folder of shards or images and print a summary."""
    folder = existing(args.folder, "Name a folder of shards or of images.")
    from radioplat.cli.show_survey import run_and_show

    run_and_show(folder, args.overrides)


def pack(args: argparse.Namespace) -> None:
    """Pack a folder of images, or those listed in a CSV file, into balanced shards, split into train and val."""
    source = existing(args.source, "Name a folder of images, or a CSV file.")
    from radioplat.cli.show_pack import PackProgress, show
    from radioplat.data.packing.pack import pack as run
    from radioplat.data.packing.pack import pack_options

    with PackProgress() as progress:
        packed = run(source, args.out, pack_options(args.overrides), progress)
    show(packed)


def show_data(args: argparse.Namespace) -> None:
    """Write an HTML page of the first global batches: views, crops on the source image, masks, rejected samples."""
    count = [int(word) for word in args.overrides if word.isdecimal()]
    args.overrides = [word for word in args.overrides if not word.isdecimal()]
    spec = read_spec(args)
    from radioplat.tasks.inspect.show_data import show_data as run

    terminal.say(str(run(spec, *count[-1:])))


def lint(args: argparse.Namespace) -> None:
    """Report every misplaced or missing Q/DQ pair of an ONNX graph."""
    from radioplat.tasks.export.show_lint import lint_and_show

    lint_and_show(args.file, args.overrides)


def profile(args: argparse.Namespace) -> None:
    """Measure an engine on this machine: latency, layers by time with their types, and what would help most."""
    from radioplat.tasks.export.show_profile import profile_and_show

    profile_and_show(args.file, args.overrides)


def default_specs(args: argparse.Namespace) -> None:
    """Print every spec field with its default and its meaning."""
    from radioplat.spec.loading.load import load_spec
    from radioplat.spec.reference.commented_yaml import commented_yaml
    from radioplat.spec.reference.json_schema import json_schema

    text = (
        json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"
        if args.json_schema
        else commented_yaml(load_spec(None, args.overrides))
    )
    sys.stdout.write(text)  # not wrapped: programs read it


def explain(args: argparse.Namespace) -> None:
    """Print what a spec field means, its type, default and values; of a section, the table of its fields."""
    from radioplat.cli.show_field import explain as run

    for field in args.fields:
        run(field)


def quickstart(args: argparse.Namespace) -> None:
    """Run an example: pack images, distil two teachers, evaluate, export, build an engine."""
    from radioplat.quickstart.tour import quickstart as run

    run(args.overrides)


def demo(args: argparse.Namespace) -> int:
    """Kill processes of a run again and again, and compare its students with those of an undisturbed run."""
    from radioplat.quickstart.demonstration import demonstrate

    names = ("kills", "seconds", "students", "seed", "steps", "folder")
    return demonstrate({name: getattr(args, name) for name in names})


def init(args: argparse.Namespace) -> None:
    """Write specs, search spaces, job scripts and cluster files into a folder, to start from."""
    from radioplat.tasks.init.init import init as run

    started = run(args.folder, args.spec)
    terminal.say(f"{started.folder}: {started.files} files in specs, tune_spaces, jobs and clusters")
    spec = started.spec.relative_to(started.folder)
    terminal.say(f"next: cd {started.folder}, edit {spec}, then radioplat plan -e {spec}")


def migrate_tao(args: argparse.Namespace) -> None:
    """Print a spec of TAO's with the line compat: tao, with which it trains TAO's objective, or write it."""
    from radioplat.tasks.migrate.migrate_tao import migrate_tao as run

    migrated = run(Path(args.file))
    from radioplat.tasks.migrate.show import show_written

    show_written(migrated, args.out)


def migrate_lightly(args: argparse.Namespace) -> None:
    """Print the spec for a call of lightly_train.pretrain or train, from a script, YAML or words, or write it."""
    from radioplat.tasks.migrate.migrate_lightly import migrate_lightly as run

    migrated = run(args.words)
    from radioplat.tasks.migrate.show import show_written

    show_written(migrated, args.out)


def migrate_run(args: argparse.Namespace) -> None:
    """Bring the records of a run up to this version, and print the schema of each; or a spec, in a copy beside it."""
    path = Path(existing(args.path, f"{RUN[:-1]}, or a spec."))
    from radioplat.tasks.migrate.migrate_run import migrate_run as run
    from radioplat.tasks.migrate.show import show_run, show_spec
    from radioplat.tasks.migrate.spec_fields import migrate_spec

    if path.is_file():
        show_spec(path, migrate_spec(path))
    else:
        show_run(run(path))


def teachers_check(args: argparse.Namespace) -> None:
    """Run 200 images through each teacher and report anomalies."""
    spec = read_spec(args)
    from radioplat.tasks.teachers.check import check_teachers
    from radioplat.tasks.teachers.check_report import show

    show(check_teachers(spec))


def teachers_list(args: argparse.Namespace) -> None:
    """Print models that can teach: type, licence, parameters, size, normalisation, and how weights are fetched."""
    from radioplat.tasks.teachers.known import known_teachers
    from radioplat.tasks.teachers.show_known import show

    show(known_teachers(args.pattern))


def teachers_start(args: argparse.Namespace) -> None:
    """Start the teacher pools that the spec names, for use by any number of runs."""
    spec = read_spec(args)
    from radioplat.tasks.teachers.pools import start

    start(spec)


def teachers_status(args: argparse.Namespace) -> None:
    """Show the named teacher pools of the cluster."""
    from radioplat.tasks.teachers.pools import status

    status(args.address)


def teachers_stop(args: argparse.Namespace) -> None:
    """Stop named teacher pools; all of them if no name is given."""
    from radioplat.tasks.teachers.pools import stop

    stop(args.pools, args.address)
