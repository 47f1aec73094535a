"""``radioplat <task> -e spec.yaml key=value ...``: one small function a task, no logic."""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Callable, Sequence

from radioplat import __version__
from radioplat.cli.defect import show_defect
from radioplat.common import terminal
from radioplat.errors import Problem, RadioplatError, Stopped


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``radioplat``. Exit status: 0; 1 for a problem that was named; 2 for a wrong argument; 70 for a
    defect of ours; 75 where a run was told to stop and the same command goes on; 130 when interrupted."""
    return _run(_parser("radioplat", _TASKS), argv)


def radio(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``radio``, the name TAO users know."""
    return _run(_parser("radio", {"distill": _TASKS["distill"]}), argv)


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
    """kNN and fidelity of a trained student."""
    from radioplat.tasks.evaluate.evaluate import evaluate as run
    from radioplat.tasks.evaluate.show import show

    show(run(args.spec, args.overrides))


def export(args: argparse.Namespace) -> None:
    """A trained student as ONNX, or as weights that others load (export.format)."""
    from radioplat.spec.loading.load import load_spec
    from radioplat.tasks.export.export import export as run
    from radioplat.tasks.export.show import show_export

    show_export(run(load_spec(args.spec, args.overrides)))


def gen_trt_engine(args: argparse.Namespace) -> None:
    """An ONNX file as a TensorRT engine."""
    from radioplat.spec.loading.load import load_spec
    from radioplat.tasks.export.export import gen_trt_engine as run
    from radioplat.tasks.export.show import show_engine

    show_engine(run(load_spec(args.spec, args.overrides)))


def train_upsampler(args: argparse.Namespace) -> None:
    """Train what makes one teacher's map finer (FeatSharp)."""
    from radioplat.tasks.train_upsampler.show import show
    from radioplat.tasks.train_upsampler.train_upsampler import train_upsampler as run

    with terminal.counting("steps") as count:
        result = run(args.spec, args.overrides, count)
    show(result)


def prune(args: argparse.Namespace) -> None:
    """Make a trained student smaller: channels, attention heads, width, blocks."""
    from radioplat.tasks.prune.prune import prune as run
    from radioplat.tasks.prune.show import show

    show(run(args.spec, args.overrides))


def quantize(args: argparse.Namespace) -> None:
    """Measure a trained student's ranges and round it to INT8 or FP8; with mode qat train it on."""
    from radioplat.tasks.quantize.quantize import quantize as run
    from radioplat.tasks.quantize.show import show

    show(run(args.spec, args.overrides, progress=True))


def compress(args: argparse.Namespace) -> None:
    """compress.stages one after another, with gates: prune, low_rank, quantize, retrain, evaluate, export, engine."""
    from radioplat.tasks.compress.compress import compress as run
    from radioplat.tasks.compress.show import show

    show(run(args.spec, args.overrides))


def low_rank(args: argparse.Namespace) -> None:
    """Make a trained student's layers products of narrower ones."""
    from radioplat.tasks.low_rank.low_rank import low_rank as run
    from radioplat.tasks.low_rank.show import show

    show(run(args.spec, args.overrides))


def tune(args: argparse.Namespace) -> None:
    """Try many values of a spec's fields on Ray Tune, as a search space file says."""
    from radioplat.tasks.tune.show import show
    from radioplat.tasks.tune.tune import tune as run

    show(run(args.spec, args.overrides, args.space))


def plan(args: argparse.Namespace) -> None:
    """Check everything before a run starts, and say what it will take."""
    from radioplat.spec.loading.load import load_spec
    from radioplat.tasks.plan.plan import plan as run
    from radioplat.tasks.plan.show import show

    show(run(load_spec(args.spec, args.overrides), args.planned))


def index(args: argparse.Namespace) -> None:
    """Index a folder of shards or images and say what is in it."""
    from radioplat.cli.show_survey import run_and_show

    run_and_show(args.folder, args.overrides)


def pack(args: argparse.Namespace) -> None:
    """Pack a folder of images, or the images of a CSV file, as balanced shards, split into train and val."""
    from radioplat.cli.show_pack import PackProgress, show
    from radioplat.data.packing.pack import pack as run
    from radioplat.data.packing.pack import pack_options

    with PackProgress() as progress:
        packed = run(args.source, args.out, pack_options(args.overrides), progress)
    show(packed)


def show_data(args: argparse.Namespace) -> None:
    """One page of the first global batches: every view, its crop on the source, masks, rejects."""
    from radioplat.spec.loading.load import load_spec
    from radioplat.tasks.inspect.show_data import show_data as run

    count = [int(word) for word in args.overrides if word.isdecimal()]
    overrides = [word for word in args.overrides if not word.isdecimal()]
    terminal.say(str(run(load_spec(args.spec, overrides), *count[-1:])))


def ledger(args: argparse.Namespace) -> None:
    """Prove that a run saw each sample of its order exactly once."""
    from radioplat.tasks.inspect.show_ledger import show
    from radioplat.training.accounting.prove import prove_results

    show(prove_results(args.results))


