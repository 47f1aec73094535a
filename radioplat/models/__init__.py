"""Student backbones, RADIO ViT parts, heads, weights."""
