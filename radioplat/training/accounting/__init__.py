"""Records of steps, costs and attempts during training."""
