"""Average precision of detectors: COCO and PASCAL VOC definitions."""
