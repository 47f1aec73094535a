"""Find the checkpoint that a run resumes from: in its folder, in the mirror, or the one that the spec names."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from radioplat.common.terminal import note
from radioplat.data.loading.run_data import differing_fields, order_hash
from radioplat.data.storage.files import absolute, copy_file, stat_file
from radioplat.design.run import Run
from radioplat.errors import Problem, RadioplatError, WeightsError, problems_of
from radioplat.models.weights.manifest import MANIFEST
from radioplat.spec.resolved.paths import is_remote
from radioplat.spec.schema.root import Spec
from radioplat.tracking.results import TaskFolder
from radioplat.training.checkpoints.checkpoint import Survey, examine, survey
from radioplat.training.checkpoints.mirror import FIELD, Mirror, download, reason_of
from radioplat.training.checkpoints.run_state import RunState
from radioplat.training.checkpoints.teacher_change import teacher_problems
from radioplat.training.checkpoints.unreadable import Unreadable, UnreadableCheckpoints, check_in_the_way

_EXPLICIT = "train.resume_training_checkpoint_path"
_CREDENTIALS = "Credentials and endpoint come from the environment (AWS_PROFILE, AWS_ENDPOINT_URL, ...)."
_SET_ASIDE = "set_aside_{}"  # folder in the task folder


def mirror_of(spec: Spec, task: str) -> Mirror | None:
    """Return the mirror ``<train.checkpoint_dir>/<task>``; None if the spec sets no ``checkpoint_dir``."""
    folder = spec.train.checkpoint_dir
    return None if folder is None else Mirror(f"{folder.rstrip('/')}/{task}")


def starting_point(run: Run) -> tuple[Path, RunState] | None:
    """Return the checkpoint that a start of ``run`` resumes from: its own newest, else the spec's, else None.

    Raises:
        UnreadableCheckpoints: as raised by :func:`newest_of`.
        WeightsError: ``train.resume_training_checkpoint_path`` is not a readable checkpoint.
    """
    explicit = run.spec.train.resume_training_checkpoint_path
    checkpoint = newest_of(run)
    if checkpoint is not None or not explicit:
        return checkpoint
    path = Path(explicit)
    if is_remote(explicit):
        path = run.folder / ".resumed_from" / path.name
        try:
            state = download(_upload_of(explicit) or explicit, path)
        except OSError as error:
            raise WeightsError(f"{explicit} cannot be read: {reason_of(error)}", where=_EXPLICIT) from None
    else:
        state = examine(path)
    if isinstance(state, Unreadable):
        raise WeightsError(_not_named_well(explicit, state))
    return path, state


def newest_of(run: Run) -> tuple[Path, RunState] | None:
    """Return the newest checkpoint of the run; if only the mirror has it, it is copied to the run's folder first.

    The ``model_latest`` link is set to it, because a killed writer may have left another target.

    Raises:
        UnreadableCheckpoints: there are checkpoints, but none can be read, or a newer one is of another version.
        WeightsError: there is no checkpoint in the run's folder, and the mirror cannot be read.
    """
    here, mirror = survey(run.folder), mirror_of(run.spec, run.task)
    checkpoint, unreadable = here.newest, here.unreadable
    if mirror is not None:
        try:
            checkpoint, more = mirror.bring_newer(checkpoint, run.folder)
            unreadable = unreadable + more
        except OSError as error:
            if checkpoint is None:
                raise WeightsError(f"cannot be read: {reason_of(error)}", where=FIELD) from None
            note(f"{FIELD} cannot be read ({reason_of(error)}): the newest here, {checkpoint[0].name}, is taken")
    check_in_the_way(None if checkpoint is None else checkpoint[1].global_step, unreadable, str(run.folder))
    task = TaskFolder(run.folder.parent, run.folder.name)
    if checkpoint is not None and task.latest() != checkpoint[0].resolve():
        with contextlib.suppress(OSError):  # the next checkpoint updates the link too, and reports an error
            task.point_latest(checkpoint[0].name)
    return checkpoint


def set_aside(run: Run, blocked: UnreadableCheckpoints) -> str:
    """Set aside the unreadable checkpoints that keep a run from starting; return a message with their new locations.

    Those in the run's folder are moved into a new folder there; those in the mirror are marked by a file.

    Raises:
        RadioplatError: they cannot be moved or marked.
    """
    try:
        places = _moved(run, blocked)
    except OSError as error:
        hint = "Mend that, or choose another results_dir."
        raise RadioplatError(f"cannot be set aside: {reason_of(error)}", where=str(run.folder), hint=hint) from None
    link = run.folder / "model_latest"
    if link.is_symlink() and not link.exists():
        link.unlink()
    return f"train.restart: what cannot be read is kept as {', '.join(places)}"


def _moved(run: Run, blocked: UnreadableCheckpoints) -> list[str]:
    number = 1
    while (aside := run.folder / _SET_ASIDE.format(number)).exists():
        number += 1
    mirror, places = mirror_of(run.spec, run.task), []
    for one in blocked.checkpoints:
        if Path(one.path).parent == run.folder:
            aside.mkdir(exist_ok=True)
            os.rename(one.path, aside / Path(one.path).name)
            places.append(str(aside / Path(one.path).name))
        elif mirror is not None:
            mirror.set_aside(one.path)
            places.append(f"{one.path} (marked)")
    return places


def catch_up(run: Run, checkpoint: tuple[Path, RunState] | None) -> None:
    """Upload the checkpoint that the run resumes from to the mirror, if it is newer than all checkpoints there.

    Raises:
        RadioplatError: the mirror cannot be read or written.
    """
    mirror = mirror_of(run.spec, run.task)
    if mirror is None or checkpoint is None or checkpoint[0].parent != run.folder:
        return
    try:
        there = mirror.standings()
        if checkpoint[0].name not in there and all(s.step < checkpoint[1].global_step for s in there.values()):
            mirror.upload(checkpoint[0])
    except OSError as error:
        raise RadioplatError(f"cannot be used: {reason_of(error)}", where=FIELD, hint=_CREDENTIALS) from None


def mirror_spec(run: Run, written: Path) -> None:
    """Copy the run's spec with its decisions, the file ``written``, to the mirror: a start elsewhere keeps them.

    Raises:
        RadioplatError: the mirror cannot be written.
    """
    if (mirror := mirror_of(run.spec, run.task)) is not None:
        try:
            copy_file(str(written), f"{mirror.folder}/{written.name}")
        except OSError as error:
            raise RadioplatError(f"cannot be written: {reason_of(error)}", where=FIELD, hint=_CREDENTIALS) from None


def unreachable(spec: Spec, task: str) -> list[Problem]:
    """Return problems with checkpoint locations outside the run's folder: mirror not writable, path not readable."""
    problems = []
    if (mirror := mirror_of(spec, task)) is not None:
        try:
            mirror.probe()
        except OSError as error:
            problems.append(Problem(f"cannot be written: {reason_of(error)}", FIELD, _CREDENTIALS))
    explicit = spec.train.resume_training_checkpoint_path
    if explicit and is_remote(explicit):
        try:
            if _upload_of(explicit) is None:
                stat_file(f"{absolute(explicit)}/{MANIFEST}")
        except OSError as error:
            message = f"{explicit} holds no {MANIFEST}: {reason_of(error)}"
            problems.append(Problem(message, _EXPLICIT, _CREDENTIALS))
    return problems


