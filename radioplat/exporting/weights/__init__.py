"""Weights as others read them: RADIO, Hugging Face, timm, safetensors."""
