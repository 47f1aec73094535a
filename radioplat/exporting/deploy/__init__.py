"""What goes to a device: bundles, calibration caches, trtexec command lines."""
