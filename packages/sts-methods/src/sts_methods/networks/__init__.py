"""What methods are built of: backbones, heads and batch norm across ranks."""
