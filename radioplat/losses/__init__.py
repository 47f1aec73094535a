"""Losses, one idea a file. Each returns one value a sample, in fp32."""
