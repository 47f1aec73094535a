"""Guards: conditions that skip a step, or stop or end a run; `training/loop/run_hooks.py` lists them."""
