"""DINO, as TAO trains it; imported only where a spec or a file names it."""
