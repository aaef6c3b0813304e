"""KV caches: which tokens of which sequences are held, and what is evicted when."""
