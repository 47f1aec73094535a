"""FeatSharp: a map finer than its backbone's."""
