"""Images with boxes: COCO folders and detection shards."""
