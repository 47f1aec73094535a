"""Adapters: one file for each kind of model that can be a teacher."""
