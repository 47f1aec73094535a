"""``radioplat doctor``: check that this machine can run radioplat."""
