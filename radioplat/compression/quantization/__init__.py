"""Post-training quantization: placement of quantizers, equalization, calibration."""
