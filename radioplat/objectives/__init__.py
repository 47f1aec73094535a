"""What is learnt from a micro-batch: distillation, labels, detection."""
