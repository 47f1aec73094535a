"""``radioplat quickstart``: a guided run on images and weights that installed packages contain."""
