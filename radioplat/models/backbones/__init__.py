"""Backbones by name: timm, RADIO ViT, FAN."""
