"""pytorch-metric-learning 2 (PML) under its own names: change the import, keep the script.

    from nearfield.compat.pml import distances, losses, miners, reducers, samplers, testers
    from nearfield.compat.pml.utils.accuracy_calculator import AccuracyCalculator

Class names, parameters, defaults and calls are those of PML 2.9; values and gradients are tested against it. Where
version 3 means something else, `version=3` asks for that. What has no equal here raises `NotMapped`. docs/bridge.md
lists all three. Each module imports only from those below:

    losses         every loss by its name
    memory         losses around losses
    pairs, triplets, lifted, proxies, items
    base           what they share: from a call to the engine, or to a list of pairs
    miners         miners, whose tuples are enumerated only when somebody looks at them
    tuples         index tuples of 3 and of 4
    distances, reducers, samplers, testers, utils, errors
"""

from nearfield.compat.pml import distances, losses, miners, reducers, samplers, testers, utils
from nearfield.compat.pml.errors import NotMapped

__all__ = ["NotMapped", "distances", "losses", "miners", "reducers", "samplers", "testers", "utils"]
