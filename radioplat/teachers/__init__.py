"""Frozen teachers: kinds of models, features, caching, serving."""
