"""The guided tour, on images and weights that installed packages carry."""
