"""Match a source checkpoint's weights with a student's, and describe what does not match."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch

from radioplat.errors import WeightsError
from radioplat.models.backbones.radio_vit import RadioViT
from radioplat.models.pretrained.source import EMBEDDER, TABLE, TOKENS, SourceCheckpoint, as_radio, resized
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.models.student.fold_target_norm import form_of, raw_layers
from radioplat.models.student.student import Student
from radioplat.models.weights.read import fit


@dataclass
class Match:
    """Weights for a student.

    Attributes:
        tensors: by the student's own names.
        notes: a sentence for each part that is not used, or that starts untrained.
        raw_heads: teacher's name and kind of the heads whose layers return raw features.
    """

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    raw_heads: set[tuple[str, str]] = field(default_factory=set)


def match_backbone(student: Student, source: SourceCheckpoint, path: str, where: str) -> Match:
    """Match the backbone of ``source`` with ``student``, which may be on the meta device.

    In a RADIO ViT class tokens are matched by teacher's name, as many registers are copied as both have, and the
    position table is resized.

    Raises:
        WeightsError: the blocks are not those of the student's architecture.
    """
    backbone = student.backbone
    if isinstance(backbone, RadioViT):
        match = _radio(student, source, path, where)
        match.notes += _normalisation(student, source)
        return match
    if source.is_radio:
        raise WeightsError(
            f"{path} holds a RADIO ViT, and the student is a {student.architecture.type}",
            where=where,
            hint="Leave model.backbone.type out: the file says what it is.",
        )
    # The classifier may differ, because the labels may.
    taken = fit(backbone.model, source.backbone, path, where, fresh=backbone.classifier_prefix)
    notes = [*_left_out(source), *_normalisation(student, source)]
    return Match({f"backbone.model.{k}": v for k, v in taken.items()}, notes)


def match_heads(student: Student, source: SourceCheckpoint, moving: Collection[tuple[str, str]] = ()) -> Match:
    """Match heads and feature projections of ``source`` by teacher's name; each is used completely or not at all.

    The raw output of a head does not change: the target normalization that it was trained with is folded into its last
    layer, and the inverse of the run's own normalization is applied to that layer once it is known.

    Args:
        moving: teacher's name and kind of the targets whose normalization the run estimates while it trains. Such a
            head keeps the normalization that it was trained with, if it has the same form, until the run's replaces it.
    """
    result = Match()
    names, architecture_of = student.head_names, {head.name: head for head in student.architecture.heads}
    for name in names:
        own = student.heads[name].state_dict()
        for kind in ("summary", "spatial", "logits"):
            group = {k: v for k, v in own.items() if k.startswith(kind)}
            theirs = source.heads.get(name, {}).get(kind)
            if architecture_of[name].identity and kind != "logits":
                if any(k.startswith(f"{kind}.") for k in theirs or {}):
                    result.notes.append(f"head {name}.{kind} is left out: use_head is false")
            elif not group:
                if theirs:
                    result.notes.append(f"head {name}.{kind} is left out: no loss wants it")
            elif theirs is None or (why := _unlike(group, theirs, f"{kind}.")):
                result.notes.append(f"head {name}.{kind} starts anew: {why if theirs else _absent(name, kind, source)}")
            else:
                keeps = (name, kind) in moving and form_of(kind, theirs) == form_of(kind, group)
                taken = theirs if keeps else raw_layers(student.heads[name], kind, theirs)
                result.tensors |= {f"heads.{name}.{k}": v for k, v in taken.items()}
                if (name, kind) in moving:
                    result.notes.append(f"{_moves(name, kind)}: distill.target_norm.fit=before keeps it")
                elif kind != "logits":
                    result.raw_heads.add((name, kind))
    if extra := [name for name in source.heads if name not in names]:
        result.notes.append(f"left out: the heads of {', '.join(extra)}; no teacher is called so")
    return result


def match_classifier(student: Student, source: SourceCheckpoint) -> Match:
    """Match the classifier of a RADIO ViT, if both have one for the same number of classes."""
    own = {k: v for k, v in student.state_dict().items() if k.startswith("classifier.")}
    if not own or not source.classifier:
        return Match()
    if why := _unlike(own, source.classifier, "classifier."):
        return Match(notes=[f"the classifier starts anew: {why}"])
    return Match(dict(source.classifier))


def _radio(student: Student, source: SourceCheckpoint, path: str, where: str) -> Match:
    if source.is_timm_vit:
        try:
            source = as_radio(source, student.architecture.num_class_tokens)
        except WeightsError as error:
            raise WeightsError(f"{path}: {error}", where=where) from None
    if not source.is_radio:
        fit(student.backbone, source.backbone, path, where)  # raises, with the tensors that do not fit
    own, given = student.backbone.state_dict(), dict(source.backbone)
    notes = _left_out(source)
    # An embedder of two layers has another name: if both have one (None == None), both are of one model family.
    embedders = [weights[EMBEDDER].shape if EMBEDDER in weights else None for weights in (given, own)]
    if embedders[0] == embedders[1] and given[TABLE].shape != own[TABLE].shape:
        side = student.backbone.patch_generator.side
        notes.append(f"the position table of {given[TABLE].shape[1]} places is resized to {side * side}")
        given[TABLE] = resized(given[TABLE], side)
    if given[TOKENS].shape[1] == own[TOKENS].shape[1]:
        given[TOKENS], token_notes = _tokens(student, source, own[TOKENS])
        notes += token_notes
    fresh: tuple[str, ...] = ()
    if "norm.weight" in own and "norm.weight" not in given:
        fresh = ("norm.",)
        notes.append(
            "the file has no norm after the last block and the student has: it starts at scale 1; "
            "model.backbone.kwargs.final_norm=false makes the student as the file is"
        )
    if "norm.weight" in given and "norm.weight" not in own:
        given = {k: v for k, v in given.items() if not k.startswith("norm.")}
        notes.append("the norm after the last block is left out: the student has none")
    tensors = fit(student.backbone, given, path, where, fresh=fresh)
    return Match({f"backbone.{k}": v for k, v in tensors.items()}, notes)


def _left_out(source: SourceCheckpoint) -> list[str]:
    return [f"{thing} is left out" for thing in source.ignored]


def normalised_otherwise(architecture: StudentArchitecture, mean: Sequence[float], std: Sequence[float]) -> list[str]:
    """Describe what to do if weights were trained with another ``mean`` and ``std`` of images than the student's."""
    own = (*architecture.mean, *architecture.std)
    if all(abs(a - b) < 1e-3 for a, b in zip(own, (*mean, *std), strict=True)):
        return []
    mean, std = ([round(x, 4) for x in values] for values in (mean, std))
    return [
        "it was trained on images normalised otherwise, and what it knows is worth less on these: set "
        f"model.backbone.student_norm_mean={mean} and model.backbone.student_norm_std={std}"
    ]


