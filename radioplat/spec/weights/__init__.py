"""Weights by address (``hf://``, ``timm:``, ``https://``): their pins in the lock file, and where they are here."""
