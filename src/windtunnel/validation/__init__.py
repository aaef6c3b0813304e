"""Real measurements, and how far the timing models are from them."""
