"""The process of a rank above 0: it loads the network, and computes what rank 0 hands out, until its input ends."""

import os
import pickle
import sys
import threading
from pathlib import Path
from typing import BinaryIO

import torch

from modelyard.parts.torch.network import Network
from modelyard.parts.torch.training.ranks import READY, Ranks, RankSetup, joined
from modelyard.parts.torch.training.token_logprobs import TokenScorer
from modelyard.parts.torch.training.trainable import all_weights, attach_adapter


def main() -> None:
    """Serve until the input ends, whatever this process is doing then."""
    setup: RankSetup = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that started this one
    threading.Thread(target=_end_with, args=(sys.stdin.buffer,), daemon=True).start()
    torch.set_num_threads(setup.threads)
    full = setup.shape is None
    network = Network(Path(setup.folder), setup.device, torch.float32 if full else None, own=full, form=setup.form)
    if setup.shape is None:
        trained = all_weights(network.model)
    else:
        trained = attach_adapter(network.model, setup.shape, 0, setup.base_model)
    scorer = TokenScorer(network)
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    with joined(setup.rank, setup.count, setup.device, setup.meeting):
        ranks = Ranks(scorer, trained.parameters)
        while True:
            ranks.follow()


def _end_with(file: BinaryIO) -> None:
    file.read()
    os._exit(0)


if __name__ == "__main__":
    main()
