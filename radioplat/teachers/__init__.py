"""Frozen teachers: adapters for kinds of models, feature cache, serving by Ray actors."""
