"""The task ``train_upsampler``."""
