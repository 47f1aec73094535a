"""The training tasks: what each builds, optimizes and validates."""
