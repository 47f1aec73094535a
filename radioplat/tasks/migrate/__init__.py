"""Make specs of other programs ours."""
