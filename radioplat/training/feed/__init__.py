"""Micro-batches of the stream with the teachers' answers, on the training device."""
