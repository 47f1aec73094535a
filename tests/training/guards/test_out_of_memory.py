"""Out of memory: what counts as that, what is remembered, and pieces whose sum is the whole."""

from __future__ import annotations

import json

import pytest
import torch
from forked import Forked, run_code
from hypothesis import given
from hypothesis import strategies as st

from radioplat.errors import OutOfMemory, TrainingError
from radioplat.losses.base.grid import Overlap
from radioplat.models.features import Features
from radioplat.models.heads import HeadArchitecture
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.objectives.distill import DistillObjective, MicroBatch
from radioplat.objectives.pieces import differs_in_pieces, in_pieces
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.tracking.attempts.attempts import NAME as ATTEMPTS
from radioplat.training.guards import out_of_memory

SPEC = load_spec({"dataset": {"batch_size": 8}, "train": {"global_batch_size": 16}})


def run_out(folder, count: int, attempt: int, error: BaseException, spec=SPEC) -> None:
    with out_of_memory.watched(folder, spec, count, attempt, 3):
        raise error


def test_torchs_host_allocator_at_a_real_limit_is_recognised():
    """A process whose address space is limited, and a tensor that does not fit into what is left."""
    code = """
import resource, torch
from radioplat.training.guards.out_of_memory import ran_out
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 64 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for take in (lambda: torch.empty(2**30, dtype=torch.uint8), lambda: bytearray(2**30)):
    try:
        take()
    except BaseException as error:
        print(type(error).__name__, ran_out(error))
"""
    process = Forked(run_code, code)
    assert process.wait(100) == 0 and process.output.splitlines() == ["RuntimeError True", "MemoryError True"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpus_allocator_is_recognised():
    free, _ = torch.cuda.mem_get_info()
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2 * free, dtype=torch.uint8, device="cuda")
    assert out_of_memory.ran_out(caught.value)


def test_other_errors_pass(tmp_path):
    with pytest.raises(RuntimeError, match="shapes") as caught:
        run_out(tmp_path, 0, 1, RuntimeError("shapes do not match"))
    assert not isinstance(caught.value, OutOfMemory) and out_of_memory.halvings(tmp_path, SPEC, 2) == (0, "")


