"""Delivery of micro-batches with teacher features to the training device."""
