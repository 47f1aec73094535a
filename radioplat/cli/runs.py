"""The commands of several runs, and those that read a run's files: its ledger, its end, a step, its origin."""

from __future__ import annotations

import argparse
import shlex

from radioplat.cli.arguments import RUN, existing
from radioplat.common import terminal


def ledger(args: argparse.Namespace) -> None:
    """Check in a run's ledger that it trained on each sample of its order exactly once."""
    results = existing(args.results, RUN)
    from radioplat.tasks.inspect.show_ledger import show
    from radioplat.training.accounting.prove import prove_results

    show(prove_results(results, full=args.full))


def replay(args: argparse.Namespace) -> None:
    """Compute one step of a run again, from the checkpoint before it, and compare it with what was recorded."""
    run = existing(args.results, RUN)
    from radioplat.tasks.replay.replay import replay as again
    from radioplat.tasks.replay.show import show

    looks = {"micro_batch": args.micro_batch, "debug": args.debug, "out": args.dump}
    show(again(run, args.step, **looks, say=terminal.say))


def fork(args: argparse.Namespace) -> None:
    """Go on from one step of a run several times, with other values of fields, and compare what comes out."""
    run = existing(args.results, RUN)
    from radioplat.tasks.fork.fork import fork as again
    from radioplat.tasks.fork.show import show

    where = {"out": args.out or f"fork_{args.at}", "control": args.control}
    show(again(run, args.at, args.overrides, args.arm, **where, say=terminal.say))


def pipeline(args: argparse.Namespace) -> None:
    """Run a graph of tasks, in which a student may be another's teacher or start; side by side on a cluster."""
    dag = existing(args.spec, "Name a YAML file with nodes; specs/recipes/eupe.yaml is one.")
    from radioplat.tasks.pipeline.pipeline import pipeline as run
    from radioplat.tasks.pipeline.show import show

    show(run(dag, args.overrides))


def plan_pipeline(args: argparse.Namespace) -> int:
    """Check a pipeline and every node of it, and print its models, data, memory and lengths."""
    dag = existing(args.spec, "Name a YAML file with nodes; specs/recipes/eupe.yaml is one.")
    from radioplat.tasks.pipeline.checks import plan_pipeline as run
    from radioplat.tasks.plan.show import show

    can_start = show(run(dag, args.overrides))
    if can_start:
        terminal.say(f"next: {shlex.join(['radioplat', 'pipeline', '-e', args.spec, *args.overrides])}")
    return 0 if can_start else 1


def lineage(args: argparse.Namespace) -> None:
    """Follow an artifact back to its runs, teachers, shards and images by hashes; or an image to its artifacts."""
    artifact = existing(
        args.artifact, "Give an engine, an ONNX file, weights, a checkpoint folder or a results folder."
    )
    from radioplat.tasks.lineage.lineage import lineage as trace
    from radioplat.tasks.lineage.show import show

    show(trace(artifact, out=args.out, image=args.image))


def diagnose(args: argparse.Namespace) -> None:
    """Print why a run ended, in one line, and the evidence."""
    results = existing(args.results, RUN)
    from radioplat.tasks.inspect.diagnose import diagnose as run
    from radioplat.tasks.inspect.show_diagnosis import show

    show(run(results))


def add_pipeline(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `radioplat pipeline`."""
    names = ("-e", "--experiment_spec_file")
    parser.add_argument(*names, dest="spec", metavar="DAG", required=True, help="the pipeline, a YAML file")
    text = "results_dir and concurrent of the pipeline, nodes.NAME.FIELD of one node's spec, FIELD of all nodes' specs"
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=text)


def add_results(parser: argparse.ArgumentParser) -> None:
    """Add the folder of a run."""
    parser.add_argument("results", help="a results folder, or the folder of one task in it")


def add_replay(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `radioplat replay`."""
    add_results(parser)
    parser.add_argument("--step", type=int, required=True, metavar="N", help="counted from 1, as in status.json")
    parser.add_argument("--micro-batch", type=int, metavar="G", help="look at this one of the step alone, from 0")
    parser.add_argument("--debug", action="store_true", help="open Python's debugger at the step")
    dump = "write pixels, targets, each sample's part of the loss, gradient norms by layer and a page to DIR"
    parser.add_argument("--dump", metavar="DIR", help=dump)


def add_fork(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `radioplat fork`."""
    add_results(parser)
    parser.is_intermixed = True  # type: ignore[attr-defined]
    parser.add_argument("--at", type=int, required=True, metavar="N", help="the step, counted from 1")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes of all arms but the control")
    arm = "further changes of one arm; give it once for each arm"
    parser.add_argument("--arm", nargs="+", action="append", default=[], metavar="key=value", help=arm)
    parser.add_argument("--out", metavar="DIR", help="folder of the arms; default: fork_N")
    control = "do not go on with the run's own spec, as the first arm"
    parser.add_argument("--no-control", dest="control", action="store_false", help=control)


def add_lineage(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `radioplat lineage`."""
    text = "an engine, an ONNX file, exported weights, a checkpoint folder, or a results folder"
    parser.add_argument("artifact", metavar="ARTIFACT", help=text)
    parser.add_argument("--out", metavar="DIR", help="write a page, JSON, a table of images and hashes to DIR")
    text = "which steps had this image, and what comes from them; a number of the index, or SHARD/KEY"
    parser.add_argument("--image", metavar="ID", help=text)


def add_ledger(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `radioplat ledger`."""
    add_results(parser)
    parser.add_argument(
        "--full", action="store_true", help="compare every row again, not one in a hundred of those already compared"
    )
