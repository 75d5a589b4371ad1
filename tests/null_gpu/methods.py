"""The methods that are tried on null GPUs; a module without torch, which tests may import."""

METHODS = ("byol", "moco", "moco_v3", "fixmatch", "mean_teacher", "dino")
