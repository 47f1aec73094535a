"""RT-DETR and DINO on any backbone."""
