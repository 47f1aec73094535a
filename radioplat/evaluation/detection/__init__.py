"""Average precision of detectors, by COCO and by VOC."""
