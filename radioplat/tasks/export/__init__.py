"""``radioplat export``, ``gen_trt_engine``, ``lint``."""
