"""Frozen teachers: adapters, and the service that runs them apart from the student."""
