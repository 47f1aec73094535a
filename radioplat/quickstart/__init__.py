"""What the quickstart runs on: real images and real weights that installed packages carry; nothing is downloaded."""
