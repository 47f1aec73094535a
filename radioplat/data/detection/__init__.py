"""Images with bounding boxes: COCO folders and detection shards."""