def diagnose(args: argparse.Namespace) -> None:
    """Say why a run ended, in one line, and what shows it."""
    from radioplat.tasks.inspect.diagnose import diagnose as run
    from radioplat.tasks.inspect.show_diagnosis import show

    show(run(args.results))


def lint(args: argparse.Namespace) -> None:
    """Report every misplaced or missing Q/DQ of an ONNX graph."""
    from radioplat.tasks.export.show_lint import lint_and_show

    lint_and_show(args.file, args.overrides)


def default_specs(args: argparse.Namespace) -> None:
    """Print every field with its default."""
    from radioplat.spec.loading.load import load_spec, to_yaml

    terminal.say(to_yaml(load_spec(None, args.overrides)))


def quickstart(args: argparse.Namespace) -> None:
    """Pack real images, distil two real teachers on them, evaluate, export, build an engine."""
    from radioplat.quickstart.tour import quickstart as run

    run(args.overrides)


def weights_inspect(args: argparse.Namespace) -> None:
    """Say whose checkpoint each file is and which type it fits; and of several, whether they can be one ensemble."""
    from radioplat.cli.show_weights import show, show_ensemble
    from radioplat.models.weights.layouts import inspect_weights, unlike

    for file in args.files:
        show(inspect_weights(file))
    if len(args.files) > 1:
        show_ensemble(args.files, unlike(args.files))


def weights_convert(args: argparse.Namespace) -> None:
    """Write what a backbone takes of a file as safetensors."""
    from radioplat.cli.show_weights import show
    from radioplat.models.weights.layouts import convert_weights

    show(*convert_weights(args.file, args.out))


def doctor(args: argparse.Namespace) -> None:
    """Check driver, NCCL, shared memory, limits, ports, token, clock, disks and versions of this machine."""
    from radioplat.cli.nodes import doctor as run

    if status := run(args):
        sys.exit(status)


def nodes_watch(args: argparse.Namespace) -> None:
    """Ask the cloud for the notice that this machine is to go, and drain Ray's node on it."""
    from radioplat.cli.nodes import watch

    watch(args)


def nodes_drain(args: argparse.Namespace) -> None:
    """Give notice that a node of the cluster is to go: what runs there saves and leaves."""
    from radioplat.cli.nodes import drain

    drain(args)


def nodes_stop(args: argparse.Namespace) -> None:
    """Ask the runs below a folder whose commands live on this machine to save and leave, and wait for it."""
    from radioplat.cli.nodes import stop

    stop(args)


def teachers_check(args: argparse.Namespace) -> None:
    """Run 200 images through each teacher and say what looks wrong."""
    from radioplat.tasks.teachers.check import check_teachers
    from radioplat.tasks.teachers.check_report import show

    show(check_teachers(args.spec, args.overrides))


def teachers_start(args: argparse.Namespace) -> None:
    """Start the pools that the spec's teachers name, for any number of runs."""
    from radioplat.tasks.teachers.pools import start

    start(args.spec, args.overrides)


def teachers_status(args: argparse.Namespace) -> None:
    """Show the named pools of the cluster."""
    from radioplat.tasks.teachers.pools import status

    status(args.address)


def teachers_stop(args: argparse.Namespace) -> None:
    """Stop named pools, all of them where no name is given."""
    from radioplat.tasks.teachers.pools import stop

    stop(args.pools, args.address)


_TASKS: dict[str, Callable[[argparse.Namespace], None]] = {
    task.__name__: task
    for task in (
        distill,
        train,
        train_upsampler,
        evaluate,
        prune,
        low_rank,
        quantize,
        compress,
        export,
        gen_trt_engine,
        tune,
        plan,
        index,
        pack,
        ledger,
        diagnose,
        lint,
        default_specs,
        quickstart,
        doctor,
    )
}
_WITHOUT_SPEC = ("default_specs", "quickstart", "index", "pack", "ledger", "diagnose", "lint", "doctor")


# Tasks of two words: group -> verb -> what runs.
_GROUPS: dict[str, dict[str, Callable[[argparse.Namespace], None]]] = {
    "show": {"data": show_data},
    "weights": {"inspect": weights_inspect, "convert": weights_convert},
    "teachers": {
        "check": teachers_check,
        "start": teachers_start,
        "status": teachers_status,
        "stop": teachers_stop,
    },
    "nodes": {"watch": nodes_watch, "drain": nodes_drain, "stop": nodes_stop},
}
_GROUP_HELP = {
    "show": "See what a run works on.",
    "weights": "Look into a checkpoint file.",
    "teachers": "Teachers apart from a run.",
    "nodes": "The machines of a cluster.",
}


