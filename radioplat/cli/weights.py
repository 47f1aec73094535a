"""The commands ``radioplat weights ...`` and ``radioplat push``: arguments and output."""

from __future__ import annotations

import argparse
from pathlib import Path

from radioplat.cli.arguments import RUN, existing
from radioplat.common import terminal
from radioplat.spec.weights.address import parse_repository

_WEIGHTS = "a .safetensors, .pth, .pt or .bin file"
_HERE = "Give the path of weights on this machine; or fetch them: radioplat weights fetch -h."


def add_fetch(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``radioplat weights fetch``."""
    parser.add_argument("addresses", nargs="*", metavar="ADDRESS", help="default: all that the lock file has")
    parser.add_argument("-e", "--experiment_spec_file", dest="spec", metavar="SPEC", help="also those in this spec")
    parser.add_argument("--sha256", default="", metavar="HEX", help="of the file at an https address")
    parser.add_argument(
        "--lock", metavar="FILE", help="default: RADIOPLAT_WEIGHTS_LOCK, else weights.lock.json in this folder"
    )
    parser.add_argument("--update", action="store_true", help="pin what the addresses stand for now")


def fetch(args: argparse.Namespace) -> None:
    """Download weights (hf://ORG/NAME[@REVISION], timm:NAME, https://...), and pin their hashes in a lock file."""
    from radioplat.tasks.weights.fetch import addresses_of
    from radioplat.tasks.weights.fetch import fetch as run
    from radioplat.tasks.weights.show_fetched import show

    addresses = [*args.addresses, *(addresses_of(Path(args.spec)) if args.spec else ())]
    with terminal.counting("bytes") as count:
        for fetched in run(addresses, lock=args.lock, sha256=args.sha256, update=args.update, progress=count):
            show(fetched)


def add_inspect(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``radioplat weights inspect``."""
    parser.add_argument("files", nargs="+", metavar="FILE", help=_WEIGHTS)


def inspect(args: argparse.Namespace) -> None:
    """Print the layout of checkpoint files and the backbone types they fit; for several, if they can be an ensemble."""
    files = [existing(file, _HERE) for file in args.files]
    from radioplat.cli.show_weights import show, show_ensemble
    from radioplat.models.weights.layouts import inspect_weights, unlike

    for file in files:
        show(inspect_weights(file))
    if len(files) > 1:
        show_ensemble(files, unlike(files))


def add_convert(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``radioplat weights convert``."""
    parser.add_argument("file", help=_WEIGHTS)
    parser.add_argument("out", nargs="?", help="default: the same path with the ending .safetensors")


def convert(args: argparse.Namespace) -> None:
    """Write the backbone's weights of a checkpoint file as safetensors."""
    file = existing(args.file, _HERE)
    from radioplat.cli.show_weights import show
    from radioplat.models.weights.layouts import convert_weights

    show(*convert_weights(file, args.out))


def add_push(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``radioplat push``."""
    parser.add_argument(
        "run_folder", metavar="RUN", help="a results folder, the folder of one task in it, or a checkpoint"
    )
    parser.add_argument("address", metavar="hf://ORG/NAME", help="the repository; made where it is missing")
    parser.add_argument("--private", action="store_true", help="make the repository private, if it is made")


def push(args: argparse.Namespace) -> None:
    """Publish a trained student on the Hugging Face hub: weights, configuration and a card of its making."""
    run = existing(args.run_folder, RUN)
    parse_repository(args.address)
    from radioplat.tasks.weights.push import push as publish

    pushed = publish(run, args.address, private=args.private)
    terminal.say(f"{pushed.checkpoint}: {', '.join(pushed.files)}")
    terminal.say(f"published: {pushed.url}")
