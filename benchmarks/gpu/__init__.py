"""Speed of a distillation on GPUs, rung by rung beside a loop written by hand: ``python -m benchmarks.gpu``."""
