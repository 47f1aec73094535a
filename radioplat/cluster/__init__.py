"""Machines and the Ray cluster, without any run: joining, free room, fitness, preemption."""
