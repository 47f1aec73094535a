"""Shares of ranks, and their exchange of rows."""

from __future__ import annotations

import json

import numpy as np
import torch
import torch.distributed as dist
from forked import run_ranks
from hypothesis import given
from hypothesis import strategies as st

from radioplat.common import collectives
from radioplat.common.ranks import ALONE, Ranks
from radioplat.errors import DataError
from radioplat.evaluation.metrics.shared_rows import SharedRows


@given(st.integers(0, 40), st.integers(1, 7), st.integers(1, 5))
def test_every_item_has_one_rank_and_batches_stay_whole(items, batch, count):
    shares = [Ranks(rank, count).share(items, batch).tolist() for rank in range(count)]
    assert sorted(sum(shares, [])) == list(range(items))
    batches = [set(range(first, min(first + batch, items))) for first in range(0, items, batch)]
    for share in shares:
        for start in range(0, len(share), batch):
            assert set(share[start : start + batch]) in batches
    assert max(map(len, shares)) - min(map(len, shares)) <= batch


def work() -> None:
    """One of three ranks; of the rows it has none, two or four."""
    dist.init_process_group("gloo")
    ranks = Ranks(dist.get_rank(), dist.get_world_size())
    ids = torch.tensor([[], [1, 4], [0, 2, 3, 9]][ranks.rank], dtype=torch.int64)
    own = torch.stack([ids, ids * ids], 1).double() if len(ids) else torch.zeros(0, 0, dtype=torch.float64)
    shared = SharedRows(ranks, own, ids)
    answer = {
        "blocks": {size: [block.tolist() for block in shared.blocks(size)] for size in (1, 4, 6, 100)},
        "none": [block.tolist() for block in SharedRows(ranks, own[:0], ids[:0]).blocks(3)],
        "turn": ranks.in_turn(torch.arange(8)[ranks.rank :: 3]).tolist(),
        "total": ranks.total(torch.tensor([1.0, ranks.rank])).tolist(),
        "objects": ranks.objects("abc"[ranks.rank]),
    }
    tensors = [torch.full((2, 3), float(ranks.rank)), torch.tensor(ranks.rank), torch.arange(6.0).view(2, 3).T]
    tensors[2] += ranks.rank
    collectives.broadcast_tensors(tensors)
    answer["broadcast"] = [tensor.tolist() for tensor in tensors]

    def fails(rank: int, error: Exception):
        """Return the error that an action raises on one rank."""

        def action() -> None:
            if ranks.rank == rank:
                raise error

        try:
            ranks.alike(action)
        except (DataError, OSError) as raised:
            return [type(raised).__name__, str(raised), getattr(raised, "agreed", None)]

    answer["errors"] = [fails(2, DataError("it is bad", where="here")), fails(1, FileNotFoundError(2, "gone", "file"))]
    print(json.dumps(answer))
    dist.barrier()
    dist.destroy_process_group()


def test_three_ranks_exchange_rows_and_errors():
    answers = [json.loads(text.strip().splitlines()[-1]) for text in run_ranks(work, world=3, seconds=150)]
    assert answers[1:] == answers[:1] * 2
    rows = [[float(i), float(i * i)] for i in (0, 1, 2, 3, 4, 9)]
    expected = {str(size): [rows[i : i + size] for i in range(0, 6, size)] for size in (1, 4, 6, 100)}
    assert answers[0]["blocks"] == expected and answers[0]["none"] == []
    assert answers[0]["turn"] == list(range(8))
    assert answers[0]["total"] == [3.0, 3.0] and answers[0]["objects"] == ["a", "b", "c"]
    assert answers[0]["broadcast"] == [[[0.0] * 3] * 2, 0, [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]]
    assert answers[0]["errors"] == [
        ["DataError", "here: it is bad", True],
        ["FileNotFoundError", "[Errno 2] gone: 'file'", None],
    ]


def test_a_process_alone_exchanges_nothing():
    rows = torch.arange(6).view(3, 2)
    assert ALONE.rows(rows) is rows and ALONE.objects(1) == [1] and ALONE.from_first(lambda: 2) == 2
    assert torch.equal(ALONE.in_turn(rows), rows)
    assert np.array_equal(ALONE.share(3, 2), [0, 1, 2])
    blocks = list(SharedRows(ALONE, rows, torch.tensor([3, 5, 8])).blocks(2))
    assert [block.tolist() for block in blocks] == [[[0, 1], [2, 3]], [[4, 5]]]
