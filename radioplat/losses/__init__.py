"""Losses: features of student and teacher to one fp32 value per sample."""
