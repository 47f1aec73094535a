"""Where quantizers go, equalization, and the calibrators of their ranges."""