def test_each_time_memory_runs_out_the_next_start_halves_once_more(tmp_path):
    with pytest.raises(OutOfMemory, match="step 3.*micro-batches of 8.*2 pieces") as caught:
        run_out(tmp_path, 0, 1, MemoryError())
    assert caught.value.restart_cause == "oom"
    count, line = out_of_memory.halvings(tmp_path, SPEC, 2)
    assert count == 1 and "in 2 pieces" in line and "global batch of 16" in line
    with pytest.raises(OutOfMemory, match="4 pieces"):
        run_out(tmp_path, 1, 2, torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(OutOfMemory, match="4 pieces"):  # the other rank, in the same attempt
        run_out(tmp_path, 1, 2, torch.OutOfMemoryError("CUDA out of memory"))
    assert out_of_memory.halvings(tmp_path, SPEC, 3)[0] == 2
    smaller = load_spec({"dataset": {"batch_size": 4}, "train": {"global_batch_size": 16}})
    assert out_of_memory.halvings(tmp_path, smaller, 3)[0] == 0


def test_single_samples_cannot_be_halved(tmp_path):
    with pytest.raises(TrainingError, match="single samples") as caught:
        run_out(tmp_path, 3, 1, MemoryError())
    assert not isinstance(caught.value, OutOfMemory) and not (tmp_path / out_of_memory.FILE).exists()


def test_an_attempt_that_the_killer_ended_counts_once(tmp_path):
    line = {"attempt": 1, "time": 0.0, "world_size": 1, "from_step": 0, "event": "end"}
    line |= {"cause": "oom", "detail": "worker killed due to memory pressure"}
    (tmp_path / ATTEMPTS).write_text(json.dumps(line) + "\n")
    assert out_of_memory.halvings(tmp_path, SPEC, 2)[0] == 1
    assert out_of_memory.halvings(tmp_path, SPEC, 2)[0] == 1  # asked again it is the same start
    assert out_of_memory.halvings(tmp_path, SPEC, 3)[0] == 1


PAIR = [{"name": "a", "mode": "combo", "summary_loss_type": "cosine"}, {"name": "b", "mode": "spatial"}]
TEACHERS = {"distill": {"loss_type": "CS", "teacher": PAIR}}
HEADS = (HeadArchitecture("a", 5, 6, hidden=8), HeadArchitecture("b", spatial_dim=4, hidden=8))
VIT = {"embed_dim": 24, "depth": 1, "num_heads": 2}


@pytest.fixture(scope="module")
def module() -> DistillObjective:
    torch.manual_seed(0)
    architecture = StudentArchitecture("radio_vit_tiny_patch8", VIT, heads=HEADS, img_size=32)
    return DistillObjective(Student(architecture), resolve_teachers(load_spec(TEACHERS)), "32").eval()


def micro_batch(size: int, weight: list[float] | None = None) -> MicroBatch:
    draw = torch.Generator().manual_seed(size)
    targets = {
        "a": Features(torch.randn(size, 5, generator=draw), torch.randn(size, 4, 4, 6, generator=draw)),
        "b": Features(None, torch.randn(size, 4, 4, 4, generator=draw)),
    }
    images = torch.randint(0, 256, (size, 3, 32, 32), dtype=torch.uint8, generator=draw)
    weights = torch.tensor(weight) if weight else torch.ones(size)
    warp = torch.eye(3).repeat(size, 1, 1) + 0.01 * torch.randn(size, 3, 3, generator=draw)
    overlaps = {"b": Overlap(warp, torch.ones(size, 32, 32, dtype=torch.bool))}
    return MicroBatch({"32": images}, weights, -torch.ones(size, dtype=torch.int64), targets, overlaps=overlaps)


@pytest.mark.parametrize(("size", "count"), [(8, 2), (8, 8), (5, 2), (3, 4)])
def test_the_pieces_losses_and_gradients_add_up_to_the_wholes(module, size, count):
    weight = [1.0, 0.0, *[1.0] * (size - 2)]
    found = []
    for pieces in (1, count):
        module.zero_grad()
        terms: dict[str, float] = {}
        for share, piece in in_pieces(micro_batch(size, weight), pieces):
            losses = module(piece)
            (share * losses["loss"]).backward()
            for name, value in losses.items():
                terms[name] = terms.get(name, 0.0) + share * float(value.detach())
        found.append((terms, {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}))
    (whole, gradients), (sums, pieced) = found
    assert sums == pytest.approx(whole, rel=1e-5) and len(whole) == 4
    for name, gradient in gradients.items():
        torch.testing.assert_close(pieced[name], gradient, rtol=1e-3, atol=1e-6)


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=9), st.integers(1, 16))
def test_every_sample_is_in_one_piece_and_shares_add_up(weight, count):
    micro = micro_batch(len(weight), weight)
    pieces = in_pieces(micro, count)
    assert len(pieces) == min(count, len(weight)) and sum(share for share, _ in pieces) == pytest.approx(1)
    assert torch.equal(torch.cat([p.views["32"] for _, p in pieces]), micro.views["32"])
    assert torch.equal(torch.cat([p.targets["a"].spatial for _, p in pieces]), micro.targets["a"].spatial)
    assert torch.equal(torch.cat([p.overlaps["b"].warp for _, p in pieces]), micro.overlaps["b"].warp)


def test_what_is_another_thing_in_pieces_is_named(module):
    assert differs_in_pieces(module) == []
    spec = load_spec({"distill": {"teacher": [{"name": "a", "loss_type": "rkd_distance", "mode": "summary"}]}})
    student = Student(StudentArchitecture("test_resnet", heads=(HeadArchitecture("a", 4),))).train()
    batchwise, norm = sorted(differs_in_pieces(DistillObjective(student, resolve_teachers(spec), "32").train()))[::-1]
    assert "relational" in batchwise and "BatchNorm" in norm
