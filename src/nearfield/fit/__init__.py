"""From a folder of photographs to a model that was chosen, and tested, on classes it had not seen.

check     what is wrong with the data, and what is left of it
split     which classes are held out, and how many images fit into the time
approaches  ways to train: a head on frozen features, the whole network, a small network from scratch
compare   every method on the same folds, under the same conditions
measure   retrieval on new classes, with an interval over classes
run       all of it, within a budget of minutes, resumable
"""

from __future__ import annotations

from nearfield.fit.run import fit_model
from nearfield.fit.text import report_text

__all__ = ["fit_model", "report_text"]
