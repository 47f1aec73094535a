"""Files for a target device: deployment bundles, calibration caches, trtexec command lines."""
