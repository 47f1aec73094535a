"""The run: student, heads and losses as one module, the worker loop, DeepSpeed, checkpoints."""

from radioplat._rooms import make_callable

make_callable(__name__, "radioplat.distill.run", "distill")
