"""Losses: student's and teacher's features in, one fp32 value a sample out."""
