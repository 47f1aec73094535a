"""The argument parser: every command with its arguments."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from radioplat import __version__
from radioplat.cli import commands, completion, nodes, runs, weights
from radioplat.cli.arguments import AUTO
from radioplat.cli.option_texts import INDEX, PACK, QUICKSTART
from radioplat.cli.tao_options import add_tao_options


def add_spec(
    parser: argparse.ArgumentParser, metavar: str = "key=value", rest: str = "fields of the spec to override"
) -> None:
    """Add ``-e SPEC`` and overrides.

    TAO's ``--experiment_spec`` is accepted as an abbreviation of the long name. As a name of its own it would make
    shorter abbreviations (``--exp``) ambiguous.
    """
    names = ("-e", "--experiment_spec_file")
    parser.add_argument(*names, dest="spec", metavar="SPEC", required=True, help="spec, a YAML file")
    add_overrides(parser, metavar, rest)


def add_overrides(
    parser: argparse.ArgumentParser, metavar: str = "key=value", rest: str = "fields of the spec to override"
) -> None:
    """Add positional ``key=value`` overrides."""
    parser.add_argument("overrides", nargs="*", metavar=metavar, help=rest)


class Command(NamedTuple):
    """A command: the function to run, the function that adds its arguments, and the help text.

    The function returns the exit status, or nothing for 0. The text is by default the function's docstring. More text
    follows the arguments in the command's own help, line by line: options and an example.
    """

    run: Callable[[argparse.Namespace], int | None]
    arguments: Callable[[argparse.ArgumentParser], None] = add_spec
    text: str = ""
    more: str = ""


def _tune(parser: argparse.ArgumentParser) -> None:
    add_spec(parser)
    parser.add_argument("--space", metavar="FILE", required=True, help="the search space, a YAML file")


def _index(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", help="a folder of tar shards or of images; local, s3://... or gs://...")
    add_overrides(parser, rest="fields of dataset.train_dataset and cluster, and index_dir")


def _pack(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", help="a folder of images, or a CSV file with columns path, label, caption")
    parser.add_argument("out", help="output folder; shards are written to OUT/train and OUT/val")
    add_overrides(parser, rest="options, listed below")


def _lint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE.onnx", help="an ONNX file with QuantizeLinear and DequantizeLinear")
    add_overrides(parser, rest="allow=[PATTERN,...]: layers that may be in floats; out=FILE.json")


def _profile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="ENGINE", help="an engine of gen_trt_engine, beside its .json")
    add_overrides(parser, rest="batch_size=N, seconds=S, gpu_id=N, out=FILE.json")


def _batches(parser: argparse.ArgumentParser) -> None:
    add_spec(parser, "N | key=value", "number of global batches (2), and overrides")


def _default_specs(parser: argparse.ArgumentParser) -> None:
    add_overrides(parser)
    parser.add_argument(
        "--json-schema", action="store_true", help="print the JSON schema by which editors check and complete a spec"
    )


def _explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "fields", nargs="+", metavar="FIELD", help="a field or section, for example train.optim.lr, distill.teacher, lr"
    )


def _quickstart(parser: argparse.ArgumentParser) -> None:
    add_overrides(parser, rest="fields of specs/quickstart.yaml to override")


def _demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", metavar="N", help="processes that are killed (40)")
    parser.add_argument("--seconds", metavar="S", help="in which the kills should come (360)")
    parser.add_argument("--students", metavar="K", help="1 to 4 (4)")
    parser.add_argument("--seed", metavar="N", help="of the choice of processes and times (0)")
    parser.add_argument("--steps", metavar="N", help="of the run; default: so many that the kills come before its end")
    parser.add_argument("--folder", metavar="DIR", help="for both runs and the results (results/demo)")


def _init(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="the folder to write; it is created if it is missing")
    parser.add_argument(
        "--spec", metavar="NAME", default="my_images", help="the spec to begin with (my_images), a file of DIR/specs"
    )


def _out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="FILE", help="the new file; default: the spec is printed")


def _migrate_tao(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="SPEC", help="a spec of TAO's, a YAML file")
    _out(parser)


def _migrate_lightly(parser: argparse.ArgumentParser) -> None:
    words = "a script that calls lightly_train.pretrain, which is not run; a YAML or JSON file of its arguments; or "
    parser.add_argument("words", nargs="+", metavar="FILE | name=value", help=words + "out=... data=... model=...")
    _out(parser)


def _migrate_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", help="a results folder, the folder of one task in it, or a spec, a YAML file")


def _address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--address", help="address of the cluster; default: RAY_ADDRESS, else the one on this machine")


def _known(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pattern", nargs="?", default="", help="part of a name of timm's; default: the usual ones")


def _pools(parser: argparse.ArgumentParser) -> None:
    _address(parser)
    parser.add_argument("pools", nargs="*", metavar="POOL")


SPEC_TASKS = {  # each with a spec, and planned by `plan`
    "distill": Command(commands.distill),
    "train": Command(commands.train),
    "train_upsampler": Command(commands.train_upsampler),
    "evaluate": Command(commands.evaluate),
    "inference": Command(commands.inference),
    "prune": Command(commands.prune),
    "low_rank": Command(commands.low_rank),
    "quantize": Command(commands.quantize),
    "sensitivity": Command(commands.sensitivity),
    "compress": Command(commands.compress),
    "export": Command(commands.export),
    "gen_trt_engine": Command(commands.gen_trt_engine),
    "tune": Command(commands.tune, _tune),
}
TASKS = SPEC_TASKS | {
    "pipeline": Command(runs.pipeline, runs.add_pipeline),
    "push": Command(weights.push, weights.add_push),
    "index": Command(commands.index, _index, more=INDEX),
    "pack": Command(commands.pack, _pack, more=PACK),
    "ledger": Command(runs.ledger, runs.add_ledger),
    "diagnose": Command(runs.diagnose, runs.add_results),
    "replay": Command(runs.replay, runs.add_replay),
    "fork": Command(runs.fork, runs.add_fork),
    "lineage": Command(runs.lineage, runs.add_lineage),
    "lint": Command(commands.lint, _lint),
    "profile": Command(commands.profile, _profile),
    "default_specs": Command(commands.default_specs, _default_specs),
    "explain": Command(commands.explain, _explain),
    "completion": Command(completion.completion, completion.add_completion),
    "quickstart": Command(commands.quickstart, _quickstart, more=QUICKSTART),
    "demo": Command(commands.demo, _demo),
    "init": Command(commands.init, _init),
    "doctor": Command(nodes.doctor, nodes.add_doctor),
}
_CHOSEN = "the task that the spec describes: train for labels without teachers, quantize for quantize.mode: qat with a "
_CHOSEN += "student to quantize, else distill; `radioplat plan -e SPEC` does the same"
GROUPS = {  # commands of two words: first word, help text, commands by the second word
    "plan": (
        "Check everything that would stop a task, without starting it, and print its models, data, memory and length.",
        {
            AUTO: Command(commands.plan, text=_CHOSEN),
            **{
                name: Command(commands.plan, task.arguments, task.run.__doc__ or "")
                for name, task in SPEC_TASKS.items()
            },
            "pipeline": Command(runs.plan_pipeline, runs.add_pipeline),
        },
    ),
    "show": ("Show the data of a run.", {"data": Command(commands.show_data, _batches)}),
    "weights": (
        "Fetch, inspect or convert weights.",
        {
            "fetch": Command(weights.fetch, weights.add_fetch),
            "inspect": Command(weights.inspect, weights.add_inspect),
            "convert": Command(weights.convert, weights.add_convert),
        },
    ),
    "migrate": (
        "Bring a spec of another program, or a run of an older version, up to this version.",
        {
            "tao": Command(commands.migrate_tao, _migrate_tao),
            "lightly": Command(commands.migrate_lightly, _migrate_lightly),
            "run": Command(commands.migrate_run, _migrate_run),
        },
    ),
    "teachers": (
        "List and check teachers, and run teacher pools apart from a run.",
        {
            "list": Command(commands.teachers_list, _known),
            "check": Command(commands.teachers_check),
            "start": Command(commands.teachers_start),
            "status": Command(commands.teachers_status, _address),
            "stop": Command(commands.teachers_stop, _pools),
        },
    ),
    "nodes": (
        "The machines of a cluster.",
        {
            "watch": Command(nodes.watch, nodes.add_watch),
            "drain": Command(nodes.drain, nodes.add_drain),
            "stop": Command(nodes.stop, nodes.add_stop),
        },
    ),
}


class _Parser(argparse.ArgumentParser):
    """A parser that proposes the nearest word for a wrong command or value (from Python 3.14 on argparse does)."""

    default_verb = ""  # put before the first argument, if that is no verb
    is_intermixed = False  # whether words that are no options may stand on both sides of options

    def parse_known_args(self, args=None, namespace=None):  # noqa: ANN001, ANN201 - as argparse has it
        """Parse ``args``; `plan -e SPEC` without a task is `plan auto -e SPEC`."""
        words = list(sys.argv[1:] if args is None else args)
        first = words[0] if words else "--help"
        if self.default_verb and first not in ("-h", "--help") and ("=" in first or first.startswith("-")):
            words = [self.default_verb, *words]
        if self.is_intermixed:
            self.is_intermixed = False  # it calls this method again
            return self.parse_known_intermixed_args(words, namespace)
        return super().parse_known_args(words, namespace)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        near = difflib.get_close_matches(str(value), [str(choice) for choice in action.choices or ()], 1)
        if near and value not in (action.choices or ()):
            raise argparse.ArgumentError(action, f"there is no {value!r}. Did you mean {near[0]!r}?")
        super()._check_value(action, value)


_START = (
    "To begin: `radioplat init DIR` writes specs to start from; then plan, distill, evaluate, export. "
    "`radioplat explain FIELD` and `radioplat default_specs` describe the fields of a spec."
)


def build_parser(
    program: str,
    tasks: Mapping[str, Command] = TASKS,
    groups: Mapping[str, tuple[str, Mapping[str, Command]]] = GROUPS,
) -> argparse.ArgumentParser:
    """Return the parser of ``program``; parsed arguments have the command's function as ``run``."""
    description = str(sys.modules["radioplat"].__doc__).partition("\n")[0]
    parser = _Parser(program, description=description, epilog=_START)
    parser.add_argument("--version", action="version", version=__version__)
    subparsers = parser.add_subparsers(dest="task", required=True, metavar="task")
    for name, command in tasks.items():
        _add(subparsers, name, command)
    for group, (text, verbs) in groups.items():
        of_group = subparsers.add_parser(group, help=text, description=text)
        of_group.default_verb = AUTO if AUTO in verbs else ""
        inner = of_group.add_subparsers(dest="verb", required=True, metavar="task" if AUTO in verbs else "verb")
        for verb, command in verbs.items():
            _add(inner, verb, command)
    return parser


def _add(subparsers, name: str, command: Command) -> None:
    text = command.text or command.run.__doc__
    layout = argparse.RawDescriptionHelpFormatter if command.more else argparse.HelpFormatter
    parser = subparsers.add_parser(name, help=text, description=text, epilog=command.more, formatter_class=layout)
    command.arguments(parser)
    add_tao_options(parser, name)
    parser.set_defaults(run=command.run)
