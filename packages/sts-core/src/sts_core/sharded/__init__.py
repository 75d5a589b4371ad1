"""Networks that are cut over ranks: which block of each tensor a rank holds, and copies that are cut alike."""
