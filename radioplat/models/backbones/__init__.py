"""Backbones by name: timm, RADIO ViT, NV-CLIP, FAN, sizes of TAO's."""