def blocked_by(
    spec: Spec,
    task: str,
    folder: Path,
    here: Survey,
    order_fields: dict[str, str] | None,
    heads: Mapping[str, bool] | None = None,
) -> Iterator[Problem]:
    """Yield problems that keep a run from resuming in ``folder``; nothing is changed or downloaded.

    Args:
        here: the checkpoints in ``folder``.
        order_fields: the run's :meth:`radioplat.data.loading.run_data.RunData.order_fields`; None if not known.
        heads: of the run's student, see :func:`teacher_problems`; None if not known.
    """
    mirror, checkpoint = mirror_of(spec, task), here.newest
    step, unreadable = here.step, here.unreadable
    if mirror is not None:
        try:
            candidates, more = mirror.newer(step)
        except OSError:
            return  # reported by `unreachable`
        step, unreadable = candidates[0][0] if candidates else step, unreadable + more
        checkpoint = None if candidates else checkpoint
    yield from problems_of(check_in_the_way, step, unreadable, str(folder))
    explicit = spec.train.resume_training_checkpoint_path
    if step is None and explicit and not is_remote(explicit):
        state = examine(Path(explicit))
        if isinstance(state, Unreadable):
            yield _not_named_well(explicit, state)
        else:
            checkpoint = Path(explicit), state
    if checkpoint is not None and order_fields is not None:
        path, state = checkpoint
        name = path.name if path.parent == folder else str(path)
        yield from order_problems(spec, name, state, order_fields, folder)
        if heads is not None:
            yield from teacher_problems(path, name, heads, spec.train.allow_teacher_change)


ORDER_FIELDS = {
    "sources": "dataset.train_dataset.tar_data_sources.scale_factor",
    "filters": "dataset.train_dataset.native_resolution_filter or dedup",
    "max_pixels": "dataset.max_pixels",
    "weights": "dataset.train_dataset.data_weight_mode",
    "seed": "dataset.train_dataset.seed",
    "global_batch": "train.global_batch_size",
    "index_rows": "the shards",
    "boxes": "the annotations",
    "views_per_step": "dataset.train_dataset.views_per_step",
}


def order_problems(
    spec: Spec, name: str, state: RunState, order_fields: dict[str, str], folder: Path
) -> Iterator[Problem]:
    """Yield a problem if the checkpoint ``name`` was trained on another sample order, unless the spec accepts that.

    Args:
        order_fields: order fields of the run that would resume from it.
        folder: folder of the run.
    """
    if state.order_hash != order_hash(order_fields) and not spec.train.restart_order:
        names = [ORDER_FIELDS.get(key, key) for key in differing_fields(state.order_fields, order_fields)]
        message = f"{name} was trained on another order of samples; what differs: {', '.join(names)}"
        hint = "Undo the change, choose another results_dir, or accept it with train.restart_order=true."
        yield Problem(message, str(folder), hint)


def _not_named_well(explicit: str, checkpoint: Unreadable) -> Problem:
    kind = "not a whole checkpoint" if checkpoint.torn else "a checkpoint of another version"
    hint = "Give a model_epoch_... folder, local or on an object store, or the model_latest link."
    if not checkpoint.torn:
        hint = "Use the version that wrote it, or name another checkpoint."
    return Problem(f"{explicit} is {kind} ({checkpoint.reason})", _EXPLICIT, hint)


def _upload_of(path: str) -> str | None:
    """Return the upload folder of the checkpoint at a remote path, given with or without the upload's hex digits."""
    parent, _, name = absolute(path).rpartition("/")
    return Mirror(parent).find(PurePosixPath(name).name)
