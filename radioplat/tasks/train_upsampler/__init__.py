"""``radioplat train_upsampler``: FeatSharp for one teacher."""
