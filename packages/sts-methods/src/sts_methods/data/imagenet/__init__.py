"""ImageNet on disk: from its archives to folders of classes, and whether these are complete."""
