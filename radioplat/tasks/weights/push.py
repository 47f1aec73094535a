"""``radioplat push``: publish a trained student on the Hugging Face hub, with a card of its making."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from radioplat import __version__
from radioplat.errors import RadioplatError, WeightsError
from radioplat.models.student.checkpoint import STUDENT, is_checkpoint, load_student
from radioplat.models.weights.model_format import EMA_FILE
from radioplat.spec.weights.address import parse_repository
from radioplat.tasks.lineage.card import CardInputs, read_json, write_card
from radioplat.tasks.lineage.trace import Tracer
from radioplat.tasks.shared.find_checkpoint import LATEST
from radioplat.tasks.weights.hub import problem_of

_TASKS = ("", "distill", "train")  # folders of a results folder that hold checkpoints


@dataclass(frozen=True)
class Pushed:
    """A published student: the checkpoint, the address of the commit, and the names of its files."""

    checkpoint: Path
    url: str
    files: tuple[str, ...]


def push(run: str | Path, address: str, *, private: bool = False) -> Pushed:
    """Write a student's weights, its configuration and a card into a repository, which is made where it is missing.

    Args:
        run: a results folder, the folder of a task in it, or a checkpoint.
        address: ``hf://ORG/NAME``. The token is huggingface_hub's (HF_TOKEN, or ``hf auth login``).

    Raises:
        RadioplatError: there is no checkpoint, or it cannot be read.
        SpecError: the address is no repository of the hub.
        WeightsError: the hub refuses, or cannot be reached.
    """
    target = parse_repository(address)
    checkpoint = find_student(Path(run))
    with tempfile.TemporaryDirectory(prefix="push") as scratch:
        folder = Path(scratch)
        write_folder(checkpoint, folder, target.repository)
        files = tuple(sorted(each.name for each in folder.iterdir()))
        from huggingface_hub import HfApi

        try:
            api = HfApi()
            # None, not False: as the owner's repositories are by default.
            api.create_repo(target.repository, private=private or None, exist_ok=True)
            if private and not api.model_info(target.repository).private:
                hint = "Make it private on its page, or name another."
                raise WeightsError("this repository is there and public", where=address, hint=hint)
            commit = api.upload_folder(
                repo_id=target.repository,
                folder_path=folder,
                commit_message=f"radioplat {__version__}: {checkpoint.name}",
                delete_patterns=["*.safetensors"],  # an average of an earlier student would be read as this one's
            )
        except Exception as error:  # the client raises many kinds, of three libraries
            if (problem := problem_of(error, target, "Run the same command again where there is a network.")) is None:
                raise
            raise problem from None
    return Pushed(checkpoint, str(commit.commit_url), files)


def find_student(run: Path) -> Path:
    """Return the checkpoint ``run``, or the newest one that ``distill`` or ``train`` wrote below it.

    Raises:
        RadioplatError: there is none.
    """
    folders = [run, *(run / task / LATEST for task in _TASKS)]
    there = [folder for folder in folders if folder.is_dir() and is_checkpoint(folder)]
    if not there:
        hint = "Give the results_dir of a run that has saved a checkpoint, or a model_epoch_... folder."
        raise RadioplatError("there is no student here", where=str(run), hint=hint)
    return max(there, key=lambda folder: folder.resolve().stat().st_mtime).resolve()


def write_folder(checkpoint: Path, folder: Path, name: str) -> None:
    """Write the files of a student, which :func:`load_student` opens, with ``config.json`` and ``README.md``."""
    student = load_student(checkpoint)
    for file in (*STUDENT.file_names, EMA_FILE):
        if (checkpoint / file).is_file():
            shutil.copyfile(checkpoint / file, folder / file)
    config = {
        "library": "radioplat",
        "version": __version__,
        "architecture": json.loads(student.architecture.to_json()),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    evaluated = checkpoint.parent.parent / "evaluate" / "results.json"
    results = read_json(evaluated)
    newer = bool(results) and evaluated.stat().st_mtime >= checkpoint.stat().st_mtime
    inputs = CardInputs(
        name,
        student.architecture,
        sum(parameter.numel() for parameter in student.backbone.parameters()),
        Tracer(verify=False, with_images=False).trace(checkpoint),
        results if newer and results.get("checkpoint") == checkpoint.name else {},
    )
    (folder / "README.md").write_text(write_card(inputs), encoding="utf-8")
