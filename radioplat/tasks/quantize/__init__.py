"""``radioplat quantize``: post-training quantization and QAT."""
