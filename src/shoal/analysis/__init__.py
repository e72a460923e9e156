"""What runs came to, over seeds and settings: curves, comparisons, statistics."""
