"""The methods that are tried on null GPUs; a module without torch, which tests may import."""

METHODS = ("byol", "moco", "fixmatch", "mean_teacher", "dino")
