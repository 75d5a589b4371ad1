"""How each corruption changes the pixels of one image, and how much at each severity."""
