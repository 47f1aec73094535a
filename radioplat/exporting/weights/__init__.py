"""Weights in the formats of other libraries: RADIO, Hugging Face, timm, safetensors."""
