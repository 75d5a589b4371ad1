"""From features to accuracy: nearest neighbours, few labels, linear probes."""
