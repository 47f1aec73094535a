"""Ray clusters and machines, independent of any run: joining, free resources, health checks, preemption."""
