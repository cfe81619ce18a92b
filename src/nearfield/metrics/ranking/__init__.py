"""Exact ranks of matches.

vectors.py      embeddings as rows whose inner products are the scores
matches.py      what is ranked; the scores of each query's matches
places.py       how many other items score higher than each match, or tie: counted tile by tile, without sorting
counter.py      the counts; pairs that float32 cannot order are compared again in float64
sorted_rows.py  the same for large classes: the best scores of a query, sorted, tell the places of all its matches
scan.py         the fast passes over one tile
"""
