"""Modifications of a built backbone, in place."""
