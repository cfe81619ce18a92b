"""Exact ranks of matches without sorting the gallery.

vectors.py   embeddings as rows whose inner products are the scores
matches.py   what is ranked; the scores of each query's matches
heads.py     the same for large classes, where only the first places of a ranking matter
places.py    how many other items score higher than each match, or tie: counted tile by tile
counter.py   the counts; pairs that float32 cannot order are compared again in float64
scan.py      the fast pass over one tile
"""
