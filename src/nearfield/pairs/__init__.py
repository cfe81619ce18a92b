"""The one idea of this library: a loss is a weighting of the similarity matrix, streamed by blocks of rows.

Rows are queries, columns are references: the batch itself, proxies, a memory of earlier batches. For one block of rows
a loss sees, for every query, the measure to its positives and to its negatives, and returns its value and the
derivative of that value with respect to each of them. The engine does the rest: it makes the blocks, turns the
derivatives into the signed pair weights W = dL/dS, accumulates the embedding gradient W R and W^T Q at once, and drops
the block. Nothing of size N x N exists.

To write a loss, read `contract`; what is below it is for work on the engine. Each module imports only from those below:

    mixing      virtual items that are sums of two
    listed      pairs given one by one instead of by labels: the same losses over one block
    mining      which pairs of a block a loss gets to see
    contract    Block, Weighted, PairLoss: what a loss sees and returns, and the arithmetic it is written with
    stream      value and gradient in one sweep, as one operation of autograd; pair_weights
    blocks      one block: which columns are positives, what the loss sees, its weights dL/dS
    layout      queries and references in label order, normalised or centred; the gradient of that step
    shards      vectors of a loss split over processes: what is combined
    checks      errors for input that a loss cannot take
    measures    dot product, distances, signal-to-noise ratio: forward and derivative
"""

from nearfield.pairs.checks import check_classes, check_labels, check_vectors
from nearfield.pairs.contract import (
    Block,
    EngineOptions,
    Held,
    Miner,
    Pairing,
    PairLoss,
    Reduction,
    Weighted,
    exp_,
    is_real,
    log_mask,
    log_sum_exp,
    rounding,
)
from nearfield.pairs.layout import integers, pick, pick_both
from nearfield.pairs.measures import BLOCK_ENTRIES, finite, over_distance
from nearfield.pairs.shards import WHOLE, Columns, Shard
from nearfield.pairs.stream import pair_weights

__all__ = [
    "BLOCK_ENTRIES",
    "WHOLE",
    "Block",
    "Columns",
    "EngineOptions",
    "Held",
    "Miner",
    "PairLoss",
    "Pairing",
    "Reduction",
    "Shard",
    "Weighted",
    "check_classes",
    "check_labels",
    "check_vectors",
    "exp_",
    "finite",
    "integers",
    "is_real",
    "log_mask",
    "log_sum_exp",
    "over_distance",
    "pair_weights",
    "pick",
    "pick_both",
    "rounding",
]
