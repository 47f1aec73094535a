"""Upsamplers: models that increase the resolution of a teacher's feature map."""
