"""How good embeddings are: exact ranks by counting, and what is scored from them; `nearfield.metrics` is the way in."""
