"""``benchmarks.scale_stream`` on a few ranks: it checks what they get, and counts executions."""

from __future__ import annotations

import pytest

from benchmarks import scale_stream

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


@pytest.mark.proof
@pytest.mark.parametrize(("span", "restarts"), [(None, 0), (2, 2)])
def test_it_counts_the_executions_behind_the_first_of_each_node(ray_cluster, tmp_path, span, restarts):
    """Sixteen ranks are two nodes; four steps are one execution of each, or two of two steps."""
    found = scale_stream.stream(16, 4, tmp_path, span)
    assert (found["nodes"], found["restarts"], found["executions"]) == (2, restarts, 2 + restarts)
    assert found["steps_s"] > 0 and found["coordinator_mb"] > 1 and found["wait_s"] < 120


def test_a_rank_that_gets_other_micro_batches_is_an_error(ray_cluster, tmp_path):
    host = scale_stream.StreamHost(scale_stream.write_images(tmp_path), 8, [[0, 1]], 2)
    host.open()
    host._nodes[0].opened[0].reverse()  # rank 0 reads what is rank 1's
    with pytest.raises(RuntimeError, match="rank . got micro-batch . instead of"):
        host.read()
