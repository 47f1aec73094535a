"""Training objectives: distillation, classification, detection."""
