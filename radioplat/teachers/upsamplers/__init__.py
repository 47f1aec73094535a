"""Upsamplers: models that make a teacher's map finer than its backbone's."""
