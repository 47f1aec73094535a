"""Records of steps, costs and attempts."""