def _normalisation(student: Student, source: SourceCheckpoint) -> list[str]:
    return normalised_otherwise(student.architecture, *source.normal) if source.normal else []


def _tokens(student: Student, source: SourceCheckpoint, own: torch.Tensor) -> tuple[torch.Tensor, list[str]]:
    """Choose class tokens by teacher's name, then registers; missing ones stay as in the student."""
    theirs, notes = source.backbone[TOKENS], []
    rows = list(own)
    names = {head.token_slot: head.name for head in reversed(student.architecture.heads)}
    count = student.backbone.patch_generator.num_class_tokens
    named = {source.slots[name] for name in names.values() if name in source.slots}
    classes = count if source.class_tokens is None else source.class_tokens
    free = [slot for slot in range(classes) if slot not in named]
    owners = {slot: name for name, slot in source.slots.items()}
    for slot in range(count):
        name = names.get(slot)
        if name in source.slots:
            rows[slot] = theirs[source.slots[name]]
        elif free:
            origin = free.pop(0)
            rows[slot] = theirs[origin]
            if name and source.slots:
                notes.append(
                    f"class token of {name} starts as that of {owners.get(origin, origin)}: {_near(name, source)}"
                )
        else:
            notes.append(f"class token {f'of {name}' if name else slot} starts anew: the file has no more of them")
    ours, registers = len(own) - count, theirs[classes:]
    shared = min(ours, len(registers))
    rows[count : count + shared] = list(registers[:shared])
    if ours != len(registers):
        notes.append(f"the student has {ours} registers and the file {len(registers)}: {shared} are taken")
    return torch.stack(rows).to(own.dtype), notes


def _unlike(own: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor] | None, learned: str) -> str:
    """Describe why ``theirs`` cannot replace ``own``; empty if they can.

    Args:
        learned: prefix of the layers' names; other tensors are a target normalization, which need not match.
    """
    if theirs is None:
        return "none"
    own, theirs = ({k: v for k, v in tensors.items() if k.startswith(learned)} for tensors in (own, theirs))
    shapes = [k for k in own if k in theirs and own[k].shape != theirs[k].shape]
    if shapes:
        key = shapes[0]
        return f"{key} is {list(theirs[key].shape)} there and {list(own[key].shape)} here"
    missing = [k for k in own if k not in theirs]
    extra = [k for k in theirs if k not in own]
    if missing or extra:
        return f"it is built otherwise ({(missing or extra)[0]} is only {'here' if missing else 'there'})"
    return ""


def _moves(name: str, kind: str) -> str:
    return f"what head {name}.{kind} says of raw features moves when its targets are measured while it trains"


def _absent(name: str, kind: str, source: SourceCheckpoint) -> str:
    if name in source.heads:
        return f"the file has no {kind} head for it"
    return _near(name, source)


def _near(name: str, source: SourceCheckpoint) -> str:
    known = list(dict.fromkeys([*source.slots, *source.heads]))
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    listed = f"the file knows {', '.join(known)}" if known else "the file names no teachers"
    return listed + (f"; distill.teacher[i].name={near[0]} would take that one's" if near else "")
