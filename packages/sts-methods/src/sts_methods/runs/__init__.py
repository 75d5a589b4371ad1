"""What a run leaves on disk: checkpoints, metrics, backbones, and what decides whether it can resume."""
