"""The command ``radioplat profile``: options and terminal output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from radioplat.common import terminal
from radioplat.errors import EngineError, SpecError
from radioplat.exporting.engines.engine_record import mark_latency, read_record
from radioplat.exporting.engines.profile import Profile, group_of, profile
from radioplat.tasks.export.show import latency_lines

SLOWEST = 20  # layers in the table
UNSTEADY = "note: the times were not steady after the warm-up; something else may have used the machine"


@dataclass
class ProfileOptions:
    """Options of ``radioplat profile``, as key=value.

    Attributes:
        batch_size: images of a call; None: the batch size that the engine was built for.
        seconds: of measuring.
        gpu_id: the GPU to run on.
        out: path of a JSON file for all layers.
    """

    batch_size: int | None = None
    seconds: float = 2.0
    gpu_id: int = 0
    out: str | None = None


def profile_and_show(file: str, overrides: Sequence[str]) -> None:
    """Profile the engine ``file``, print the result, and write it to ``out``; or print what ``verify.sh`` found.

    If the record has no latency of this machine, it gets one.

    Raises:
        SpecError: an option is unknown.
        EngineError: the engine cannot be run here.
    """
    options = _options(overrides)
    if file.endswith(".json"):
        return show_verified(Path(file))
    read_record(Path(file))  # a missing engine is reported before the next line has imported torch
    from radioplat.exporting.engine_latency import latency_here

    latency, new = latency_here(Path(file), gpu_id=options.gpu_id)
    if new:
        try:
            mark_latency(file, latency)
        except EngineError as error:
            terminal.say(f"note: the latency cannot be written to the record: {error}")
    measured = profile(file, options.batch_size, options.seconds, options.gpu_id)
    if options.out:
        layers = [asdict(layer) | {"group": group_of(layer)} for layer in measured.layers]
        whole = {
            "engine": measured.engine.name,
            "device": measured.device,
            "batch": measured.batch,
            "latency": asdict(measured.latency),
            "groups": measured.groups,
            "advice": measured.advice,
            "warnings": latency["warnings"],
            "layers": layers,
        }
        try:
            Path(options.out).write_text(json.dumps(whole, indent=1))
        except OSError as error:
            raise EngineError(f"cannot write here: {error.strerror}", where=options.out) from error
    show(measured)
    for label, text in latency_lines(latency).items():
        terminal.say(f"{label}: {text}")
    for line in latency["warnings"]:
        terminal.say(f"warning: {line}")


def show_verified(path: Path) -> None:
    """Print the JSON object of a bundle's ``verify.sh``, from another machine.

    Raises:
        EngineError: the file is none.
    """
    try:
        read = json.loads(path.read_text(encoding="utf-8").strip().splitlines()[-1])
        times, batch = read["latency_ms"], read["shape"][0]
        line = (
            f"{read['verified']} ({read['library']} {read['version']}) on {read['machine']}: {batch} images in "
            f"{times['p50']:.3g} ms (p90 {times['p90']:.3g}, p99 {times['p99']:.3g}; {times['calls']} calls)"
        )
        line += f"; {read['method']}" if "method" in read else ""
        cosines = read["least_cosine"]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        hint = "Give an engine, or what a bundle's verify.sh printed: ./verify.sh > verified.json."
        raise EngineError(
            f"this is not the result of a bundle's verify.sh ({error})", where=str(path), hint=hint
        ) from None
    terminal.say(line)
    if not times.get("steady", True):
        terminal.say(UNSTEADY)
    for name, value in cosines.items():
        terminal.say(f"{name}: least cosine with the ONNX file {value:.5f}")
    if not cosines:
        terminal.say(f"warning: no features were compared: {read.get('not_compared', 'the result does not say why')}")


def show(measured: Profile) -> None:
    """Print the latency, the layers by time, and what would help."""
    times, record = measured.latency, measured.record
    images = f"{measured.batch} image{'s' if measured.batch > 1 else ''}"
    kind = f"{record['data_type']}, {record['library']} {record['version']}"
    terminal.say(
        f"{measured.engine} ({kind}) on {measured.device}: {images} "
        f"in {times.p50:.3g} ms (p90 {times.p90:.3g}, p99 {times.p99:.3g}; {times.calls} calls)"
    )
    if not times.steady:
        terminal.say(UNSTEADY)
    total = sum(layer.milliseconds for layer in measured.layers) or 1.0
    rows = [
        [
            layer.name,
            layer.kind,
            f"{layer.milliseconds:.3f}",
            f"{layer.milliseconds / total:.1%}",
            f"{layer.reads or '?'} to {layer.writes or '?'}",
        ]
        for layer in measured.layers[:SLOWEST]
    ]
    rest = len(measured.layers) - len(rows)
    note = (
        f"and {rest} faster layers, {sum(row.milliseconds for row in measured.layers[SLOWEST:]):.3f} ms" if rest else ""
    )
    terminal.show_table("layers by time", ["layer", "operation", "ms", "share", "types"], rows, note)
    terminal.say("time by group: " + ", ".join(f"{group} {share:.0%}" for group, share in measured.groups.items()))
    if measured.advice:
        terminal.say("what would help most, in the order of an estimate; shares are those of the layers named:")
    for i, line in enumerate(measured.advice, 1):
        terminal.say(f"{i}. {line}")


def _options(overrides: Sequence[str]) -> ProfileOptions:
    try:
        merged = OmegaConf.merge(OmegaConf.structured(ProfileOptions), OmegaConf.from_dotlist(list(overrides)))
    except OmegaConfBaseException as error:
        problem, hint = str(error).splitlines()[0], "Options: batch_size=N, seconds=S, gpu_id=N, out=FILE.json."
        raise SpecError(problem, where="profile", hint=hint) from None
    return cast(ProfileOptions, OmegaConf.to_object(merged))
