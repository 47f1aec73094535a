"""Training and scoring of segmentation and change-detection decoders on frozen feature maps."""