def _add_groups(subparsers) -> None:
    from radioplat.cli.nodes import ARGUMENTS

    for group, verbs in _GROUPS.items():
        inner = subparsers.add_parser(group, help=_GROUP_HELP[group]).add_subparsers(
            dest="verb", required=True, metavar="verb"
        )
        for verb, task in verbs.items():
            sub = inner.add_parser(verb, help=task.__doc__, description=task.__doc__)
            if group == "weights":
                kinds = "a .safetensors, .pth, .pt or .bin file"
                if verb == "convert":
                    sub.add_argument("file", help=kinds)
                    sub.add_argument("out", nargs="?", help="default: beside it, ending in .safetensors")
                else:
                    sub.add_argument("files", nargs="+", metavar="FILE", help=kinds)
            elif group == "nodes":
                ARGUMENTS[verb](sub)
            elif group == "show":
                _add_spec(sub, "N | key=value", "how many batches (2), and overrides")
            elif verb in ("status", "stop"):
                sub.add_argument("--address", help="of the cluster; default: RAY_ADDRESS, else the one that runs here")
                if verb == "stop":
                    sub.add_argument("pools", nargs="*", metavar="POOL")
            else:
                _add_spec(sub)
            sub.set_defaults(run=task)


def _add_spec(
    sub: argparse.ArgumentParser, metavar: str = "key=value", rest: str = "fields of the spec to override"
) -> None:
    sub.add_argument(
        "-e", "--experiment_spec", dest="spec", metavar="SPEC", required=True, help="the spec, a YAML file"
    )
    sub.add_argument("overrides", nargs="*", metavar=metavar, help=rest)


def _add_planned(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--task",
        dest="planned",
        choices=("distill", "train", "quantize"),
        help="the run to plan; default: train for labels without teachers, quantize where quantize.mode is qat and "
        "there is a student to quantize, else distill",
    )


def _parser(program: str, tasks: dict[str, Callable[[argparse.Namespace], None]]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        program, description=sys.modules["radioplat"].__doc__, epilog="A task's fields: radioplat default_specs."
    )
    parser.add_argument("--version", action="version", version=__version__)
    subparsers = parser.add_subparsers(dest="task", required=True, metavar="task")
    for name, task in tasks.items():
        sub = subparsers.add_parser(name, help=task.__doc__, description=task.__doc__)
        if name not in _WITHOUT_SPEC:
            _add_spec(sub)
            if name == "tune":
                sub.add_argument("--space", metavar="FILE", required=True, help="the search space, a YAML file")
            if name == "plan":
                _add_planned(sub)
            sub.set_defaults(run=task)
            continue
        if name == "doctor":
            from radioplat.cli.nodes import add_doctor

            add_doctor(sub)
            sub.set_defaults(run=task)
            continue
        if name == "index":
            sub.add_argument("folder", help="a folder of tar shards or of images")
        if name == "pack":
            sub.add_argument("source", help="a folder of images, or a CSV file with columns path, label, caption")
            sub.add_argument("out", help="where the shards go: OUT/train and OUT/val")
        if name == "lint":
            sub.add_argument("file", metavar="FILE.onnx", help="an ONNX file with QuantizeLinear and DequantizeLinear")
        if name in ("ledger", "diagnose"):
            sub.add_argument("results", help="a results folder, or one task's folder in it")
        sub.add_argument("overrides", nargs="*", metavar="key=value", help="fields of the spec to override")
        sub.set_defaults(run=task)
    if len(tasks) > 1:
        _add_groups(subparsers)
    return parser


# What the machine refuses, and what to do about it: no defect of ours.
_REFUSED = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EROFS),
        "Make room there; the same command goes on from the last checkpoint.",
    ),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "Name a path that you may read and write, or change its permissions."),
    **dict.fromkeys(
        (errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
        "Name another path: there a folder is where a file should be, or the other way round, or the name is too long.",
    ),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "Allow more open files: ulimit -n 65536."),
}


def guarded(action: Callable[[], object]) -> int:
    """Run ``action`` and show what ends it without a traceback. Returns the exit status, see docs/workers.md."""
    try:
        action()
    except RadioplatError as error:
        terminal.show_error(error)
        return 1
    except OSError as error:
        if error.errno not in _REFUSED:
            return show_defect(error)
        problem = Problem(f"{error.strerror}", str(error.filename or "disk"), _REFUSED[error.errno])
        terminal.show_error(RadioplatError(problem))
        return 1
    except Stopped as stopped:
        terminal.note(f"exit status {stopped.code}: {stopped}")
        return stopped.code
    except KeyboardInterrupt:
        terminal.note("interrupted; run the same command again to go on from the last checkpoint")
        return 130
    except Exception as error:
        if not isinstance(error, MemoryError) and type(error).__name__ != "OutOfMemoryError":  # of torch, of Ray
            return show_defect(error)
        message = " ".join(f"out of memory. {error}".split()).rstrip(".")
        terminal.show_error(RadioplatError(message, hint="Lower batch sizes or the number of workers."))
        return 1
    return 0


def _run(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    args = parser.parse_args(argv)
    return guarded(lambda: args.run(args))

