"""CPU time that the engine itself takes for a micro-batch and for an optimizer step.

    python -m benchmarks.engine_cost [--world 2] [--precision fp32 bf16] [--micro-batches 4]

The student has as many parameters as a ViT with 26 blocks (317), and so few numbers in each that arithmetic takes next
to no time. What a bare forward and backward pass of the same module take is subtracted; what is left is the time that a
CPU core needs to keep a GPU busy beside the launches of the student's own kernels. It is CPU time of the first rank's
process with one thread, so other processes hardly change it. The last line is JSON: milliseconds by engine and format.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import time
from collections.abc import Callable

ENGINES = {"ddp": {"engine": "ddp"}, **{f"ZeRO-{stage}": {"zero_stage": stage} for stage in range(4)}}
BLOCKS, WIDTH, WARM_UP = 26, 8, 3


def student():
    """A residual network with the parameters of a ViT: 12 in each block, and 5 beside them."""
    import torch
    from torch import nn

    class Block(nn.Module):
        """What a transformer's block has, without mixing of tokens."""

        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.qkv, self.proj = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.norm2, self.fc1, self.fc2 = (
                nn.LayerNorm(WIDTH),
                nn.Linear(WIDTH, 2 * WIDTH),
                nn.Linear(2 * WIDTH, WIDTH),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Tokens ``[B, WIDTH]``."""
            q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
            x = x + self.proj(q * k + v)
            return x + self.fc2(self.fc1(self.norm2(x)).relu())

    class Student(nn.Module):
        """A loss from random tokens."""

        def __init__(self) -> None:
            super().__init__()
            self.token, self.embed = nn.Parameter(torch.zeros(WIDTH)), nn.Linear(WIDTH, WIDTH)
            self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(BLOCKS))), nn.LayerNorm(WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """A scalar, fp32."""
            x = self.embed(x.to(self.token.dtype)) + self.token
            return self.norm(self.blocks(x)).float().square().mean()

    return Student()


def measure(engine: str | None, precision: str, micro_batches: int, steps: int) -> dict[str, float]:
    """Median CPU milliseconds of micro-batches within a step, and of its last one; bare passes without engine."""
    import torch

    from radioplat.spec.loading.load import load_spec
    from radioplat.training.engine.registry import build_engine

    module = student()
    count = sum(1 for _ in module.parameters())
    assert count == 317, count
    if engine is None:
        module.to(torch.bfloat16 if precision == "bf16" else torch.float32)

        def learn(x: torch.Tensor, last: bool) -> None:
            module(x).backward()
            if last:
                module.zero_grad()
    else:
        spec = load_spec({"train": {"precision": precision, **ENGINES[engine]}, "dataset": {"batch_size": 4}})
        run = build_engine(module, spec, micro_batches)

        def learn(x: torch.Tensor, last: bool) -> None:
            run.backward(run(x), last=last)
            run.step()

    times: dict[bool, list[float]] = {False: [], True: []}
    for step in range(WARM_UP + steps):
        for place in range(micro_batches):
            x, last = torch.randn(4, WIDTH), place == micro_batches - 1
            begin = time.process_time()
            learn(x, last)
            if step >= WARM_UP:
                times[last].append(1e3 * (time.process_time() - begin))
    return {"within": statistics.median(times[False]), "last": statistics.median(times[True])}


def work(rank: int, port: int, given: argparse.Namespace, show: Callable[[str], None] = print) -> None:
    """Measure as one rank; the first one prints."""
    import torch

    from radioplat.training.loop import process_group

    group = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": given.world, "LOCAL_WORLD_SIZE": given.world}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    os.environ.update({name: str(value) for name, value in {**group, **place}.items()})
    torch.set_num_threads(1)
    process_group.join("gloo")
    found: dict[str, dict[str, float]] = {}
    for precision in given.precision:
        bare = measure(None, precision, given.micro_batches, given.steps)
        for engine in given.engine:
            taken = measure(engine, precision, given.micro_batches, given.steps)
            own = {"micro_batch_ms": taken["within"] - bare["within"], "last_ms": taken["last"] - bare["last"]}
            found[f"{engine} {precision}"] = {name: round(value, 2) for name, value in own.items()}
            if rank == 0:
                show(f"{engine:7} {precision}: {own['micro_batch_ms']:6.1f} ms, the last {own['last_ms']:6.1f} ms")
    if rank == 0:
        show(json.dumps({"world": given.world, "parameters": 317, "engines": found}))


def main() -> None:
    """Start the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", type=int, default=1, help="ranks; gloo exchanges gradients between them")
    parser.add_argument("--precision", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    parser.add_argument("--engine", nargs="+", default=["ddp", "ZeRO-0", "ZeRO-2"], choices=list(ENGINES))
    parser.add_argument("--micro-batches", type=int, default=4, help="of a step and a rank, at least 2")
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    if given.world == 1:
        work(0, port, given)
    else:
        import torch.multiprocessing as processes

        processes.spawn(work, (port, given), nprocs=given.world)


if __name__ == "__main__":
    main()
