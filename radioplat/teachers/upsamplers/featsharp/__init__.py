"""FeatSharp: joint bilateral upsampling, tiles and local attention; imported only where a teacher has an upsampler."""
