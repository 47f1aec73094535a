"""``radioplat train_upsampler``: train FeatSharp for one teacher."""
