"""From a backbone and images to features."""
