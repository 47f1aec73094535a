"""What was consumed, and the proof that it was everything, once."""
