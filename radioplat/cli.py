"""``radioplat <task> -e spec.yaml key=value ...``: one small function a task, no logic."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from radioplat import __version__, terminal
from radioplat.errors import RadioplatError


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``radioplat``. Exit status: 0, 1 for a problem that was named, 130 when interrupted."""
    return _run(_parser("radioplat", _TASKS), argv)


def radio(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``radio``, the name TAO users know."""
    return _run(_parser("radio", {"distill": _TASKS["distill"]}), argv)


def distill(args: argparse.Namespace) -> None:
    """Distil a student from the spec's teachers."""
    from radioplat.distill.run import distill as run

    _show_run(run(args.spec, args.overrides, progress=True))


def train(args: argparse.Namespace) -> None:
    """Fine-tune a backbone on labels."""
    from radioplat.distill.run import train as run

    _show_run(run(args.spec, args.overrides, progress=True))


def evaluate(args: argparse.Namespace) -> None:
    """kNN and fidelity of a trained student."""
    from radioplat.evaluate.run import evaluate as run
    from radioplat.evaluate.show import show

    show(run(args.spec, args.overrides))


def export(args: argparse.Namespace) -> None:
    """A trained student as ONNX."""
    from radioplat.export.run import export as run
    from radioplat.export.show import show_onnx
    from radioplat.spec.load import load_spec

    show_onnx(run(load_spec(args.spec, args.overrides)))


def gen_trt_engine(args: argparse.Namespace) -> None:
    """An ONNX file as a TensorRT engine."""
    from radioplat.export.run import gen_trt_engine as run
    from radioplat.export.show import show_engine
    from radioplat.spec.load import load_spec

    show_engine(run(load_spec(args.spec, args.overrides)))


def plan(args: argparse.Namespace) -> None:
    """Check everything before a run starts, and say what it will take."""
    from radioplat.distill.plan import plan as run
    from radioplat.distill.show_plan import show
    from radioplat.spec.load import load_spec

    show(run(load_spec(args.spec, args.overrides)))


def index(args: argparse.Namespace) -> None:
    """Index a folder of shards or images and say what is in it."""
    from radioplat.show_survey import run_and_show

    run_and_show(args.folder, args.overrides)


def pack(args: argparse.Namespace) -> None:
    """Pack a folder of images, or the images of a CSV file, as balanced shards, split into train and val."""
    from radioplat.data.pack import pack as run
    from radioplat.data.pack import pack_options
    from radioplat.show_pack import PackProgress, show

    with PackProgress() as progress:
        packed = run(args.source, args.out, pack_options(args.overrides), progress)
    show(packed)


def show_data(args: argparse.Namespace) -> None:
    """One page of the first global batches: every view, its crop on the source, masks, rejects."""
    from radioplat.distill.show_data import show_data as run
    from radioplat.spec.load import load_spec

    count = [int(word) for word in args.overrides if word.isdecimal()]
    overrides = [word for word in args.overrides if not word.isdecimal()]
    terminal.say(str(run(load_spec(args.spec, overrides), *count[-1:])))


def ledger(args: argparse.Namespace) -> None:
    """Prove that a run saw each sample of its order exactly once."""
    from radioplat.distill.prove import prove_results
    from radioplat.distill.show_proof import show

    show(prove_results(args.results))


def default_specs(args: argparse.Namespace) -> None:
    """Print every field with its default."""
    from radioplat.spec.load import load_spec, to_yaml

    terminal.say(to_yaml(load_spec(None, args.overrides)))


def quickstart(args: argparse.Namespace) -> None:
    """Pack real images, distil two real teachers on them, evaluate, export, build an engine."""
    from radioplat.quickstart.run import quickstart as run

    run(args.overrides)


_TASKS: dict[str, Callable[[argparse.Namespace], None]] = {
    task.__name__: task
    for task in (distill, train, evaluate, export, gen_trt_engine, plan, index, pack, ledger, default_specs, quickstart)
}
_WITHOUT_SPEC = ("default_specs", "quickstart", "index", "pack", "ledger")


def _parser(program: str, tasks: dict[str, Callable[[argparse.Namespace], None]]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        program, description=sys.modules["radioplat"].__doc__, epilog="A task's fields: radioplat default_specs."
    )
    parser.add_argument("--version", action="version", version=__version__)
    subparsers = parser.add_subparsers(dest="task", required=True, metavar="task")
    for name, task in tasks.items():
        sub = subparsers.add_parser(name, help=task.__doc__, description=task.__doc__)
        if name not in _WITHOUT_SPEC:
            sub.add_argument(
                "-e", "--experiment_spec", dest="spec", metavar="SPEC", required=True, help="the spec, a YAML file"
            )
        if name == "index":
            sub.add_argument("folder", help="a folder of tar shards or of images")
        if name == "pack":
            sub.add_argument("source", help="a folder of images, or a CSV file with columns path, label, caption")
            sub.add_argument("out", help="where the shards go: OUT/train and OUT/val")
        if name == "ledger":
            sub.add_argument("results", help="a results folder, or one task's folder in it")
        sub.add_argument("overrides", nargs="*", metavar="key=value", help="fields of the spec to override")
        sub.set_defaults(run=task)
    if "distill" in tasks and len(tasks) > 1:
        _add_show(subparsers)
    return parser


def _add_show(subparsers) -> None:
    shows = subparsers.add_parser("show", help="See what a run works on.").add_subparsers(required=True, metavar="what")
    data = shows.add_parser("data", help=show_data.__doc__, description=show_data.__doc__)
    data.add_argument("-e", "--experiment_spec", dest="spec", metavar="SPEC", required=True, help="the spec")
    data.add_argument("overrides", nargs="*", metavar="N | key=value", help="how many batches (2), and overrides")
    data.set_defaults(run=show_data)


def guarded(action: Callable[[], object]) -> int:
    """Run ``action``; a problem that was named is shown without a traceback. Returns the exit status."""
    try:
        action()
    except RadioplatError as error:
        terminal.show_error(error)
        return 1
    except KeyboardInterrupt:
        terminal.note("interrupted; run the same command again to go on from the last checkpoint")
        return 130
    return 0


def _run(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    args = parser.parse_args(argv)
    return guarded(lambda: args.run(args))


def _show_run(result) -> None:
    terminal.say(f"{result.checkpoint} at step {result.global_step}")
    for name, found in result.then.items():
        terminal.say(f"{name}: {getattr(found, 'report', None) or found.path}")


if __name__ == "__main__":
    sys.exit(main())
